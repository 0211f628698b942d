"""What a bug report's script calls: serve a few prompts, and say what a user sees of it.

A script runs in a process of its own, with the module of the hunt in the engine's place. It prints
what happens and no more: not where.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TIMELINE = "LABKIT_TIMELINE"
"""The environment variable that names the file for a record of every step."""
SETTINGS: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 40,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "max_model_len": 256,
    "dtype": "float32",
}
SHOWN_TEXT = 46
ADAPTERS = ("pirate", "json", "polite")


def serve(
    prompts: Sequence[Any],
    params: Sequence[dict[str, Any]] | dict[str, Any] | None = None,
    *,
    at: Sequence[int] | None = None,
    gone: dict[int, int] | None = None,
    loras: Sequence[str | None] = (),
    rounds: int = 1,
    steps: int = 300,
    **settings: Any,
) -> None:
    """Serve prompts with the storyteller, and print how each of them ended.

    Args:
        prompts: texts or lists of token ids; they are called r0, r1, …
        params: of `SamplingParams`, for all or one for each; greedy, 16 tokens, past every end.
        at: in which step each arrives; default: all before the first.
        gone: request -> the step before which its client hangs up.
        loras: the bundled adapter of each, or None.
        rounds: how often to serve all of them, one after the other, on the same engine.
        steps: after so many, say who is not done, and stop.
        settings: of `LLM`.
    """
    from mini_vllm import LLM
    from mini_vllm.observability.timeline import record_timeline

    llm = LLM("storyteller", **(SETTINGS | settings))
    with ExitStack() as stack:
        if path := os.environ.get(TIMELINE):
            stack.enter_context(record_timeline(llm.engine.core, Path(path)))
        for number in range(rounds):
            if rounds > 1:
                print(f"round {number + 1}:")
            _serve(llm, prompts, params, list(at or [0] * len(prompts)), gone or {}, loras, steps)


def _serve(
    llm: Any,
    prompts: Sequence[Any],
    params: Any,
    at: list[int],
    gone: dict[int, int],
    loras: Sequence[str | None],
    limit: int,
) -> None:
    from mini_vllm import SamplingParams

    engine, outputs = llm.engine, dict[int, Any]()
    step = computed = 0

    def count(plan: Any, results: Any, seconds: float, stats: Any) -> None:
        nonlocal computed
        computed += plan.total_num_scheduled_tokens

    engine.core.observers.append(count)
    try:
        while len(outputs) < len(prompts) or engine.has_unfinished_requests():
            for index, prompt in enumerate(prompts):
                if at[index] == step:
                    own = params[index] if isinstance(params, list | tuple) else params
                    chosen = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True} | (
                        own or {}
                    )
                    outputs[index] = engine.submit(
                        f"r{index}",
                        prompt,
                        SamplingParams(**chosen),
                        lora_request=_adapter(loras[index] if loras else None),
                    )
                if gone.get(index) == step:
                    engine.abort_requests([f"r{index}"])
            if step == limit:
                break
            _compile(engine.core.structured_output_manager)
            engine.step()
            step += 1
    except Exception as error:
        print(f"the engine ends in step {step}: {type(error).__name__}: {error}")
    engine.core.observers.remove(count)
    for index, output in sorted(outputs.items()):
        print(f"r{index}  {_ending(output, step)}")
    manager = engine.core.scheduler.kv_cache_manager
    total = llm.config.cache.num_gpu_blocks - 1
    print(f"{step} steps, {computed} tokens computed, {round(manager.usage * total)} of {total}"
          " blocks in use afterwards")  # fmt: skip
    engine.abort_requests([f"r{index}" for index in outputs])


def _compile(manager: Any) -> None:
    """Wait for grammars: how many steps one takes in its thread is no news about the module."""
    for request in manager.requests.values():
        wait([request.structured_output_request.future])


PORTFOLIO_PROMPTS = [f"Once upon a time there was a {who}" for who in ("fox", "bear", "owl", "cat")]
PORTFOLIO_TOKENS = 48


def measure() -> dict[str, str]:
    """A small run of the whole engine, as rows for the portfolio: title -> value."""
    return _measure()[0]


def recording() -> list[dict[str, Any]]:
    """The same run as the inspector reads it, a line a step."""
    return _measure()[1]


def _measure() -> tuple[dict[str, str], list[dict[str, Any]]]:
    import torch

    from mini_vllm import LLM, SamplingParams
    from mini_vllm.observability.timeline import record_timeline

    torch.set_num_threads(1)
    llm = LLM("storyteller", **(SETTINGS | {"num_gpu_blocks": 24}))
    params = SamplingParams(temperature=0.0, max_tokens=PORTFOLIO_TOKENS, ignore_eos=True)
    llm.generate(PORTFOLIO_PROMPTS[:1], params, use_tqdm=False)
    llm.engine.reset_stats()
    with record_timeline(llm.engine.core, None) as timeline:
        outputs = llm.generate(PORTFOLIO_PROMPTS, params, use_tqdm=False)
    stats = llm.engine.stats.summary()
    figures = {
        "tokens a second": f"{stats['output_tokens_per_s']:.0f}",
        "first token, median": f"{stats['ttft_p50'] * 1e3:.1f} ms",
        "each further token, median": f"{stats['tpot_p50'] * 1e3:.2f} ms",
        "preemptions": f"{stats['preemptions']:.0f}",
        "tokens": f"{sum(len(output.outputs[0].token_ids) for output in outputs)}",
    }
    return figures, timeline.records


def measure_transformers() -> str:
    """The same prompts and as many tokens with Hugging Face's `generate`: tokens a second."""
    import time

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mini_vllm.bundled import path

    torch.set_num_threads(1)
    folder = str(path("storyteller"))
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = tokenizer(PORTFOLIO_PROMPTS, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    count = PORTFOLIO_TOKENS
    wanted = {"min_new_tokens": count, "max_new_tokens": count, "do_sample": False}
    with torch.inference_mode():
        model.generate(**inputs, **(wanted | {"min_new_tokens": 2, "max_new_tokens": 2}))
        begin = time.perf_counter()
        model.generate(**inputs, **wanted)
        seconds = time.perf_counter() - begin
    return f"{len(PORTFOLIO_PROMPTS) * count / seconds:.0f}"


def measure_vllm() -> str:
    """The same with vLLM, which only some machines have. Raises ImportError without it."""
    import time

    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    from mini_vllm.bundled import path

    llm = LLM(str(path("storyteller")), dtype="float32", max_model_len=256)
    params = SamplingParams(temperature=0.0, max_tokens=PORTFOLIO_TOKENS, ignore_eos=True)
    llm.generate(PORTFOLIO_PROMPTS[:1], params, use_tqdm=False)
    begin = time.perf_counter()
    outputs = llm.generate(PORTFOLIO_PROMPTS, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return f"{sum(len(output.outputs[0].token_ids) for output in outputs) / seconds:.0f}"


def ask(name: str, num_tokens: int) -> Any:
    """A request whose prompt no other has, for scripts that have no engine."""
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    prompt = [sum(name.encode()) * 1000 + i for i in range(num_tokens)]
    return Request(name, prompt, SamplingParams(temperature=0.0, max_tokens=32), 0, 0.0)


def _adapter(name: str | None) -> Any:
    from mini_vllm.bundled import adapter_path
    from mini_vllm.lora.request import LoRARequest

    if name is None:
        return None
    return LoRARequest(name, 1 + ADAPTERS.index(name), str(adapter_path(name)))


def _ending(output: Any, step: int) -> str:
    done = output.outputs[0]
    text = repr(done.text if len(done.text) <= SHOWN_TEXT else done.text[:SHOWN_TEXT] + "…")
    if output.error:
        return f"error: {output.error}"
    if not output.finished:
        return f"not done after {step} steps: {len(done.token_ids)} tokens {text}"
    return f"{done.finish_reason}: {len(done.token_ids)} tokens {text}"
