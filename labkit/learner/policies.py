"""What `make run-16` measures: one load under every policy of the phase, and a fleet's requests."""

from __future__ import annotations

import time
from typing import Any

PROMPTS = ("Once upon a time", "The fox met a bear, and together they", "In the winter", "The moon")
TOKENS = 24
SETTINGS: dict[str, Any] = {
    "block_size": 8,
    "num_gpu_blocks": 13,
    "num_cpu_blocks": 40,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 4,
    "max_model_len": 128,
    "dtype": "float32",
}
FLEET_REQUESTS = 60
ABOUT_POLICIES = (
    f"{len(PROMPTS)} prompts, {TOKENS} tokens each, two answers to the last, under each policy;"
    f" then {FLEET_REQUESTS} requests to a fleet: how many kept both promises"
)


def measure_policies() -> dict[str, Any]:
    """The same prompts on a pool that is too small, under V1 and the learner's schedulers; and two
    fleet policies of the learner's on a trace of documents."""
    from labkit.arena.fleet.contest import FleetMatch, play_class
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.policies.capstone import Capstone
    from mini_vllm.policies.capstone_fleet import CapstoneFleet
    from mini_vllm.policies.fleet import EarliestFirstToken

    begin = time.perf_counter()
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": []}
    options: dict[str, Any] = {"temperature": 0.8, "max_tokens": TOKENS, "ignore_eos": True}
    policies = {name: name for name in ("vllm-v1", "minivllm", "vllm-v0")} | {"capstone": Capstone}
    for title, policy in policies.items():
        llm = LLM("storyteller", scheduler_cls=policy, **SETTINGS)
        params = [
            SamplingParams(seed=seed, n=1 + (seed == len(PROMPTS)), **options)
            for seed in range(1, len(PROMPTS) + 1)
        ]
        outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
        result["tokens"] += [list(part.token_ids) for out in outputs for part in out.outputs]
        result["names"] += [
            f"{title}, prompt {i}" for i, o in enumerate(outputs) for _ in o.outputs
        ]
        result["errors"] += [str(output.error) for output in outputs if output.error]
        stats = llm.engine.stats.summary()
        told = f"{stats['steps']:.0f}, {stats['preemptions']:.0f}"
        result["rows"].append([f"{title}: steps, preemptions", told])
    for fleet in (EarliestFirstToken, CapstoneFleet):
        figures = play_class(FleetMatch("", "documents", requests=FLEET_REQUESTS), fleet)
        title = f"{fleet.__name__}: in time"
        result["rows"].append([title, f"{figures.in_time} of {figures.requests}"])
    return result | {"seconds": time.perf_counter() - begin}
