"""n > 1: ids and seeds of the children."""

from __future__ import annotations

from mini_vllm.engine.parallel_sampling import child_requests
from mini_vllm.sampling_params import SamplingParams


def test_children_have_their_own_id_and_seed():
    params = SamplingParams(n=3, seed=5, stop=["x"], max_tokens=9)
    children = list(child_requests("r7", params))
    assert [request_id for request_id, _ in children] == ["0_r7", "1_r7", "2_r7"]
    assert [child.seed for _, child in children] == [5, 6, 7]
    assert all(child.n == 1 and child.max_tokens == 9 for _, child in children)
    assert params.n == 3 and params.seed == 5


def test_children_without_a_seed_are_separate_objects():
    (_, first), (_, second) = child_requests("r", SamplingParams(n=2))
    assert first.seed is None and second.seed is None
    assert first is not second


def test_a_single_completion_keeps_its_id():
    params = SamplingParams(seed=5)
    assert list(child_requests("r7", params)) == [("r7", params)]


def test_the_last_seed_has_neighbours() -> None:
    """Seeds are 64 bits, and every child's must be one that a request may have."""
    params = SamplingParams(n=3, seed=2**64 - 2)
    seeds = [child.seed for _, child in child_requests("r", params)]
    assert seeds == [2**64 - 2, 2**64 - 1, 0]
    assert all(SamplingParams(seed=seed).seed == seed for seed in seeds)
