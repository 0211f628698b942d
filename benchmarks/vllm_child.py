"""vLLM on a CPU for `benchmarks/llama_cpp.py`, in an environment of its own.

    .venv-real-vllm/bin/python benchmarks/vllm_child.py FOLDER LENGTH

It loads the model of a folder and says `ready`. Then each line of stdin is
`{"prompts": [[token, ...], ...], "count": tokens}`, and is answered by a line of the seconds until
all requests had their first, second, ... token, and of the tokens. It imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def answer(engine: Any, prompts: list[list[int]], count: int, number: int) -> dict[str, Any]:
    """Run the prompts together, greedily, `count` tokens each; `number` tells runs apart."""
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    names = [f"{number}-{index}" for index in range(len(prompts))]
    tokens: dict[str, list[int]] = {}
    seconds, start = [0.0] * count, time.perf_counter()
    for name, prompt in zip(names, prompts, strict=True):
        engine.add_request(name, TokensPrompt(prompt_token_ids=prompt), params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            seconds[len(tokens[output.request_id]) - 1] = time.perf_counter() - start
    return {"seconds": seconds, "tokens": [tokens[name] for name in names]}


def main(folder: str, length: str) -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)  # vLLM writes to stdout itself
    os.dup2(2, 1)
    from vllm import LLM

    llm = LLM(
        folder, dtype="float32", max_model_len=int(length), max_num_batched_tokens=2048,
        enable_prefix_caching=False, skip_tokenizer_init=True,
    )  # fmt: skip
    print("ready", file=channel)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        done = answer(llm.llm_engine, asked["prompts"], asked["count"], number)
        print(json.dumps(done), file=channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
