"""Which images' embeddings are kept, and which requests still need them.

The encoder computes a whole image at once, but the decoder may take it in several steps, and the
next request may bring the same image. So embeddings are kept, by the hash of the image::

    cached      {"cat": {"r0", "r2"}, "dog": set(), "owl": {"r1"}}    hash -> requests that need it
    freeable    {"dog": 7}                                            not needed, oldest first
    room        num_free_slots: empty         num_freeable_slots: empty, or empty after evictions

The worker holds the tensors. This manager only counts: in rows of embeddings, not in prompt
positions. It tells the worker which hashes it has evicted.

Source: vllm/v1/core/encoder_cache_manager.py#L17-L266 (EncoderCacheManager) @ v0.22.1
"""

from __future__ import annotations

from collections import OrderedDict

from mini_vllm.config import SchedulerConfig
from mini_vllm.request import Request


class EncoderCacheManager:
    """Counts the rows of encoder output that are kept, and tracks which requests need them.

    Args:
        cache_size: rows that the worker may keep.

    Attributes:
        num_free_slots: rows that are empty.
        num_freeable_slots: rows that are empty, or hold images that no request needs.
        cached: the requests that need each image, by its hash; an empty set: none, but it is still
        there. freeable: hash and rows of the images that no request needs, oldest first. freed:
        hashes that were evicted and not yet reported to the worker.
    """

    def __init__(self, cache_size: int) -> None:
        self.cache_size = cache_size
        self.num_free_slots = cache_size
        self.num_freeable_slots = cache_size
        self.cached: dict[str, set[str]] = {}
        self.freeable: OrderedDict[str, int] = OrderedDict()
        self.freed: list[str] = []

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """Whether an image of ``request`` is cached; if it is, the request needs it from now on.

        An image that was not needed before cannot be evicted any more: it leaves ``freeable``, and
        its rows no longer count as room.

        Args:
            input_id: index of the image in ``request.mm_features``.

        Source: vllm/v1/core/encoder_cache_manager.py#L91-L117
        (EncoderCacheManager.check_and_update_cache) @ v0.22.1
        """
        # TODO 13.4
        raise NotImplementedError(
            "TODO 13.4: write EncoderCacheManager.check_and_update_cache in labs/13-multimodal/encoder_cache_manager.py"
            " (phase 13, 02-mini-build.md#task-4)"
        )

    def can_allocate(
        self,
        request: Request,
        input_id: int,
        encoder_compute_budget: int,
        num_embeds_to_schedule: int,
    ) -> bool:
        """Whether an image may be encoded now; makes room for it if that takes evictions.

        It must fit what is left of the step's budget. And it must fit the cache, together with the
        images that the caller has chosen in this call and not allocated yet. If the empty rows do
        not suffice, images that no request needs are evicted, oldest first, until they do; each
        evicted hash goes to ``freed``. If even that would not suffice, nothing is evicted.

        Args:
            encoder_compute_budget: rows that may still be encoded in this step.
            num_embeds_to_schedule: rows of the images chosen before it.

        Source: vllm/v1/core/encoder_cache_manager.py#L119-L178 (EncoderCacheManager.can_allocate)
        @ v0.22.1
        """
        # TODO 13.5
        raise NotImplementedError(
            "TODO 13.5: write EncoderCacheManager.can_allocate in labs/13-multimodal/encoder_cache_manager.py"
            " (phase 13, 02-mini-build.md#task-5)"
        )

    def allocate(self, request: Request, input_id: int) -> None:
        """Reserve the rows of an image that this step encodes; :meth:`can_allocate` said yes.

        Its rows are neither empty nor evictable, and ``request`` needs it.

        Source: vllm/v1/core/encoder_cache_manager.py#L180-L205 (EncoderCacheManager.allocate)
        @ v0.22.1
        """
        # TODO 13.5
        raise NotImplementedError(
            "TODO 13.5: write EncoderCacheManager.allocate in labs/13-multimodal/encoder_cache_manager.py"
            " (phase 13, 02-mini-build.md#task-5)"
        )

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """``request`` no longer needs one of its images.

        Once its last request has released it, the image becomes the newest entry of ``freeable``.
        It stays cached, for the next request that brings it; its rows count as room that an
        eviction can make. Asking again, or for an image that is not cached, changes nothing.

        Source: vllm/v1/core/encoder_cache_manager.py#L221-L240
        (EncoderCacheManager.free_encoder_input) @ v0.22.1
        """
        # TODO 13.4
        raise NotImplementedError(
            "TODO 13.4: write EncoderCacheManager.free_encoder_input in labs/13-multimodal/encoder_cache_manager.py"
            " (phase 13, 02-mini-build.md#task-4)"
        )

    def free(self, request: Request) -> None:
        """``request`` needs none of its images any more: it has ended, or lost its blocks.

        Source: vllm/v1/core/encoder_cache_manager.py#L242-L253 (EncoderCacheManager.free) @ v0.22.1
        """
        for input_id in range(len(request.mm_features)):
            self.free_encoder_input(request, input_id)

    def drop(self, request: Request, input_id: int, is_there: bool = False) -> None:
        """Forget an image that the worker never got: its step was undone, or has failed.

        A request that counted on it asks again in the next step, as for every image in every step.

        Args:
            is_there: the worker may have it all the same, and is told to forget it.
        """
        mm_hash = request.mm_features[input_id].identifier
        needed_by = self.cached.pop(mm_hash, None)
        if needed_by is None:
            return
        if is_there:
            self.freed.append(mm_hash)
        num_embeds = request.get_num_encoder_embeds(input_id)
        self.num_free_slots += num_embeds
        if needed_by:
            self.num_freeable_slots += num_embeds
        else:
            del self.freeable[mm_hash]

    def get_freed_mm_hashes(self) -> list[str]:
        """What was evicted since the last call, for the worker to forget.

        Source: vllm/v1/core/encoder_cache_manager.py#L255-L266
        (EncoderCacheManager.get_freed_mm_hashes) @ v0.22.1
        """
        freed, self.freed = self.freed, []
        return freed

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """Indices of those images of ``request`` that are cached, whichever request needs them.

        Source: vllm/v1/core/encoder_cache_manager.py#L207-L219
        (EncoderCacheManager.get_cached_input_ids) @ v0.22.1
        """
        features = enumerate(request.mm_features)
        return {index for index, feature in features if feature.identifier in self.cached}

    def reset(self) -> None:
        """Forget everything."""
        self.cached.clear()
        self.freeable.clear()
        self.freed.clear()
        self.num_free_slots = self.num_freeable_slots = self.cache_size


def compute_mm_encoder_budget(config: SchedulerConfig, largest: int) -> tuple[int, int]:
    """Rows that a step may encode, and rows that are kept: at least the largest image's.

    Both default to ``max_num_batched_tokens``. An image may be larger than that: it is encoded in
    one step and consumed in several. But an image larger than the cache could never be scheduled.

    Args:
        largest: rows of the largest image that a request may bring.

    Raises:
        ValueError: if images may not be split, and the largest does not fit a step.

    Source: vllm/v1/core/encoder_cache_manager.py#L269-L318 (compute_mm_encoder_budget) @ v0.22.1
    """
    most = config.max_num_batched_tokens
    threshold = config.long_prefill_token_threshold
    step = min(most, threshold) if threshold else most
    if config.disable_chunked_mm_input and largest > step:
        name = "long_prefill_token_threshold" if step < most else "max_num_batched_tokens"
        raise ValueError(
            f"disable_chunked_mm_input is set, but the largest image has {largest} tokens and "
            f"{name} is {step}; raise it, allow chunks, or let mm_processor_kwargs make images "
            "smaller"
        )
    budget = config.max_num_encoder_input_tokens or most
    cache_size = config.encoder_cache_size or most
    return max(budget, largest), max(cache_size, largest)
