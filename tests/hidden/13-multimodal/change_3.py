"""Change request 3, over random requests: which requests need what, after every call."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request


def request(name: str, images: list[str]) -> Request:
    features = [
        MultiModalFeatureSpec({}, "image", image, PlaceholderRange(4 * index, 2))
        for index, image in enumerate(images)
    ]
    return Request(name, range(4 * len(images) + 1), mm_features=features)


@pytest.mark.parametrize("seed", range(40))
def test_change_3_needed_while_a_place_has_asked(seed: int) -> None:
    rng = Random(seed)
    images = ["cat", "dog", "owl"]
    manager = EncoderCacheManager(2 * len(images))
    requests = [request(f"r{n}", rng.choices(images, k=rng.randint(1, 5))) for n in range(3)]
    asked: dict[str, set[int]] = {r.request_id: set() for r in requests}
    for _ in range(40):
        one = rng.choice(requests)
        place = rng.randrange(len(one.mm_features))
        kind = rng.random()
        if kind < 0.5:
            if not manager.check_and_update_cache(one, place):
                manager.allocate(one, place)
            asked[one.request_id].add(place)
        elif kind < 0.9:
            manager.free_encoder_input(one, place)
            asked[one.request_id].discard(place)
        else:
            manager.free(one)
            asked[one.request_id].clear()
        for image in manager.cached:
            needed = {
                r.request_id
                for r in requests
                if any(r.mm_features[i].identifier == image for i in asked[r.request_id])
            }
            assert manager.cached[image] == needed
            assert (image in manager.freeable) == (not needed)
