"""The scheduler's gate: so many adapters, not so many requests."""

from __future__ import annotations

from mini_vllm.config import LoRAConfig
from mini_vllm.lora.scheduling import LoRASchedulerExtension
from mini_vllm.request import Request


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


def test_nobody_waits_for_ever():
    extension = gate(1)
    for name in ("a", "p", None):
        extension.request_added(request(name, f"r-{name}"))
    assert extension.failures() == {}
    extension.pinned = {"p"}
    assert list(extension.failures()) == ["r-a"]
    assert "all 1 are pinned to p" in extension.failures()["r-a"]
    extension.request_freed(request("a", "r-a"))
    assert extension.failures() == {} and set(extension.names.values()) == {"p"}
