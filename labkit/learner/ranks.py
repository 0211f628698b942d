"""What `make run-10` measures: the same stories with one worker, two shards, two stages and two
engines."""

from __future__ import annotations

import importlib
import time
from typing import Any

RANK_TOKENS = 24
RANK_PROMPTS = ("Once upon a time", "The fox", "In the winter")
RANK_ENGINES: dict[str, dict[str, Any]] = {
    "one worker": {},
    "two shards": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "two engines": {"data_parallel_size": 2},
}
ABOUT_RANKS = (
    f"{len(RANK_PROMPTS)} prompts, {RANK_TOKENS} tokens each, greedy, float32: one worker, two "
    "shards, two stages, two engines; below, the weights that each worker holds"
)


def measure_ranks() -> dict[str, Any]:
    """The same prompts with every kind of parallelism; what each rank holds."""
    for module in ("distributed.collectives", "distributed.pipeline", "model.sharded_loader"):
        importlib.import_module(f"mini_vllm.{module}")  # they run elsewhere: in workers, in labs
    from mini_vllm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=RANK_TOKENS, ignore_eos=True)
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": []}
    result["seconds"] = 0.0
    for title, options in RANK_ENGINES.items():
        llm = LLM(
            "storyteller", dtype="float32", max_model_len=64, num_gpu_blocks=32, max_num_seqs=2,
            **options,
        )  # fmt: skip
        try:
            begin = time.perf_counter()
            outputs = llm.generate(list(RANK_PROMPTS), params, use_tqdm=False)
            result["seconds"] += time.perf_counter() - begin
            held = llm.collective_rpc(weights_of)
        finally:
            llm.shutdown()
        result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
        result["names"] += [f"{title}, prompt {i}" for i in range(len(outputs))]
        result["errors"] += [str(output.error) for output in outputs if output.error]
        megabytes = " + ".join(f"{size / 1e6:.1f}" for size in held)
        result["rows"].append([title, f"{megabytes} MB"])
    return result


def weights_of(worker: Any) -> int:
    """Bytes of the weights that a worker holds."""
    return sum(p.numel() * p.element_size() for p in worker.model_runner.model.parameters())
