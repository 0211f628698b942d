"""What `make run-17` measures: four tiny families beside transformers' answers, who is hot in them,
and the prompts as vectors."""

from __future__ import annotations

import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

FAMILIES = ("mixtral", "deepseek_v3", "gpt_oss", "flex_olmo")
ABOUT_MIXTURES = (
    f"{len(FAMILIES)} tiny families of drawn weights, 5 prompts each, 12 tokens, greedy, float32: "
    "answers that are transformers', which experts had the tokens, what the busiest of 2 ranks "
    "would have to do"
)


def measure_mixtures() -> dict[str, Any]:
    """Each family in the engine; then two prompts as embeddings of one of them."""
    import torch

    from benchmarks.families.record import read
    from mini_vllm.distributed.eplb.picture import forecast, heat_map

    # These run on a GPU, and where a model differs.
    for module in ("kernels.moe_layout", "kernels.grouped_gemm", "model.bring_up"):
        importlib.import_module(f"mini_vllm.{module}")
    answers = read()
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": [], "notes": []}
    begin = time.perf_counter()
    for name in FAMILIES:
        tokens, counts = run_family(answers[name])
        wanted, loads = answers[name]["tokens"], torch.stack(counts)
        same = sum(ours == theirs for ours, theirs in zip(tokens, wanted, strict=True))
        hottest = float((loads.max(1).values / loads.double().mean(1)).max())
        first, second = (line.split()[-2] for line in forecast(loads, 2, 2)[1:])
        result["rows"] += [
            [f"{name}: as transformers", f"{same} of {len(wanted)}"],
            [f"{name}: hottest expert", f"{hottest:.1f} x its share"],
            [f"{name}: busiest rank", f"{first} x, then {second} x"],
        ]
        result["notes"] += [name, *heat_map(loads)]
        result["tokens"] += tokens
        result["names"] += [f"{name}, prompt {index}" for index in range(len(tokens))]
    alike, rounded = embeddings(answers["flex_olmo"])
    result["rows"].append(["cosine of prompts 3 and 4", f"{alike:.3f}"])
    result["tokens"].append(rounded)
    result["names"].append("an embedding, in thousandths")
    return result | {"seconds": time.perf_counter() - begin}


def run_family(answer: dict[str, Any]) -> tuple[list[list[int]], list[Any]]:
    """The family's tokens for each prompt, and the load `[E]` of each layer with experts."""
    from benchmarks.families.tiny import NUM_TOKENS, prompts
    from mini_vllm import SamplingParams
    from mini_vllm.entrypoints.experts import counted

    with tempfile.TemporaryDirectory(prefix="labkit-family-") as folder:
        llm = engine(folder, answer)
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        with counted(llm.engine.core.model_runner.model) as counts:
            outputs = llm.generate(prompts(), params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs], counts


def embeddings(answer: dict[str, Any]) -> tuple[float, list[int]]:
    """How alike the last two prompts are, which begin alike; and the last one's vector."""
    import torch

    from benchmarks.families.tiny import prompts

    with tempfile.TemporaryDirectory(prefix="labkit-family-") as folder:
        llm = engine(folder, answer, runner="pooling", pooler_config={"pooling_type": "MEAN"})
        asked = [{"prompt_token_ids": ids} for ids in prompts()[-2:]]
        vectors = [output.outputs.embedding for output in llm.embed(asked, use_tqdm=False)]
    first, second = torch.tensor(vectors)
    return float(first @ second), (second * 1000).round().int().tolist()


def engine(folder: str, answer: dict[str, Any], **options: Any) -> Any:
    """The family's tiny checkpoint in an engine that cuts prompts into chunks of 16."""
    from benchmarks.families.tiny import write
    from benchmarks.families.ways import BASE
    from mini_vllm import LLM

    write(Path(folder), answer["config"], answer["shapes"])
    return LLM(folder, **(BASE | {"max_num_batched_tokens": 16} | options))
