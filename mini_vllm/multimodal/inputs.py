"""The two classes that describe an image; they are defined where the core can import them."""

from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange

__all__ = ["MultiModalFeatureSpec", "PlaceholderRange"]
