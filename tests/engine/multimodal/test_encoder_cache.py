"""The encoder's cache against brute force, and the encoder's say in scheduling, step by step."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.encoder_cache_manager import EncoderCacheManager, compute_mm_encoder_budget
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


def image(offset: int, length: int, name: str, mask: tuple[bool, ...] | None = None):
    place = PlaceholderRange(offset, length, mask)
    return MultiModalFeatureSpec(None, "image", name, place)


def request(name: str, length: int, *images: MultiModalFeatureSpec, priority: int = 0) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    return Request(
        name, range(length), params, priority=priority, arrival_time=0.0, mm_features=images
    )


def test_a_mask_counts_embeddings_not_positions() -> None:
    place = PlaceholderRange(2, 5, (False, True, False, True, True))
    assert place.get_num_embeds() == 3
    assert place.get_embeds_indices_in_range(3, 5) == (1, 3)
    assert place.get_embeds_indices_in_range(0, 1) == (0, 0)
    assert PlaceholderRange(2, 5).get_embeds_indices_in_range(3, 5) == (3, 5)


@pytest.mark.parametrize("bad", [(-1, 2, None), (0, 0, None), (0, 2, (True,))])
def test_an_impossible_placeholder_is_refused(bad: tuple) -> None:
    with pytest.raises(ValueError, match="placeholder"):
        PlaceholderRange(*bad)


def test_features_are_sorted_and_name_the_blocks() -> None:
    made = request("r", 20, image(9, 3, "b"), image(1, 4, "a"))
    assert [feature.identifier for feature in made.mm_features] == ["a", "b"]
    assert made.mm_hashes == [(1, 4, "a"), (9, 3, "b")]
    assert made.has_encoder_inputs and made.get_num_encoder_embeds(1) == 3


class BruteForce:
    """Entries with their size and references, in order of becoming free; room is what is left."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: dict[str, tuple[int, set[str]]] = {}
        self.order: list[str] = []

    @property
    def free(self) -> int:
        return self.size - sum(size for size, _ in self.entries.values())

    @property
    def freeable(self) -> int:
        return self.size - sum(size for size, users in self.entries.values() if users)


@pytest.mark.parametrize("seed", range(20))
def test_the_manager_counts_as_brute_force_does(seed: int) -> None:
    rng = Random(seed)
    sizes = {f"i{n}": rng.randint(1, 6) for n in range(6)}
    manager, truth = EncoderCacheManager(12), BruteForce(12)
    requests = []
    for n in range(5):
        names = rng.choices(list(sizes), k=3)
        images = [image(10 * k, sizes[name], name) for k, name in enumerate(names)]
        requests.append(request(f"r{n}", 40, *images))
    for _ in range(300):
        one, index = rng.choice(requests), rng.randrange(3)
        name = one.mm_features[index].identifier
        if rng.random() < 0.5:
            known = name in truth.entries
            assert manager.check_and_update_cache(one, index) is known
            if known:
                truth.entries[name][1].add(one.request_id)
                truth.order = [n for n in truth.order if n != name]
                continue
            budget, promised = rng.randint(1, 9), rng.choice((0, 0, 2))
            fits = sizes[name] <= budget and sizes[name] + promised <= truth.freeable
            assert manager.can_allocate(one, index, budget, promised) is fits
            gone = []
            while fits and sizes[name] + promised > truth.free:
                gone.append(truth.order.pop(0))
                del truth.entries[gone[-1]]
            assert manager.get_freed_mm_hashes() == gone
            if fits:
                manager.allocate(one, index)
                truth.entries[name] = (sizes[name], {one.request_id})
        else:
            indices = range(3) if rng.random() < 0.3 else [index]
            if len(indices) == 3:
                manager.free(one)
            else:
                manager.free_encoder_input(one, index)
            for i in indices:
                name = one.mm_features[i].identifier
                users = truth.entries.get(name, (0, set()))[1]
                if users and one.request_id in users:
                    users.discard(one.request_id)
                    if not users:
                        truth.order.append(name)
        assert manager.num_free_slots == truth.free
        assert manager.num_freeable_slots == truth.freeable
        assert list(manager.freeable) == truth.order
        assert manager.cached == {name: users for name, (_, users) in truth.entries.items()}


def test_budget_and_cache_hold_the_largest_image() -> None:
    config = SchedulerConfig(max_num_batched_tokens=7)
    assert compute_mm_encoder_budget(config, 40) == (40, 40)
    assert compute_mm_encoder_budget(config, 3) == (7, 7)
    config = SchedulerConfig(max_num_batched_tokens=7, disable_chunked_mm_input=True)
    with pytest.raises(ValueError, match="40 tokens and max_num_batched_tokens is 7"):
        compute_mm_encoder_budget(config, 40)
    config = SchedulerConfig(disable_chunked_mm_input=True, long_prefill_token_threshold=5)
    with pytest.raises(ValueError, match="long_prefill_token_threshold is 5"):
        compute_mm_encoder_budget(config, 40)


# ------------------------------------------------------------------ scheduling


class Worker:
    """Holds what the plan says, and looks for every image that a step needs."""

    def __init__(self, **config) -> None:
        cache = {
            name: config.pop(name) for name in ("block_size", "num_gpu_blocks") if name in config
        }
        self.scheduler = make_scheduler(
            SchedulerConfig(**config),
            CacheConfig(**({"num_gpu_blocks": 64, "block_size": 4} | cache)),
        )
        self.held: set[str] = set()
        self.encoded: list[str] = []

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.scheduler.add_request(one)

    def step(self, fail: tuple[str, ...] = ()) -> SchedulerOutput:
        scheduler = self.scheduler
        plan = scheduler.schedule()
        self.held -= set(plan.free_encoder_mm_hashes)
        made = {
            scheduler.requests[name].mm_features[index].identifier
            for name, indices in plan.scheduled_encoder_inputs.items()
            for index in indices
        }
        assert sum(map(len, plan.scheduled_encoder_inputs.values())) == len(made), "encoded twice"
        self.encoded += sorted(made)
        tokens = {}
        for name, count in plan.num_scheduled_tokens.items():
            one = scheduler.requests[name]
            start = one.num_computed_tokens - count
            for feature in one.mm_features:
                place = feature.mm_position
                if place.offset < start + count and start < place.end:
                    assert feature.identifier in self.held | made, f"{name} misses {feature}"
            if one.num_computed_tokens >= one.num_tokens:
                tokens[name] = [7]
        lost = {
            scheduler.requests[name].mm_features[index].identifier
            for name in fail
            for index in plan.scheduled_encoder_inputs.get(name, ())
        }
        self.held |= made - lost
        tokens = {name: ids for name, ids in tokens.items() if name not in fail}
        finish_step(
            scheduler, plan, ModelRunnerOutput(tokens, failed=dict.fromkeys(fail, "broken"))
        )
        manager = scheduler.encoder_cache_manager
        assert manager is not None
        known = set(manager.cached) | set(manager.freed)
        assert known == self.held | lost, "the worker is told to forget what was lost"
        return plan

    def drain(self) -> None:
        for _ in range(500):
            if not self.scheduler.requests:
                return
            self.step()
        raise AssertionError("it never ends")


def test_the_step_ends_before_an_image_that_does_not_fit() -> None:
    worker = Worker(encoder_cache_size=8, max_num_encoder_input_tokens=6)
    worker.add(request("r", 30, image(2, 6, "a"), image(12, 6, "b")))
    plan = worker.step()
    assert plan.scheduled_encoder_inputs == {"r": [0]} and plan.num_scheduled_tokens == {"r": 12}
    plan = worker.step()
    assert plan.scheduled_encoder_inputs == {"r": [1]} and plan.num_scheduled_tokens == {"r": 18}
    assert plan.free_encoder_mm_hashes == ["a"], "8 rows hold one image of 6"


def test_an_image_larger_than_the_budget_is_encoded_once_and_taken_in_chunks() -> None:
    worker = Worker(
        max_num_batched_tokens=7, encoder_cache_size=20, max_num_encoder_input_tokens=20
    )
    worker.add(request("r", 26, image(3, 20, "a")))
    plans = [worker.step() for _ in range(4)]
    assert [plan.num_scheduled_tokens["r"] for plan in plans] == [7, 7, 7, 5]
    assert worker.encoded == ["a"]


def test_the_same_image_twice_is_encoded_once() -> None:
    worker = Worker(encoder_cache_size=8)
    worker.add(request("r", 30, image(2, 6, "a"), image(12, 6, "a")))
    worker.drain()
    assert worker.encoded == ["a"]


def test_an_image_that_can_never_fit_is_refused() -> None:
    worker = Worker(encoder_cache_size=5)
    with pytest.raises(ValueError, match=r"image 0 .* has 6 tokens; encoder_cache_size is 5"):
        worker.add(request("r", 30, image(2, 6, "a")))
    assert not worker.scheduler.requests


def test_a_request_without_blocks_needs_no_image() -> None:
    """Upstream's #31857: references of a request that was not admitted filled the cache."""
    worker = Worker(encoder_cache_size=12, num_gpu_blocks=7)
    worker.add(request("a", 16, image(0, 6, "x")), request("b", 16, image(1, 6, "x")))
    worker.step()
    assert [one.request_id for one in worker.scheduler.running] == ["a"]
    assert worker.scheduler.encoder_cache_manager.cached == {"x": set()}
    worker.drain()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_aborted_request_lets_go_of_its_images(steps: int) -> None:
    """Upstream's #12545: before it begins, in the middle of an image, behind it."""
    worker = Worker(
        max_num_batched_tokens=7, encoder_cache_size=12, max_num_encoder_input_tokens=12
    )
    worker.add(request("a", 26, image(3, 6, "x")), request("b", 26, image(3, 6, "y")))
    for _ in range(steps):
        worker.step()
    worker.scheduler.finish_requests(["a", "b"], RequestStatus.FINISHED_ABORTED)
    manager = worker.scheduler.encoder_cache_manager
    assert not any(manager.cached.values()) and manager.num_freeable_slots == 12
    worker.add(request("c", 26, image(3, 12, "z")))
    worker.drain()


def test_a_failed_step_leaves_nothing_in_the_cache() -> None:
    worker = Worker(encoder_cache_size=12)
    worker.add(request("a", 16, image(0, 6, "x")))
    worker.step(fail=("a",))
    manager = worker.scheduler.encoder_cache_manager
    assert manager.cached == {} and manager.num_free_slots == manager.num_freeable_slots == 12


@pytest.mark.parametrize("begin", [0, 3])
def test_a_picture_is_not_split_where_that_is_forbidden(begin: int) -> None:
    """Upstream splits it if the step begins with it, or if it is cached: #52306."""
    worker = Worker(encoder_cache_size=12, max_num_batched_tokens=8, disable_chunked_mm_input=True)
    worker.add(request("a", 20, image(begin, 6, "x")), request("b", 20, image(begin, 6, "x")))
    for _ in range(20):
        if not worker.scheduler.requests:
            break
        plan = worker.step()
        for name, count in plan.num_scheduled_tokens.items():
            one = worker.scheduler.requests.get(name)
            if one is not None:
                end = one.num_computed_tokens
                assert not begin < end < begin + 6, f"{name} stands at {end}, in the picture"
                assert count <= 8


def test_a_victims_image_is_encoded_by_whom_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under "priority" a victim may have been planned in this step. Upstream then believes that
    its image is encoded, and the worker looks in vain."""
    ends = {"dropped": 0, "handed over": 0}
    original = EncoderInputs._hand_over

    def watch(self: EncoderInputs, victim: Request, input_id: int) -> None:
        original(self, victim, input_id)
        kept = victim.mm_features[input_id].identifier in self.manager.cached
        ends["handed over" if kept else "dropped"] += 1

    monkeypatch.setattr(EncoderInputs, "_hand_over", watch)
    for seed in range(100):
        rng = Random(seed)
        worker = Worker(
            encoder_cache_size=30,
            max_num_encoder_input_tokens=20,
            max_num_batched_tokens=24,
            policy="priority",
            num_gpu_blocks=rng.choice((14, 18)),
            long_prefill_token_threshold=rng.choice((4, 7)),
            scheduler_reserve_full_isl=False,
        )
        for n in range(6):  # the later, the more urgent: the victim stands at the head of the step
            names = rng.choices("xyz", k=4)
            images = [image(4 + 10 * k, 6, name) for k, name in enumerate(names)]
            worker.add(request(f"r{n}", 44, *images, priority=6 - n))
            for _ in range(rng.randint(1, 4)):
                worker.step()
        worker.drain()
    assert min(ends.values()) > 0, ends


def test_random_schedules_never_miss_an_image() -> None:
    for seed in range(60):
        rng = Random(seed)
        worker = Worker(
            encoder_cache_size=rng.choice((9, 14, 30)),
            max_num_encoder_input_tokens=rng.choice((9, 20)),
            max_num_batched_tokens=rng.choice((4, 9, 32)),
            max_num_seqs=rng.choice((1, 3, 8)),
            num_gpu_blocks=rng.choice((12, 20)),
            policy=rng.choice(("fcfs", "priority")),
            disable_chunked_mm_input=False,
        )
        for n in range(12):
            images, end = [], 0
            for _ in range(rng.randint(0, 3)):
                number = rng.randrange(5)
                length, offset = number + 3, end + rng.randrange(4)
                mask = tuple(k != 1 for k in range(length)) if number % 2 else None
                images.append(image(offset, length, f"i{number}", mask))
                end = offset + length
            worker.add(request(f"r{n}", end + 3, *images, priority=rng.randrange(2)))
            for _ in range(rng.randrange(3)):
                worker.step()
            if rng.random() < 0.2:
                worker.scheduler.finish_requests(f"r{n}", RequestStatus.FINISHED_ABORTED)
        worker.drain()
        manager = worker.scheduler.encoder_cache_manager
        assert not any(manager.cached.values())
        assert manager.num_freeable_slots == manager.cache_size
