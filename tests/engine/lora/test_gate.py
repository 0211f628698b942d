"""The scheduler's gate: so many adapters, not so many requests."""

from __future__ import annotations

from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.lora.scheduling import LoRASchedulerExtension
from mini_vllm.request import Request, RequestStatus


def request(name: str | None, request_id: str = "r") -> Request:
    return Request(request_id, [1], lora_name=name)


def gate(max_loras: int) -> LoRASchedulerExtension:
    return LoRASchedulerExtension(LoRAConfig(max_loras=max_loras))


def test_counts_adapters_and_not_requests():
    running = [request("a"), request("a"), request(None), request("b")]
    assert gate(2).may_admit(request("a"), running)
    assert gate(2).may_admit(request("b"), running)
    assert gate(2).may_admit(request(None), running)
    assert not gate(2).may_admit(request("c"), running)
    assert gate(3).may_admit(request("c"), running)


def test_the_base_needs_no_slot():
    assert gate(1).may_admit(request("a"), [request(None)] * 5)
    assert gate(1).may_admit(request(None), [request("a")])
    assert gate(1).may_admit(request("a"), [])


def test_pinned_adapters_keep_their_slots():
    extension = gate(2)
    extension.pinned = {"p"}
    assert extension.may_admit(request("a"), []) and extension.may_admit(request("p"), [])
    assert not extension.may_admit(request("b"), [request("a")])
    assert extension.may_admit(request("p"), [request("a")])


def test_a_request_that_can_never_get_a_slot_fails():
    extension = gate(1)
    for name in ("a", "p", None):
        extension.request_added(request(name, f"r-{name}"))
    assert extension.failures() == {}
    extension.pinned = {"p"}
    assert list(extension.failures()) == ["r-a"]
    assert "all 1 are pinned to p" in extension.failures()["r-a"]
    extension.request_freed(request("a", "r-a"))
    assert extension.failures() == {} and set(extension.names.values()) == {"p"}


def test_the_queue_goes_on_behind_a_request_that_waits() -> None:
    """Skipped, not stopped (H8): and asked first in the next step."""
    scheduler = make_scheduler(
        SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64),
        CacheConfig(block_size=4, num_gpu_blocks=64),
        lora=LoRAConfig(max_loras=1),
    )
    for request_id, name in (("a", "x"), ("b", "y"), ("c", None), ("d", "x"), ("e", "y")):
        scheduler.add_request(Request(request_id, [1, 2, 3], lora_name=name))
    plan = scheduler.schedule()
    assert list(plan.num_scheduled_tokens) == ["a", "c", "d"]
    assert [r.request_id for r in scheduler.skipped_waiting] == ["b", "e"]
    scheduler.update_from_output(plan, {"a": [5], "c": [5], "d": [5]})
    scheduler.finish_requests(["a", "d"], RequestStatus.FINISHED_ABORTED)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["c", "b", "e"]


def test_a_long_prompt_holds_its_slot_between_its_chunks() -> None:
    """Its adapter is counted while a prompt is read in chunks (H17)."""
    scheduler = make_scheduler(
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=8, max_model_len=64),
        CacheConfig(block_size=4, num_gpu_blocks=64),
        lora=LoRAConfig(max_loras=1),
    )
    scheduler.add_request(Request("long", list(range(20)), lora_name="x"))
    scheduler.add_request(Request("other", [1, 2], lora_name="y"))
    for expected in ({"long": 8}, {"long": 8}, {"long": 4}):
        plan = scheduler.schedule()
        assert plan.num_scheduled_tokens == expected
        scheduler.update_from_output(plan, {"long": [7]} if expected == {"long": 4} else {})
