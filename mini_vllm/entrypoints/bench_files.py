"""Prompts that ``bench serve`` reads from files: one per line, or first turns of conversations.

Source: vllm/benchmarks/datasets/datasets.py#L1312-L1399 (ShareGPTDataset) @ v0.22.1
"""

from __future__ import annotations

import argparse
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_vllm.json_files import parse_json

SHORTEST = 4
LONGEST_PROMPT, LONGEST_TOTAL = 1024, 2048
"""Limits of the prompts and answers of ``sharegpt`` in tokens; longer ones are left out."""


@dataclass
class Sample:
    """One prompt, and the number of tokens to generate.

    Attributes:
        num_tokens: of a text, counted by the client; 0: known only from the server's usage.
    """

    prompt: list[int] | str
    output_len: int
    num_tokens: int = 0

    @property
    def prompt_len(self) -> int:
        """In tokens."""
        return self.num_tokens if isinstance(self.prompt, str) else len(self.prompt)


def _read(args: argparse.Namespace, form: str) -> str:
    file: Path | None = args.dataset_path
    if file is None:
        raise ValueError(f"--dataset-name {args.dataset_name} reads a file; give --dataset-path "
                         f"{form}")  # fmt: skip
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no UTF-8 text: {error}") from error


def custom_samples(args: argparse.Namespace, rng: random.Random) -> list[Sample]:
    """Prompts of a JSONL file, repeated until there are enough.

    Source: vllm/benchmarks/datasets/datasets.py#L2186-L2310 (CustomDataset) @ v0.22.1
    """
    lines = _read(args, "FILE.jsonl").splitlines()
    wanted = args.custom_output_len if args.output_len is None else args.output_len
    samples = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = parse_json(line)
                output_len = row["output_tokens"] if wanted == -1 else wanted
                samples.append(Sample(str(row["prompt"]), int(output_len)))
            except (ValueError, TypeError, KeyError) as error:
                what = '{"prompt": TEXT, "output_tokens": N}; the number may be left out unless '
                where = f"{args.dataset_path}:{number}"
                raise ValueError(f"{where} is not {what}--custom-output-len is -1") from error
    if not samples:
        raise ValueError(f"{args.dataset_path} holds no prompt")
    if not args.disable_shuffle:
        rng.shuffle(samples)
    enough = samples if args.no_oversample else itertools.cycle(samples)
    return list(itertools.islice(enough, args.num_prompts))


def sharegpt_samples(args: argparse.Namespace, rng: random.Random) -> list[Sample]:
    """The first turn of each conversation, and an answer as long as the second turn.

    Conversations that are too short or too long are left out. With the same seed, prompts and order
    are those of upstream; if there are too few, some are drawn again, as upstream does.
    """
    turns = _first_turns(args)
    if not args.disable_shuffle:
        rng.shuffle(turns)
    tokenizer = _tokenizer(args.tokenizer)
    wanted = args.sharegpt_output_len if args.output_len is None else args.output_len
    fitting = (s for s in (_sample(tokenizer, *pair, wanted) for pair in turns) if s is not None)
    samples = list(itertools.islice(fitting, args.num_prompts))
    if not samples:
        raise ValueError(
            f"{args.dataset_path} holds no conversation that fits: prompt and answer of at least "
            f"{SHORTEST} tokens, the prompt of at most {LONGEST_PROMPT}, both of {LONGEST_TOTAL}"
        )
    missing = 0 if args.no_oversample else args.num_prompts - len(samples)
    again = random.Random(args.seed)
    return samples + [again.choice(samples) for _ in range(missing)]


def _first_turns(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The first message and its answer, of each conversation that has both."""
    try:
        rows = parse_json(_read(args, "FILE.json"))
        talks = [row["conversations"] for row in rows if "conversations" in row]
        return [(str(t[0]["value"]), str(t[1]["value"])) for t in talks if len(t) >= 2]
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"{args.dataset_path} is not in ShareGPT's format, "
            f'[{{"conversations": [{{"value": TEXT}}, {{"value": TEXT}}]}}, ...]: {error!r}'
        ) from error


def _sample(tokenizer: Any, prompt: str, answer: str, wanted: int | None) -> Sample | None:
    """A conversation as a sample; None if it is left out.

    Source: vllm/benchmarks/datasets/datasets.py#L328-L352 (is_valid_sequence) @ v0.22.1
    """
    prompt_len = len(tokenizer(prompt).input_ids)
    output_len = len(tokenizer(answer).input_ids) if wanted is None else wanted
    is_short = prompt_len < SHORTEST or (wanted is None and output_len < SHORTEST)
    is_long = prompt_len > LONGEST_PROMPT or prompt_len + output_len > LONGEST_TOTAL
    return None if is_short or is_long else Sample(prompt, output_len, prompt_len)


def _tokenizer(name: str) -> Any:
    from mini_vllm import hub
    from mini_vllm.model.checkpoint_files import load_tokenizer

    try:
        return load_tokenizer(hub.folder(name, weights=False))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"conversations are counted in tokens: {error}; give --tokenizer"
        ) from error
