"""Change request 2, on random queues; and a preempted request has begun."""

from __future__ import annotations

import queue
from random import Random
from typing import Any

import pytest

from labkit.inside.serving.small_engine import SmallCore, shut_down_after
from mini_vllm.engine.clients import core_proc
from mini_vllm.engine.clients.messages import MessageKind


@pytest.mark.parametrize("seed", range(20))
def test_change_2_any_queue(seed: int) -> None:
    rng = Random(seed)
    wanted = {f"r{i}": rng.randint(2, 9) for i in range(rng.randint(1, 7))}
    rows, steps = rng.randint(1, 4), rng.randint(0, 3)
    core = SmallCore(wanted, rows)
    ended = {out.request_id for _ in range(steps) for out in core.step() if out.finish_reason}
    running = {request.request_id for request in core.scheduler.running}
    ends, tokens = shut_down_after(wanted, rows, steps, 60.0)
    told = dict(ends)
    assert len(ends) == len(told) == len(wanted)
    for name, reason in told.items():
        begun = name in running or name in ended
        assert reason == ("length" if begun else "abort")
        assert tokens[name] == (wanted[name] if begun else 0)
    waiting = [name for name in wanted if name not in running | ended]
    after = [name for name, _ in ends if name not in ended]
    assert after[: len(waiting)] == waiting, "waiting requests are told first"


def test_change_2_a_preempted_request_is_served_to_its_end() -> None:
    core: Any = SmallCore({"ana": 8, "ben": 9, "cleo": 3}, 2)
    inbox: queue.Queue[Any] = queue.Queue()
    sent: queue.Queue[Any] = queue.Queue()
    loop = core_proc.EngineCoreProc(core, inbox, sent)
    for _ in range(3):
        loop._step()
    (ben,) = [request for request in core.scheduler.running if request.request_id == "ben"]
    core.scheduler._preempt(ben)
    inbox.put((MessageKind.SHUTDOWN, 60.0))
    loop._process_input_queue()
    loop.run_busy_loop()
    ends = {}
    while not sent.empty():
        ends |= {o.request_id: o.finish_reason for o in sent.get()[1].outputs if o.finish_reason}
    assert ends == {"ana": "length", "ben": "length", "cleo": "abort"}
