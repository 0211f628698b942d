"""One decode step of the engine on this CPU, as figures for `classify_step` of phase 19.

A CPU is host and device in one, and no profiler tells the two apart. So they are separated by what
can be measured: how long a step takes, how long of it the model and the sampler compute, how many
operations of torch they start, and what it costs to start one that has nothing to do.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.arena.measure import processor
from labkit.course.files import write_text
from mini_vllm.observability.bottleneck import Stacks, StepProfile
from mini_vllm.observability.roofline import Machine, measure_machine, step_cost

REQUESTS, WARM_UP, STEPS = 4, 10, 60
PROMPT = "Once upon a time"


@contextmanager
def timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add the seconds of each call of a method to `spent[-1]`."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent[-1] += time.perf_counter() - begin

    setattr(owner, name, call)
    try:
        yield
    finally:
        delattr(owner, name)


def median_step(step: Callable[[], Any], worker: Any) -> tuple[float, float]:
    """Seconds of a step, and of those in which the model computes: medians of STEPS steps."""
    whole: list[float] = []
    inside: list[float] = []
    with timed(worker.model, "forward", inside), timed(worker.model, "compute_logits", inside):
        for _ in range(STEPS):
            inside.append(0.0)
            begin = time.perf_counter()
            step()
            whole.append(time.perf_counter() - begin)
    return statistics.median(whole), statistics.median(inside)


def count_operations(step: Callable[[], Any]) -> int:
    """Operations of torch that one step starts; those that an operation starts itself are in it."""
    from torch.profiler import profile

    with profile() as recording:
        step()
    return sum(event.cpu_parent is None for event in recording.events() or [])


def seconds_of_a_launch() -> float:
    """What an operation on one number takes: all of it is getting there."""
    import torch

    one, repeats = torch.ones(1), 2000

    def run() -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            torch.add(one, one, out=one)
        return (time.perf_counter() - begin) / repeats

    return min(run() for _ in range(7))


def seconds_to_read(num_bytes: int) -> float:
    """Reading so many bytes again and again takes: they may lie in a cache, as a step's do."""
    import torch

    data = torch.ones(max(num_bytes // 4, 1))

    def run() -> float:
        begin = time.perf_counter()
        data.sum()
        return time.perf_counter() - begin

    return min(run() for _ in range(50))


def measure_step() -> tuple[StepProfile, Machine]:
    """The bundled model decodes for some requests on one thread; medians of many steps."""
    import torch

    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller", num_gpu_blocks=512, num_threads=1)
    engine: Any = llm.engine
    worker = engine.core.executor.worker
    params = SamplingParams(max_tokens=256, temperature=0.0, ignore_eos=True)
    for number in range(REQUESTS):
        engine.add_request(str(number), PROMPT, params)
    for _ in range(WARM_UP):
        engine.step()
    seconds, inside = median_step(engine.step, worker)
    launches = count_operations(engine.step)
    length = len(llm.get_tokenizer().encode(PROMPT)) + WARM_UP + STEPS // 2
    llm.shutdown()
    torch.set_num_threads(1)
    machine, launch = measure_machine(), seconds_of_a_launch()
    size = worker.model.dtype.itemsize
    cost = step_cost(worker.model.config, [1] * REQUESTS, [length] * REQUESTS, size)
    kernels = max(inside - launches * launch, 0.0)
    return StepProfile(
        seconds=seconds,
        kernel_seconds=kernels,
        num_launches=launches,
        launch_seconds=launch,
        memory_seconds=seconds_to_read(int(cost.bytes)),
        arithmetic_seconds=cost.flops / machine.flops_per_s,
    ), machine


def as_toml(profile: StepProfile, machine: Machine) -> str:
    """The figures with what they are, and the machine that they are of."""
    import torch

    return f"""# One decode step of {REQUESTS} requests, the bundled model on one thread of a CPU:
# {processor()}, torch {torch.__version__},
# {machine.flops_per_s / 1e9:.1f} GFLOP/s; {machine.bytes_per_s / 1e9:.1f} GB/s from main memory.
# Written by: make profile ARGS="--save FOLDER"
seconds = {profile.seconds:.3e}  # median of {STEPS} steps
kernel_seconds = {profile.kernel_seconds:.3e}  # in the model, less its launches
num_launches = {profile.num_launches}  # operations of torch in a step
launch_seconds = {profile.launch_seconds:.3e}  # of an operation on one number
memory_seconds = {profile.memory_seconds:.3e}  # to read as many bytes, cached or not
arithmetic_seconds = {profile.arithmetic_seconds:.3e}  # its operations at the peak
"""


def as_lines(stacks: Stacks) -> str:
    """A line for each stack from the engine's first function on, the longest time first."""
    found: Counter[tuple[str, ...]] = Counter()
    for stack, seconds in stacks.items():
        begin = next((i for i, name in enumerate(stack) if name.startswith("mini_vllm/")), 0)
        found[stack[begin:]] += seconds  # type: ignore[assignment]
    rows = sorted(found.items(), key=lambda row: (-row[1], row[0]))
    return "".join(f"{';'.join(stack)} {seconds:.3f}\n" for stack, seconds in rows)


def save_figures(folder: Path, host: Stacks) -> None:
    """Write `cpu-stacks.txt` and `cpu.toml`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "cpu-stacks.txt", as_lines(host))
    write_text(folder / "cpu.toml", as_toml(*measure_step()))
    print(f"wrote cpu-stacks.txt and cpu.toml in {folder}")
