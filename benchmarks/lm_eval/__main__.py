"""``python -m benchmarks.lm_eval MODEL``: lm-eval's own ``vllm`` model, with this engine below it.

Needs lm-eval (``pip install lm-eval``). Prints a line a task: its name, the figure, its value.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from mini_vllm import as_vllm

FOLDER = Path(__file__).parent
TASKS = ("colours", "copying")


def arguments_of(model: str) -> dict[str, str]:
    """What lm-eval is told. It reads a `config.json` itself, which a GGUF file has not: that of
    SmolLM2 lies in a folder here."""
    if model == "smollm2":
        return {"pretrained": str(FOLDER / model), "model": model, "tokenizer": model}
    return {"pretrained": model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a hub's name, or smollm2")
    parser.add_argument("--num-fewshot", type=int, default=2, help="solved examples (default 2)")
    given = parser.parse_args()
    as_vllm.install()
    from lm_eval.models.vllm_causallms import VLLM
    from lm_eval.tasks import TaskManager

    model: Any = VLLM(**arguments_of(given.model))
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False)
    lm_eval: Any = importlib.import_module("lm_eval")
    found = lm_eval.simple_evaluate(
        model=model, tasks=list(TASKS), task_manager=manager, num_fewshot=given.num_fewshot,
        bootstrap_iters=0,
    )  # fmt: skip
    assert found is not None
    for task, figures in found["results"].items():
        for name, value in figures.items():
            if name.partition(",")[0] in ("acc", "exact_match"):
                print(f"{task} {name.partition(',')[0]} {value:.2f}")


if __name__ == "__main__":
    main()
