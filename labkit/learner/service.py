"""What `make run-14` measures: an engine in a process of its own, and readers of both kinds."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

READERS, TOKENS, SLOW = 8, 40, 0.05
ABOUT_SERVICE = (
    f"{READERS} streams of {TOKENS} tokens from an engine process; half of the readers sleep "
    f"{SLOW * 1000:.0f} ms after each output, one leaves after 3 tokens"
)


def measure_service() -> dict[str, Any]:
    """Streams through `AsyncLLM`: what each reader got, in how many outputs, and when."""
    import mini_vllm.engine.clients.core_proc  # noqa: F401  (its loop runs in the other process)
    from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM

    options: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks": 200, "max_model_len": 256}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs("storyteller", **options))
    try:
        return asyncio.run(serve(engine))
    finally:
        engine.shutdown()


async def serve(engine: Any) -> dict[str, Any]:
    from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        temperature=0.0, max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )

    async def read(number: int, pause: float, most: int) -> dict[str, Any]:
        begin, tokens, outputs, first = time.perf_counter(), [], 0, 0.0
        stream = engine.generate(f"Once upon a time {number}", params, f"reader {number}")
        try:
            async for output in stream:
                first = first or time.perf_counter() - begin
                outputs += 1
                tokens += output.outputs[0].token_ids
                if len(tokens) >= most:
                    break
                await asyncio.sleep(pause)
        finally:
            await stream.aclose()
        return {"tokens": tokens, "outputs": outputs, "first": first}

    await read(99, 0, TOKENS)  # warms up
    begin = time.perf_counter()
    seen = await asyncio.gather(
        *(read(number, SLOW * (number % 2), TOKENS) for number in range(READERS)),
        read(READERS, 0, 3),
    )
    seconds = time.perf_counter() - begin
    *readers, _gone = seen
    left = await engine.call("make_stats")
    fast, slow = readers[::2], readers[1::2]
    rows = [
        ["TTFT, median", f"{median(reader['first'] for reader in readers) * 1000:.1f} ms"],
        ["outputs, who reads at once", f"{median(reader['outputs'] for reader in fast):.0f}"],
        ["outputs, who sleeps", f"{median(reader['outputs'] for reader in slow):.0f}"],
        ["running after the last", str(left["num_running_reqs"])],
    ]
    return {
        "tokens": [reader["tokens"] for reader in readers],
        "names": [f"reader {number}" for number in range(READERS)],
        "errors": [],
        "rows": rows,
        "seconds": seconds,
    }
