"""A scheduler whose connector brings KV, beside the reference; and fetches under a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=20)
KV = "mini_vllm.kv_transfer."


def new_scheduler(p: Program, connector: Any, num_blocks: int, budget: int, rows: int) -> Any:
    return p.call(
        "mini_vllm.engine.parts.features:make_scheduler",
        p.new(
            "mini_vllm.config:SchedulerConfig",
            max_num_batched_tokens=budget,
            max_num_seqs=rows,
            max_model_len=64,
        ),
        p.new("mini_vllm.config:CacheConfig", block_size=4, num_gpu_blocks=num_blocks),
        connector=connector,
        hash_root=b"n" * 32,
    )


@many
@given(data=st.data())
def test_15_6_any_load(subject: Any, reference: Any, data: Any) -> None:
    """Offers of any size, a whole prompt of 13 among them, in pools of any size: blocks, order,
    budget and what can be found."""
    p = Program()
    connector = p.new("types:SimpleNamespace")
    offers = data.draw(st.lists(st.integers(0, 13), min_size=4, max_size=4))
    answers = [(offer, offer > 0) for offer in offers]
    ask = p.new("unittest.mock:Mock", side_effect=[*answers, *[(0, False)] * 20])
    p.set(connector, "get_num_new_matched_tokens", ask)
    for name in ("update_state_after_alloc", "build_connector_meta", "update_connector_output"):
        p.set(connector, name, p.new("unittest.mock:Mock", return_value=None))
    p.set(connector, "request_finished", p.new("unittest.mock:Mock", return_value=(False, None)))
    blocks, budget = data.draw(st.integers(6, 20)), data.draw(st.integers(1, 30))
    scheduler = new_scheduler(p, connector, blocks, budget, data.draw(st.integers(1, 3)))
    requests = []
    for number in range(4):
        prompt = [100 * number + i for i in range(13)]
        request = p.new("mini_vllm.request:Request", f"r{number}", prompt, arrival_time=0.0)
        scheduler.add_request(request)
        requests.append(request)
    plan = scheduler.schedule()
    p.see(plan.num_scheduled_tokens)
    for request in requests:
        p.see([request.num_computed_tokens, request.num_cached_tokens])
        p.see(p.call("builtins:str", request.status))
        p.see(scheduler.kv_cache_manager.get_block_ids(request.request_id))
    p.see(scheduler.transfers.loading)
    p.see_each(scheduler.skipped_waiting, "request_id")
    p.see_each(scheduler.waiting, "request_id")
    p.see(p.call("builtins:sorted", scheduler.kv_cache_manager.block_pool.cached_blocks))
    scheduler.check_integrity()
    assert subject.run(p) == reference.run(p)


@many
@given(data=st.data())
def test_15_12_any_fetch(subject: Any, reference: Any, data: Any) -> None:
    """Answers before, after and without their deadline: each is told of once, none comes late."""
    p = Program()
    config = p.new(
        "mini_vllm.config:KVTransferConfig", "P2pTcpConnector", "kv_consumer", engine_id="south"
    )
    context = p.new(f"{KV}base:ConnectorContext", b"n" * 32, 4, 16, 64)
    role = p.name(f"{KV}base:KVConnectorRole.WORKER")
    south = p.new(f"{KV}p2p:P2pTcpConnector", config, role, context)
    place, tell = p.new("unittest.mock:Mock"), p.new("unittest.mock:Mock")
    p.set(south, "_place", place)
    p.set(south, "_tell_done", tell)
    answers = []
    for number, name in enumerate(("ada", "ben", "cyd")):
        source = p.new(f"{KV}params:RemotePrefill", "north", name, "l", "127.0.0.1", 1, [5], 4)
        pull = p.new(f"{KV}p2p:Pull", source, [5], [number + 1])
        answer = p.new("concurrent.futures:Future")
        answer.set_running_or_notify_cancel()
        deadline = data.draw(st.sampled_from([-1.0, 1e18]))
        south.fetches.update({name: p.new(f"{KV}p2p:Fetch", pull, deadline, answer)})
        answers.append(answer)
    waiting = list(answers)
    for _ in range(3):
        if waiting and data.draw(st.booleans()):
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1))).set_result(b"kv")
        p.see(south.get_finished(p.call("builtins:set")))
        p.see([south.invalid, place.call_count, tell.call_count])
        p.see(p.call("builtins:sorted", south.fetches))
    assert subject.run(p) == reference.run(p)


@pytest.mark.parametrize(("fetch", "lease"), [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_15_12_on_the_clock_of_its_deadline(subject: Any, fetch: int, lease: int) -> None:
    """Hours from now on the monotonic clock: neither waits for the other, and a fetch whose request
    has ended is waited for like any other, for it still writes."""
    p = Program()
    config = p.new(
        "mini_vllm.config:KVTransferConfig", "P2pTcpConnector", "kv_both", engine_id="south"
    )
    context = p.new(f"{KV}base:ConnectorContext", b"n" * 32, 4, 16, 64)
    role = p.name(f"{KV}base:KVConnectorRole.WORKER")
    south = p.new(f"{KV}p2p:P2pTcpConnector", config, role, context)
    p.set(south, "_tell_done", p.new("unittest.mock:Mock"))
    source = p.new(f"{KV}params:RemotePrefill", "north", "ada", "l", "127.0.0.1", 1, [5], 4)
    pull, answer = p.new(f"{KV}p2p:Pull", source, [5], [1]), p.new("concurrent.futures:Future")
    late, over = (
        p.call("operator:add", p.call("time:monotonic"), 3600.0 * hours) for hours in (fetch, lease)
    )
    south.fetches.update({"ada": p.new(f"{KV}p2p:Fetch", pull, late, answer)})
    south.leases.leases.update({"ben": p.new(f"{KV}leases:Lease", "l", [4], over)})
    p.see(south.get_finished(p.call("builtins:set", ["ada"])))
    p.see([p.call("builtins:sorted", south.fetches), p.call("builtins:sorted", south.invalid)])
    (ended, received), left = subject.run(p)
    assert ended == ({"ben"} if lease < 0 else set())
    assert received == ({"ada"} if fetch < 0 else set())
    assert left == ([[], [1]] if fetch < 0 else [["ada"], []])


@pytest.mark.parametrize("deadline", [99.0, 100.0, 101.0])
def test_15_12_at_its_deadline_and_a_moment_before(subject: Any, deadline: float) -> None:
    """The clock says 100. ada's answer is still to come, and ben's is an error: it is there, so it
    is put in place like any other, which finds out."""
    p = Program()
    names = p.execute(
        f"""
from concurrent.futures import Future
from unittest.mock import Mock, patch
from {KV}base import ConnectorContext, KVConnectorRole
from {KV}p2p import Fetch, P2pTcpConnector, Pull
from {KV}params import RemotePrefill
from mini_vllm.config import KVTransferConfig

config = KVTransferConfig("P2pTcpConnector", "kv_consumer", engine_id="south")
context = ConnectorContext(b"n" * 32, 4, 16, 64)
south = P2pTcpConnector(config, KVConnectorRole.WORKER, context)
south._tell_done, south._place = Mock(), Mock()
answers = [Future(), Future()]
answers[1].set_exception(ConnectionError("it fell"))
for number, (name, answer) in enumerate(zip(("ada", "ben"), answers), 1):
    source = RemotePrefill("north", name, "l", "127.0.0.1", 1, [5], 4)
    south.fetches[name] = Fetch(Pull(source, [5], [number]), deadline, answer)
with patch("time.monotonic", return_value=100.0):
    ended, received = south.get_finished(set())
told = [sorted(received), sorted(south.invalid), south._place.call_count]
""",
        deadline=deadline,
    )
    p.see(names["told"])
    over = deadline <= 100
    assert subject.run(p) == [[["ada", "ben"] if over else ["ben"], [1] if over else [], 1]]
