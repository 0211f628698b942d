"""Step times of the real engine, to fit the cost model to.

A *scene* is a small crowd of requests of similar shape. The engine runs many different scenes,
and an observer writes down what each step had to do and how long it took.

Two things keep other programs out of the figures. The clock counts the CPU time of this thread,
and the model runs on no other: on an idle machine that is the time that passes. And every scene
runs several times with the very same plans, of which the shortest time of each step counts.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.arena.cost import CostModel, StepLoad, fit, relative_errors, step_load
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput

MODEL = "storyteller"
NUM_BLOCKS = 2048
NUM_HOST_BLOCKS = 64
MAX_SEQS = 64
BUDGET = 2048
MAX_MODEL_LEN = 2048
VOCAB_SIZE = 2048
LONGEST_PROMPT = 1500
MOST_TOKENS = 16_384
"""In the prompts of one scene together: the cache holds twice as many."""


@dataclass(frozen=True)
class Timed:
    """One step: its load, and its time in seconds."""

    load: StepLoad
    seconds: float


@dataclass(frozen=True)
class Scene:
    """A crowd: the prompt lengths and output lengths of its requests, how many come at once, and
    how many steps pass before the next ones come."""

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    at_once: int
    steps_between: int
    seed: int


def draw_scene(seed: int) -> Scene:
    """A random scene: from one long prompt alone to many short ones together."""
    rng = random.Random(seed)
    size = int(2 ** rng.uniform(0, 6))
    longest = min(LONGEST_PROMPT, MOST_TOKENS // size)
    typical = 2 ** rng.uniform(3, np.log2(longest))
    prompts = tuple(min(longest, max(4, int(typical * rng.uniform(0.5, 2)))) for _ in range(size))
    outputs = tuple(rng.randint(4, 32) for _ in range(size))
    return Scene(prompts, outputs, rng.randint(1, size), rng.randint(1, 4), seed)


class MovingScheduler(Scheduler):
    """Moves a few blocks about in some steps, so that swaps and copies have a price too.

    It reads random blocks and writes only to the host, which is not read, and to the null block,
    which is made for that. No request notices.
    """

    rng = random.Random(0)

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        if self.rng.random() < 0.3:
            moves = getattr(plan, self.rng.choice(MOVES))
            for _ in range(int(2 ** self.rng.uniform(0, 5))):
                moves.append((self.rng.randrange(NUM_HOST_BLOCKS), 0))
        return plan


MOVES = ("blocks_to_swap_out", "blocks_to_swap_in", "blocks_to_copy")


def make_engine(scheduler_cls: type[Scheduler] = MovingScheduler) -> Any:
    """The bundled model on the CPU, with room for every scene."""
    from mini_vllm.engine.checked_config import make_engine_config
    from mini_vllm.engine.core import EngineCore

    config = make_engine_config(
        MODEL,
        device="cpu",
        num_threads=1,
        num_gpu_blocks=NUM_BLOCKS,
        num_cpu_blocks=NUM_HOST_BLOCKS,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=BUDGET,
        max_model_len=MAX_MODEL_LEN,
    )
    return EngineCore(config, scheduler_cls=scheduler_cls)


def run_scene(engine: Any, scene: Scene) -> list[Timed]:
    """Play a scene to its end and time its steps."""
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    rng = random.Random(scene.seed)
    MovingScheduler.rng = random.Random(scene.seed)
    engine.scheduler.reset_prefix_cache()
    steps: list[Timed] = []
    begin = 0.0

    def observe(plan: SchedulerOutput, *_: Any) -> None:
        if plan.num_scheduled_tokens:
            steps.append(Timed(step_load(plan), time.thread_time() - begin))

    engine.observers[:] = [observe]
    shapes = list(enumerate(zip(scene.prompts, scene.outputs, strict=True)))
    while shapes or engine.has_requests():
        if shapes and len(steps) % scene.steps_between == 0:
            for index, (prompt_len, max_tokens) in shapes[: scene.at_once]:
                prompt = [rng.randrange(VOCAB_SIZE) for _ in range(prompt_len)]
                params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
                engine.add_request(Request(f"r{index}", prompt, params))
            del shapes[: scene.at_once]
        begin = time.thread_time()
        engine.step()
    return steps


def measure(
    num_scenes: int, repeats: int, seed: int, tick: Callable[[], object] = lambda: None
) -> Iterator[list[Timed]]:
    """Run scenes on a fresh engine; yields the steps of each, with their best times."""
    engine = make_engine()
    for warm_up in range(3):
        run_scene(engine, draw_scene(seed - 1 - warm_up))
    for number in range(num_scenes):
        scene = draw_scene(seed + number)
        runs = [run_scene(engine, scene) for _ in range(repeats)]
        loads = [[step.load for step in run] for run in runs]
        if any(other != loads[0] for other in loads[1:]):
            raise RuntimeError(f"scene {scene.seed} took other steps when it ran again")
        times = zip(*([step.seconds for step in run] for run in runs), strict=True)
        yield [Timed(load, min(some)) for load, some in zip(loads[0], times, strict=True)]
        tick()


def fit_and_judge(scenes: list[list[Timed]], repeats: int, seed: int) -> CostModel:
    """Fit to every second scene, and judge by the others, which the fit has not seen.

    Args:
        scenes: what :func:`measure` yielded.
        repeats, seed: how it was called, for the record.
    """
    known = [step for scene in scenes[::2] for step in scene]
    held_out = [step for scene in scenes[1::2] for step in scene]
    model = fit([step.load for step in known], [step.seconds for step in known])
    facts = {
        "name": f"{MODEL}-cpu",
        "measured": {"scenes": len(scenes), "repeats": repeats, "seed": seed, "clock": "CPU time"},
        "error_on_held_out_steps": {**judge(model, held_out), "steps_fitted": len(known)},
        "machine": machine(),
    }
    return CostModel(model.prices, facts)


def judge(model: CostModel, steps: list[Timed]) -> dict[str, Any]:
    """How far a model is off on steps that it was not fitted to: half of them and nine of ten are
    predicted better than so, and their sum is off by "total"."""
    loads, seconds = [step.load for step in steps], [step.seconds for step in steps]
    errors = relative_errors(model, loads, seconds)
    return {
        "median": round(float(np.median(errors)), 4),
        "p90": round(float(np.quantile(errors, 0.9)), 4),
        "total": round(sum(map(model.seconds, loads)) / sum(seconds) - 1, 4),
        "steps_held_out": len(steps),
    }


def machine() -> dict[str, Any]:
    """Where the times come from."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """The processor's name, as the system tells it."""
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.is_file() else []
    found = [line.split(":")[1].strip() for line in names if line.startswith("model name")]
    return found[0] if found else platform.processor()
