"""Count uses of an image by its places in the prompts, as vLLM does since 0.22.

A conversation carries the same picture from turn to turn, so one prompt may hold it several times::

    prompt   [ cat ] what is it? [ cat ] and now?
              place 0             place 1

The manager of 0.22 notes only *that* a request needs the cat, and forgets it when place 0 is
computed: the picture may be evicted, and is encoded again for place 1. Here it is kept until the
last place is computed.

In vLLM 0.32.0 it is ``EncoderCacheManager.request_cached_ids``.
"""

from __future__ import annotations

from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.request import Request


class PlacesEncoderCacheManager(EncoderCacheManager):
    """An encoder cache that releases a request's image once its last place is computed.

    Attributes:
        places: indices of the images that each request needs, by its id.
    """

    def __init__(self, cache_size: int) -> None:
        super().__init__(cache_size)
        self.places: dict[str, set[int]] = {}

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """See the base class; the place is noted."""
        is_cached = super().check_and_update_cache(request, input_id)
        if is_cached:
            self.places.setdefault(request.request_id, set()).add(input_id)
        return is_cached

    def allocate(self, request: Request, input_id: int) -> None:
        """See the base class; the place is noted."""
        super().allocate(request, input_id)
        self.places.setdefault(request.request_id, set()).add(input_id)

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """See the base class; only the last of several places with the same image releases it."""
        places = self.get_cached_input_ids(request)
        if input_id not in places:
            return
        places.discard(input_id)
        if not places:
            del self.places[request.request_id]
        mm_hash = request.mm_features[input_id].identifier
        if all(request.mm_features[other].identifier != mm_hash for other in places):
            super().free_encoder_input(request, input_id)

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """Indices of the images that ``request`` needs and that are cached for it."""
        return self.places.get(request.request_id, set())

    def get_freed_mm_hashes(self) -> list[str]:
        """See the base class; an image that was evicted and encoded anew in one step is kept."""
        freed = super().get_freed_mm_hashes()
        return [mm_hash for mm_hash in freed if mm_hash not in self.cached]

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.places.clear()
