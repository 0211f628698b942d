"""The part `decode` of `gpu-report`: how long a token takes, by the number of requests.

For two shapes and several batches: the time of a step in which *all* requests decode, beside the
least that its bytes take, what the kernels of a step take together, and the target. Steps in which
a request begins or has ended are left out: they are no steps of that batch.

On the device "cpu", with small shapes, the same code says how it counts; see its test.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.gpu.workload import SHAPE, compilations, num_weights, write_model

LARGE = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
"""Of Qwen3-8B, but with one matrix for embedding and output."""
SHAPES = {"0.6B": SHAPE, "8B": LARGE}
BATCHES = ((1, 128), (16, 128), (256, 128))
"""Requests, and tokens of each prompt."""
NEW_TOKENS = 64
TARGETS_MS = {("0.6B", 1): 1.7, ("0.6B", 256): 3.7, ("8B", 1): 7.0, ("8B", 256): 10.6}
"""Of an H100: what a token should take."""


FEW_TOKENS, TARGET_FEW_MS = 8, 10.0
"""A prompt of so many tokens is no step of decodes, so the host launches its operations one by one.
If that takes longer than the target, each prompt that arrives holds up all decodes, and recorded
steps of mixed sizes are worth having."""
CALLS = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")
"""By which the host tells the GPU to do something, as the profiler names them."""
TARGET_CALLS = 10
"""Of a step of decodes, whatever the shape: the arrays in one copy, one launch for the inputs of a
graph, one replay of the model, four around that of the head and the sampler, and the tokens' way
back."""


@dataclass(frozen=True)
class Step:
    """A step that the engine has taken in."""

    at: float
    num_requests: int
    num_tokens: int


class Steps(list[Step]):
    """An observer of the engine core that notes when each step was taken in."""

    def __call__(self, plan: Any, *_: Any) -> None:
        scheduled = plan.num_scheduled_tokens
        self.append(Step(time.perf_counter(), len(scheduled), plan.total_num_scheduled_tokens))

    def decode_ms(self, num_requests: int) -> tuple[float, int]:
        """Median time from one such step to the next, and how many there were.

        Only steps in which all `num_requests` decode, behind another one: the time between them is
        that of a step, also when the next one is started before this one is taken in.
        """
        whole = [(s.num_requests, s.num_tokens) == (num_requests, num_requests) for s in self]
        gaps = [
            1e3 * (self[i].at - self[i - 1].at)
            for i in range(1, len(self))
            if whole[i] and whole[i - 1]
        ]
        return (statistics.median(gaps), len(gaps)) if gaps else (0.0, 0)


def least_step_bytes(shape: dict[str, int], num_requests: int, context: int) -> int:
    """Bytes that a decode step must read in bfloat16: the weights, and each context's keys and
    values."""
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    return 2 * (num_weights(shape) + token * num_requests * context)


def measure(
    name: str,
    bandwidth: float,
    device: str = "cuda",
    shape: dict[str, int] | None = None,
    batches: Sequence[tuple[int, int]] = BATCHES,
    new_tokens: int = NEW_TOKENS,
) -> dict[str, Any]:
    """A row for each batch of one shape, on random weights.

    Args:
        name: of the shape.
        bandwidth: bytes a second that this device copies.
    """
    from mini_vllm import LLM

    shape = shape or SHAPES[name]
    longest = max(length for _, length in batches) + new_tokens
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), shape)
        llm = LLM(
            folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", device=device,
            max_model_len=longest, max_num_seqs=max(n for n, _ in batches),
            max_num_batched_tokens=16384, enable_prefix_caching=False,
        )  # fmt: skip
    rows = [_row(llm, shape, bandwidth, name, batch, new_tokens) for batch in batches]
    few_ms = _few_tokens_ms(llm)
    late = llm.engine.core.config.scheduler.async_scheduling
    llm.shutdown()
    result: dict[str, Any] = {
        "rows": rows,
        "few_tokens_ms": few_ms,
        "async_scheduling": late,
    }
    if compiled := sorted({kernel for row in rows for kernel in row["compiled"]}):
        result["wrong"] = f"compiled inside a timed run: {', '.join(compiled)}"
    return result


def _row(
    llm: Any,
    shape: dict[str, int],
    bandwidth: float,
    name: str,
    batch: tuple[int, int],
    new_tokens: int,
) -> dict[str, Any]:
    num_requests, length = batch
    _generate(llm, num_requests, length, min(8, new_tokens))  # compiles what this batch needs
    steps = Steps()
    llm.engine.core.observers.append(steps)
    with compilations() as compiled:
        _generate(llm, num_requests, length, new_tokens)
    llm.engine.core.observers.remove(steps)
    median, count = steps.decode_ms(num_requests)
    floor = least_step_bytes(shape, num_requests, length + new_tokens // 2)
    target = TARGETS_MS.get((name, num_requests))
    return {
        "requests": num_requests, "context": length + new_tokens // 2, "steps": count,
        "ms": median, "floor_ms": 1e3 * floor / bandwidth, "target_ms": target,
        "met": None if target is None else median <= target,
        "compiled": compiled,
    } | _of_the_device(llm, num_requests, length, new_tokens)  # fmt: skip


def _few_tokens_ms(llm: Any) -> float:
    """Median time from a prompt of `FEW_TOKENS` tokens to its answer of one token: a warm step that
    is not recorded, and the request's way in and out."""
    times = []
    for _ in range(23):
        begin = time.perf_counter()
        _generate(llm, 1, FEW_TOKENS, 1)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[3:])  # the first ones compile what such a step needs


def _generate(llm: Any, num_requests: int, length: int, new_tokens: int) -> None:
    from mini_vllm import SamplingParams

    prompts = [[(7 * i + k) % 1000 + 2 for k in range(length)] for i in range(num_requests)]
    params = SamplingParams(temperature=0.6, max_tokens=new_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    if errors := [output.error for output in outputs if output.error]:
        raise RuntimeError(errors[0])


def _of_the_device(
    llm: Any, num_requests: int, length: int, new_tokens: int
) -> dict[str, float | None]:
    """What the device was busy with in a decode step, the rest of which it waited; and by how many
    calls it was told. None where there is no such device.

    The profiler slows the host down and not the kernels, so the time of a step comes from a run
    without it. Two profiled runs, one with prompts alone: their difference is the decodes.
    """
    import torch

    if not torch.cuda.is_available() or llm.engine.core.config.model.device == "cpu":
        return {"kernels_ms": None, "calls": None}

    def busy(count: int) -> tuple[float, int]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            _generate(llm, num_requests, length, count)
            torch.cuda.synchronize()
        events = profile.key_averages()
        calls = sum(event.count for event in events if event.key.startswith(CALLS))
        return sum(event.self_device_time_total for event in events) / 1e3, calls

    steps = min(16, new_tokens - 1)
    (more_ms, more), (less_ms, less) = busy(steps + 1), busy(1)
    return {"kernels_ms": (more_ms - less_ms) / steps, "calls": (more - less) / steps or None}
