"""Expands a prompt with images, and makes a feature for each image.

::

    prompt       What is <|image_pad|> this ?         one placeholder a picture
    picture      40 x 24 pixels -> resized, cut into 6 x 10 patches -> 3 x 5 = 15 tokens
    expanded     What is # # # # # # # # # # # # # # # this ?
    feature      PlaceholderRange(offset=2, length=15), hash, patches

Invalid images are refused here, before anything is queued. Resizing and normalising are done by the
model's own image processor, always in its Pillow version: it needs no torchvision, and results do
not depend on what is installed.

Source: vllm/multimodal/processing/processor.py#L831-L871 (apply_token_matches) @ v0.22.1
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config import MultiModalConfig
from mini_vllm.errors import show
from mini_vllm.json_files import read_json
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.model.vision_config import VisionArgs
from mini_vllm.multimodal.hasher import hash_image
from mini_vllm.multimodal.media import MediaURL
from mini_vllm.param_checks import check_context

if TYPE_CHECKING:
    from PIL import Image

PLACEHOLDER = "<|image_pad|>"
"""The place of an image in a prompt's text."""
MAX_RATIO = 200
"""Most ratio of the longer side to the shorter: the image processor's own limit."""
MAX_PROCESSORS = 8
"""Cached image processors, one for each set of options in recent requests."""
KEPT_PATCHES_BYTES = 64 * 2**20
"""Size of the cache for patches of recent images, which the next turn of a chat needs again."""


def expand_placeholders(
    token_ids: Sequence[int], image_token_id: int, lengths: Sequence[int]
) -> tuple[list[int], list[PlaceholderRange]]:
    """Write each picture's placeholder as often as the picture has tokens.

    Args:
        token_ids: a prompt with one ``image_token_id`` for each picture.
        lengths: tokens of each picture.

    Returns:
        The longer prompt, and where each picture lies *in it*: every picture moves those behind it.

    Raises:
        ValueError: with both numbers, if there are not as many placeholders as pictures.

    Source: vllm/multimodal/processing/processor.py#L831-L871 (apply_token_matches) @ v0.22.1
    """
    # TODO 13.3
    raise NotImplementedError(
        "TODO 13.3: write expand_placeholders in labs/13-multimodal/processing.py"
        " (phase 13, 02-mini-build.md#task-3)"
    )


class MultiModalProcessor:
    """Checks images, splits them into patches, and expands prompts.

    Args:
        folder: of the model; its `preprocessor_config.json` configures the image processor.
        vision: the encoder's config.
        config: how many images a prompt may have, and options of the image processor.
        max_model_len: most tokens of prompt and output together.
    """

    def __init__(
        self, folder: str | Path, vision: VisionArgs, config: MultiModalConfig, max_model_len: int
    ) -> None:
        self.folder, self.vision, self.config = Path(folder), vision, config
        self.max_model_len = max_model_len
        self._lock = threading.Lock()  # a server processes several prompts at a time, in threads
        self._processors: OrderedDict[str, Any] = OrderedDict()
        self._patches: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.num_processed = 0
        """Number of images split into patches, without those found in the cache."""

    @cached_property
    def image_processor(self) -> Any:
        """The model's own image processor, with the engine's options.

        Raises:
            ValueError: if the folder has none, or it does not fit the encoder.
        """
        return self._make_processor({})

    def forget_patches(self) -> None:
        """Empty the cache of recent images' patches."""
        with self._lock:
            self._patches.clear()

    def processor_for(self, options: Any) -> Any:
        """The image processor with a request's ``mm_processor_kwargs``, which override the
        engine's.

        Raises:
            ValueError: unless it is a mapping of known options that fit the encoder.
        """
        if not options:
            return self.image_processor
        if not isinstance(options, Mapping):
            raise ValueError(
                f"mm_processor_kwargs is {show(options)}; it must be a mapping such as "
                '{"max_pixels": 200704}'
            )
        key = json.dumps(dict(options), sort_keys=True, default=str)
        with self._lock:
            if key not in self._processors:
                self._processors[key] = self._make_processor(options)
            self._processors.move_to_end(key)
            while len(self._processors) > MAX_PROCESSORS:
                self._processors.popitem(last=False)
            return self._processors[key]

    def _make_processor(self, options: Mapping[str, Any]) -> Any:
        # Before 5.18 `transformers.AutoImageProcessor` requires torchvision, which is not needed.
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        merged = dict(self.config.mm_processor_kwargs) | dict(options)
        try:
            for file in self.folder.glob("*processor*_config.json"):
                read_json(file)  # its error names a damaged file; the library's may not
            processor = AutoImageProcessor.from_pretrained(
                self.folder, backend="pil", local_files_only=True, **merged
            )
        except Exception as error:  # the library may raise any
            raise ValueError(
                f"{str(self.folder)!r} has no image processor that can be used: {error}"
            ) from error
        known = sorted(processor.valid_kwargs.__annotations__)
        if unknown := sorted(set(merged) - set(known)):
            raise ValueError(
                f"mm_processor_kwargs has {unknown[0]!r}; the keys of this model's image "
                f"processor are {', '.join(known)}"
            )
        for name, ours in (
            ("patch_size", self.vision.patch_size),
            ("merge_size", self.vision.spatial_merge_size),
            ("temporal_patch_size", self.vision.temporal_patch_size),
        ):
            if getattr(processor, name, None) != ours:
                where = "mm_processor_kwargs" if name in merged else repr(str(self.folder))
                raise ValueError(
                    f"{name} of the image processor is {getattr(processor, name, None)} ({where}); "
                    f"it must be {ours}, as in config.json"
                )
        return processor

    @property
    def largest(self) -> int:
        """Tokens of the largest image that a prompt can have."""
        try:
            most_pixels = self.image_processor.size["longest_edge"]
        except (ValueError, KeyError):  # the first image will be refused with the reason
            return self.max_model_len
        tokens = most_pixels // self.vision.pixels_per_token
        return max(1, min(tokens, self.max_model_len))

    def process(
        self,
        token_ids: list[int],
        multi_modal_data: Mapping[str, Any],
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[list[int], list[MultiModalFeatureSpec]]:
        """The expanded prompt, and the features of its images.

        Args:
            token_ids: with one placeholder for each image.
            multi_modal_data: ``{"image": image}`` or ``{"image": [image, ...]}``.
            mm_processor_kwargs: options of the image processor, for this prompt alone.

        Raises:
            ValueError: with the index of the image, what is wrong with it, the limit and the fix.
        """
        images = self.check(multi_modal_data)
        expand_placeholders(token_ids, self.vision.image_token_id, [1] * len(images))  # check count
        processor = self.processor_for(mm_processor_kwargs) if images else None
        options = dict(self.config.mm_processor_kwargs) | dict(mm_processor_kwargs or {})
        named = [self._patches_of(processor, options, i, image) for i, image in enumerate(images)]
        merge = self.vision.spatial_merge_size
        grids = [data["image_grid_thw"] for _, data in named]
        lengths = [t * h * w // merge**2 for t, h, w in grids]
        expanded, places = expand_placeholders(token_ids, self.vision.image_token_id, lengths)
        details = f", {sum(lengths)} of them images (send fewer, or smaller ones)"
        check_context(self.max_model_len, len(expanded), details=details if images else "")
        return expanded, [
            MultiModalFeatureSpec(data, "image", name, place)
            for (name, data), place in zip(named, places, strict=True)
        ]

    def check(self, multi_modal_data: Any) -> list[Image.Image]:
        """The images of a prompt. Raises ValueError if one is invalid."""
        if not isinstance(multi_modal_data, Mapping):
            raise ValueError(
                f"multi_modal_data is {show(multi_modal_data)}; it must be a mapping such as "
                '{"image": picture}'
            )
        for modality in multi_modal_data:
            if modality != "image":
                raise ValueError(f"multi_modal_data has {modality!r}; only 'image' is supported")
        images = multi_modal_data.get("image")
        images = [] if images is None else images
        images = list(images) if isinstance(images, list | tuple) else [images]
        check_count(len(images), self.config)
        return [self._load(index, image) for index, image in enumerate(images)]

    def _load(self, index: int, image: Any) -> Image.Image:
        """Load and convert an image. One that was given by a URL is drawn on white."""
        from mini_vllm.multimodal.pictures import as_rgb, upright

        was_sent = isinstance(image, MediaURL)
        if was_sent:
            allowed = self.config.allowed_media_domains, self.config.allowed_local_media_path
            image = image.load(index, *allowed)
        return as_rgb(index, upright(check_image(index, image)), on_white=was_sent)

    def _patches_of(
        self, processor: Any, options: Mapping[str, Any], index: int, image: Image.Image
    ) -> tuple[str, dict[str, Any]]:
        """An image's hash, and its patches ``[P, patch_dim]`` float32 in merge order.

        The hash includes the options, because they change the patches.
        """
        name = hash_image(image, processor.to_dict())
        with self._lock:
            if name in self._patches:
                self._patches.move_to_end(name)
                return name, self._patches[name]
        try:
            made = processor(images=[image], return_tensors="np")
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(
                f"image {index} cannot be processed: {error}; see mm_processor_kwargs, "
                f"{show(dict(options))}"
            ) from error
        data = {
            "pixel_values": made["pixel_values"].astype("float32", copy=False),
            "image_grid_thw": made["image_grid_thw"][0].tolist(),
        }
        with self._lock:
            self._keep(name, data)
        return name, data

    def _keep(self, name: str, data: dict[str, Any]) -> None:
        self.num_processed += 1
        self._patches[name] = data
        most = max(KEPT_PATCHES_BYTES, data["pixel_values"].nbytes)
        while sum(kept["pixel_values"].nbytes for kept in self._patches.values()) > most:
            self._patches.popitem(last=False)


def check_count(count: int, config: MultiModalConfig) -> None:
    """Raises ValueError for more images than a prompt may have.

    Source: vllm/multimodal/processing/context.py#L408-L425 (BaseProcessingInfo.validate_num_items)
    @ v0.22.1
    """
    limit = config.limit_mm_per_prompt.get("image")
    if limit is not None and count > limit:
        raise ValueError(
            f"the prompt brings {count} images; at most {limit} are allowed (limit_mm_per_prompt); "
            'send fewer, or raise limit_mm_per_prompt={"image": ...}'
        )


def check_image(index: int, image: Any) -> Image.Image:
    """The decoded image. Pillow decodes a file only when its pixels are needed.

    Raises:
        ValueError: if it is no image, cannot be decoded, is too large, or has an extreme shape.
    """
    from mini_vllm.multimodal.pictures import Image

    if not isinstance(image, Image.Image):
        raise ValueError(
            f"image {index} is {show(image)}; pass a PIL image, or a list of them; "
            "PIL.Image.open(path) reads a file"
        )
    width, height = image.size
    if min(width, height) < 1:
        raise ValueError(f"image {index} is {width}x{height}; it has no pixels")
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise ValueError(
            f"image {index} is {width}x{height}, {width * height} pixels; at most {most} are "
            "decoded (PIL.Image.MAX_IMAGE_PIXELS), since a small file may hide a huge picture; "
            "resize it"
        )
    ratio = max(width, height) / min(width, height)
    if ratio > MAX_RATIO:
        raise ValueError(
            f"image {index} is {width}x{height}: its sides differ by a factor of {ratio:.4g}; at "
            f"most {MAX_RATIO} is allowed; crop it"
        )
    try:
        image.load()
    except Exception as error:  # for a damaged file, a decoder may raise anything
        raise ValueError(f"image {index} cannot be decoded: {error}") from error
    return image
