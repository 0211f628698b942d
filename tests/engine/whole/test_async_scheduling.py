"""Chapter 00/04's pages on late results: `benchmarks/async_scheduling.py` and the state by hand."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from benchmarks.async_scheduling import experiment, table
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

CHAPTER = Path(__file__).parents[3] / "phases" / "00-orientation" / "04-the-whole-machine.md"


def test_the_chapter_prints_what_the_command_prints() -> None:
    plain, late = experiment(num_requests=24, num_blocks=33)
    assert plain.tokens == late.tokens
    assert late.num_superfluous > 0, "some request must have ended unforeseen"
    assert plain.num_superfluous == 0
    assert late.num_preemptions > 0
    assert f"async-scheduling\n{table(plain, late)}\n```" in CHAPTER.read_text("utf-8")


def test_the_worked_state_of_the_chapter() -> None:
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_batched_tokens=16, max_num_seqs=4, max_model_len=64, async_scheduling=True
        ),
        CacheConfig(block_size=4, num_gpu_blocks=16),
    )
    request = Request("fox", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4))
    scheduler.add_request(request)
    on_their_way: deque[SchedulerOutput] = deque()
    rows = []
    for turn in range(5):
        plan = scheduler.schedule()
        planned = plan.num_scheduled_tokens.get("fox", 0)
        counts = (request.num_computed_tokens, request.num_tokens, request.num_output_placeholders)
        rows.append((turn, planned, *counts))
        if planned:
            on_their_way.append(plan)
        if turn > 0:
            scheduler.update_from_output(on_their_way.popleft(), {"fox": [100 + turn]})
    assert request.is_finished
    shown = re.findall(r"(?m)^ (\d)     (\d|-) +(\d) +(\d) +(\d) ", CHAPTER.read_text("utf-8"))
    assert rows == [tuple(int(n) if n != "-" else 0 for n in row) for row in shown]
