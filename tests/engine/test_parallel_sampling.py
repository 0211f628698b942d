"""n > 1: ids, seeds and the order of completions."""

from __future__ import annotations

from mini_vllm.engine.parallel_sampling import ParentRequest
from mini_vllm.sampling_params import SamplingParams


def test_children_have_their_own_id_and_seed():
    parent = ParentRequest("r7", SamplingParams(n=3, seed=5, stop=["x"], max_tokens=9))
    children = [parent.get_child_info(index) for index in range(parent.n)]
    assert [request_id for request_id, _ in children] == ["0_r7", "1_r7", "2_r7"]
    assert [params.seed for _, params in children] == [5, 6, 7]
    assert all(params.n == 1 and params.max_tokens == 9 for _, params in children)
    assert parent.sampling_params.n == 3 and parent.sampling_params.seed == 5


def test_children_without_a_seed_are_separate_objects():
    parent = ParentRequest("r", SamplingParams(n=2))
    (_, first), (_, second) = (parent.get_child_info(index) for index in range(2))
    assert first.seed is None and second.seed is None
    assert first is not second


def test_completions_come_back_together_and_in_order():
    parent: ParentRequest[str] = ParentRequest("r", SamplingParams(n=3))
    assert parent.add_completion(2, "c") is None
    assert parent.add_completion(0, "a") is None
    assert parent.add_completion(1, "b") == ["a", "b", "c"]
