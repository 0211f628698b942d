"""The two classes that describe an image; they live where the core can see them."""

from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange

__all__ = ["MultiModalFeatureSpec", "PlaceholderRange"]
