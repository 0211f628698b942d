"""An engine that plans as the real one does: the course's scheduler, and a model that says 7."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from labkit.inside.serving.turns import SPINS, Stuck


class SmallCore:
    """Requests of 4 tokens each; `rows` of them run at once.

    Args:
        wanted: tokens that each request wants, by name, in order of arrival.
    """

    batch_queue: Sequence[Any] = ()

    def __init__(self, wanted: dict[str, int], rows: int) -> None:
        from mini_vllm.config import CacheConfig, SchedulerConfig
        from mini_vllm.core.scheduler import Scheduler
        from mini_vllm.request import Request
        from mini_vllm.sampling_params import SamplingParams

        config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=rows, max_model_len=64)
        self.scheduler = Scheduler(config, CacheConfig(4, 200), (), b"root")
        self.num_steps = 0
        for number, (name, tokens) in enumerate(wanted.items()):
            params = SamplingParams(temperature=0.0, max_tokens=tokens)
            prompt = [10 * number + i for i in range(4)]
            self.scheduler.add_request(Request(name, prompt, params, arrival_time=float(number)))

    def has_requests(self) -> bool:
        return self.scheduler.has_requests()

    def step(self) -> list[Any]:
        from mini_vllm.core.finish_step import finish_step
        from mini_vllm.core.scheduler_output import ModelRunnerOutput

        self.num_steps += 1
        if self.num_steps > SPINS:
            raise Stuck("the loop never ends")
        plan = self.scheduler.schedule()
        tokens = {name: [7] for name in plan.num_scheduled_tokens}
        return finish_step(self.scheduler, plan, ModelRunnerOutput(tokens))

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        from mini_vllm.request import RequestStatus

        return self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def release_held(self) -> None: ...

    def make_stats(self) -> None: ...


def shut_down_after(
    wanted: dict[str, int], rows: int, steps: int, seconds: float
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Run so many steps, ask for a shutdown, and run the busy loop to its end.

    Returns:
        Who was told an end and which, in this order; and the tokens that each request got.
    """
    from mini_vllm.engine.clients import core_proc
    from mini_vllm.engine.clients.messages import MessageKind

    inbox: queue.Queue[Any] = queue.Queue()
    sent: queue.Queue[Any] = queue.Queue()
    core: Any = SmallCore(wanted, rows)
    loop = core_proc.EngineCoreProc(core, inbox, sent)
    for _ in range(steps):
        loop._step()
    inbox.put((MessageKind.SHUTDOWN, seconds))
    loop._process_input_queue()
    loop.run_busy_loop()
    ends: list[tuple[str, str]] = []
    tokens = dict.fromkeys(wanted, 0)
    while not sent.empty():
        for output in sent.get()[1].outputs:
            tokens[output.request_id] += len(output.new_token_ids)
            if output.finish_reason is not None:
                ends.append((output.request_id, output.finish_reason))
    return ends, tokens
