"""Change request 2, over random prompts: what is encoded, where the range ends, what is left."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request

SIZES = {"cat": 4, "dog": 6, "owl": 3}


def prompt(rng: Random) -> Request:
    images, offset = [], rng.randint(0, 4)
    for _ in range(rng.randint(1, 5)):
        name = rng.choice(list(SIZES))
        images.append(
            MultiModalFeatureSpec({}, "image", name, PlaceholderRange(offset, SIZES[name]))
        )
        offset += SIZES[name] + rng.randint(0, 3)
    return Request("ana", range(offset + 9), mm_features=images)


def encoder(size: int = 40) -> EncoderInputs:
    return EncoderInputs(SchedulerConfig(encoder_cache_size=size, max_num_encoder_input_tokens=40))


@pytest.mark.parametrize("seed", range(60))
def test_change_2_step_by_step(seed: int) -> None:
    """The whole prompt, in steps: one encoding a step at most, and nothing computed without."""
    rng = Random(seed)
    request, plan = prompt(rng), encoder()
    cached = {name for name in SIZES if rng.random() < 0.3}
    for name in cached:
        plan.manager.cached[name] = {"zoe"}
    computed, steps = 0, 0
    while computed < request.num_tokens:
        new = min(rng.randint(1, 30), request.num_tokens - computed)
        chosen, tokens, left = plan._try_schedule_encoder_inputs(request, computed, new, 40)
        end = computed + new
        there, expected, limit = set(cached), [], new
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            if place.offset >= end or place.end <= computed or feature.identifier in there:
                continue
            if expected:
                limit = place.offset - computed
                break
            expected.append(index)
            there.add(feature.identifier)
        assert (chosen, tokens) == (expected, limit)
        assert left == 40 - sum(SIZES[request.mm_features[i].identifier] for i in chosen)
        for index in chosen:
            plan.manager.allocate(request, index)
            cached.add(request.mm_features[index].identifier)
        computed += tokens
        steps += 1
        assert tokens > 0 and steps < 100


def test_change_2_a_picture_without_need_is_no_second() -> None:
    """Its embeddings lie behind the range: it ends nothing."""
    masked = PlaceholderRange(8, 4, (False, False, True, True))
    images = [
        MultiModalFeatureSpec({}, "image", "cat", PlaceholderRange(2, 4)),
        MultiModalFeatureSpec({}, "image", "map", masked),
    ]
    request = Request("ana", range(20), mm_features=images)
    assert encoder()._try_schedule_encoder_inputs(request, 0, 10, 40) == ([0], 10, 36)
    assert encoder()._try_schedule_encoder_inputs(request, 0, 11, 40) == ([0], 8, 36)
    assert encoder(5)._try_schedule_encoder_inputs(request, 0, 20, 40)[1] == 8
