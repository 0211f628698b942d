"""The demo: six chats with a KV pool that is too small for them.

All chats share a long system message: the first computes it in chunks, and the others find it in
the prefix cache. As the answers grow, the pool runs out of blocks, and the scheduler preempts the
youngest request. When it is resumed, most of its tokens are still in the cache.
"""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.engine.llm import LLM
from mini_vllm.observability.timeline import record_timeline
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import SamplingParams

SYSTEM = (
    "You are a friendly helper. You know many small facts about the world, you can add small "
    "numbers, you write short stories about animals, and you can write a record as one line of "
    "JSON. Answer in plain words. Keep every answer short. If somebody asks for a story, tell a "
    "story with a beginning and an end. If somebody asks for a record, write only the record."
)
QUESTIONS = (
    "What is the capital of France?",
    "Tell me a story about a fox.",
    "Write a JSON record for a person named Ada.",
    "Tell me a story about a rabbit.",
    "What is 4 + 5?",
    "Tell me a story about a bear.",
)
SPARE_BLOCKS = 4
"""Blocks in addition to those of the prompts: too few for the answers."""

COURSE = Path(__file__).parents[2] / "phases"
"""It lies beside the engine in a checkout; `pip` installs the engine alone."""

WAITING, PROMPT, DECODE, PREEMPTED = "·", "▒", "█", "×"


def run(model: str, options: Mapping[str, Any]) -> int:
    """Run the demo on ``model``; ``options`` override its engine settings."""
    settings: dict[str, Any] = {
        "block_size": 16,
        "num_gpu_blocks": 64,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "max_model_len": 512,
        "dtype": "float32",
    } | dict(options)
    print(f"Loading {model} ...", flush=True)
    llm = LLM(model, **settings)
    prompts = [
        llm.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        )
        for question in QUESTIONS
    ]
    if "num_gpu_blocks" not in options:
        settings["num_gpu_blocks"] = _tight_pool(prompts, settings["block_size"])
        llm = LLM(model, **settings)
    scheduler = llm.engine.core.scheduler
    print(
        f"{len(prompts)} chats of {min(map(len, prompts))} to {max(map(len, prompts))} tokens that "
        f"share a system message.\nBudget: {settings['max_num_batched_tokens']} tokens a step. "
        f"KV pool: {scheduler.kv_cache_manager.block_pool.num_usable_blocks} blocks of "
        f"{settings['block_size']} tokens.\n"
    )
    start = time.perf_counter()
    with record_timeline(llm.engine.core, None) as timeline:
        params = SamplingParams(temperature=0.0, max_tokens=112)
        outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start

    prompt_lens = {output.request_id: len(output.prompt_token_ids) for output in outputs}
    for line in _events(timeline.records, prompt_lens):
        print(line)
    print()
    for line in _grid(timeline.records, prompt_lens):
        print(line)
    print()
    _print_answers(outputs)
    print(llm.engine.stats.report())
    after = "make lab-00" if COURSE.is_dir() else f"mini-vllm chat --model {model}"
    print(f"\n{seconds:.2f} s in all. Next: {after}")
    return 0


def _tight_pool(prompts: list[list[int]], block_size: int) -> int:
    """Blocks for the prompts, their common prefix counted once, the null block and a few spare."""
    places = zip(*prompts, strict=False)
    shared = len(list(takewhile(lambda tokens: len(set(tokens)) == 1, places)))
    shared_blocks = shared // block_size
    own_blocks = sum(cdiv(len(prompt), block_size) - shared_blocks for prompt in prompts)
    return 1 + shared_blocks + own_blocks + SPARE_BLOCKS


def _events(records: list[dict[str, Any]], prompt_lens: Mapping[str, int]) -> Iterator[str]:
    """One line for each event: chunks, prefix cache hits, preemptions and resumptions."""
    preempted: set[str] = set()
    chunked: set[str] = set()
    for record in records:
        step = f"step {record['step'] + 1:>3}  "
        for req_id in record["preempted"]:
            preempted.add(req_id)
            yield step + f"r{req_id} is preempted: there is no free block; its blocks go to others"
        for req_id, num_tokens in record["scheduled"].items():
            after = record["computed"].get(req_id)
            if after is None:
                continue
            before = after - num_tokens
            admitted = req_id in record["new_block_ids"] and before % 16 == 0
            if req_id in preempted and admitted:
                preempted.discard(req_id)
                yield step + (
                    f"r{req_id} comes back: {before} tokens are still in the cache, "
                    f"{num_tokens} are computed again"
                )
            elif after < prompt_lens[req_id] and req_id not in chunked:
                chunked.add(req_id)
                yield step + (
                    f"r{req_id} gets a chunk of {num_tokens} of its {prompt_lens[req_id]} prompt "
                    "tokens: the budget is used up"
                )
            elif before and num_tokens > 1 and admitted and req_id not in chunked:
                yield step + (
                    f"r{req_id} finds {before} of its {prompt_lens[req_id]} prompt tokens in the "
                    f"prefix cache and computes {num_tokens}"
                )


def _grid(records: list[dict[str, Any]], prompt_lens: Mapping[str, int]) -> Iterator[str]:
    """Requests by steps; several steps share a column if the screen is too narrow."""
    width = max(shutil.get_terminal_size((96, 24)).columns - 8, 40)
    per_column = cdiv(len(records), width)
    unit = "a step" if per_column == 1 else f"{per_column} steps"
    yield (
        f"{WAITING} waits   {PROMPT} computes its prompt   {DECODE} makes a token   "
        f"{PREEMPTED} preempted      (one column: {unit})"
    )
    for req_id, prompt_len in prompt_lens.items():
        cells = [_cell(record, req_id, prompt_len) for record in records]
        columns = [cells[i : i + per_column] for i in range(0, len(cells), per_column)]
        order = (PREEMPTED, PROMPT, DECODE, WAITING, " ")
        yield f"r{req_id:<4}" + "".join(min(c, key=order.index) for c in columns).rstrip()


def _cell(record: dict[str, Any], req_id: str, prompt_len: int) -> str:
    if req_id in record["preempted"]:
        return PREEMPTED
    if req_id in record["scheduled"]:
        return PROMPT if record["scheduled"][req_id] > 1 else DECODE
    return WAITING if req_id in record["waiting"] or req_id in record["running"] else " "


def _print_answers(outputs: list[RequestOutput]) -> None:
    width = min(shutil.get_terminal_size((96, 24)).columns, 100)
    for question, output in zip(QUESTIONS, outputs, strict=True):
        answer = textwrap.fill(
            output.outputs[0].text, width, initial_indent="    ", subsequent_indent="    "
        )
        print(f"r{output.request_id}  {question}\n{answer}")
    print()
