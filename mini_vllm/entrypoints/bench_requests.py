"""The requests of ``bench serve``: prompts of a data set, and bodies made from them.

Source: vllm/benchmarks/datasets/datasets.py#L1402-L1645 (add_dataset_parser) @ v0.22.1
"""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path
from typing import Any

from mini_vllm.entrypoints.bench_files import Sample, custom_samples, sharegpt_samples
from mini_vllm.json_files import parse_json
from mini_vllm.sampling_params import NUMBERS

SAMPLING = {name: number for name, number in NUMBERS.items() if number.shapes}
"""Sampling options that are copied into every request."""

SMALLEST = {
    "input_len": 1, "output_len": 1, "random_input_len": 1, "random_output_len": 1,
    "random_prefix_len": 0, "prefix_repetition_prefix_len": 0, "prefix_repetition_suffix_len": 1,
    "prefix_repetition_output_len": 1, "sharegpt_output_len": 1, "vocab_size": 1,
}  # fmt: skip
"""The smallest legal values of lengths and numbers of tokens."""


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """Source: vllm/benchmarks/datasets/datasets.py#L1402-L1645 (add_dataset_parser) @ v0.22.1"""
    add = parser.add_argument
    add("--dataset-name", type=_dataset_name, default="random", help=", ".join(DATASETS))
    add("--dataset-path", type=Path, metavar="FILE",
        help='of "custom": a line is {"prompt": TEXT, "output_tokens": N}')  # fmt: skip
    add("--sharegpt-output-len", type=int, help="default: as the file's answer")
    add("--custom-output-len", type=int, default=256, help="-1: as the file says")
    add("--no-oversample", action="store_true", help="a short file is not repeated")
    add("--disable-shuffle", action="store_true", help="keep the order of the file")
    add("--num-prompts", type=int, default=1000, help="requests (default 1000)")
    add("--input-len", type=int, help="for every data set that draws prompts")
    add("--output-len", type=int, help="for every data set")
    add("--random-input-len", type=int, default=1024, help="tokens of a prompt (1024)")
    add("--random-output-len", type=int, default=128, help="tokens of an answer (128)")
    add("--random-prefix-len", type=int, default=0, help="tokens that all prompts begin with")
    add("--random-range-ratio", default="0.0", metavar="SPREAD",
        help='of both lengths, 0 to 1, or \'{"input": 0.3, "output": 0.5}\'')  # fmt: skip
    add("--prefix-repetition-prefix-len", type=int, default=256, help="tokens of a prefix")
    add("--prefix-repetition-suffix-len", type=int, default=256, help="tokens behind it")
    add("--prefix-repetition-num-prefixes", type=int, default=10, help="how many (10)")
    add("--prefix-repetition-output-len", type=int, default=128, help="of an answer")
    add("--vocab-size", type=int, default=1000, help="prompts hold token ids below it")
    add("--seed", type=int, default=0, help="of what is drawn (default 0)")


def _dataset_name(word: str) -> str:
    if word not in DATASETS:
        raise argparse.ArgumentTypeError(
            f"{word!r} is not supported; it must be one of {', '.join(DATASETS)}; other data sets "
            "can be written to a file, for custom"
        )
    return word


def make_samples(args: argparse.Namespace, rng: random.Random) -> list[Sample]:
    """``--num-prompts`` samples of the chosen data set.

    Raises:
        ValueError: for impossible lengths, or a file without prompts.
    """
    if args.num_prompts < 1:
        raise ValueError(f"--num-prompts is {args.num_prompts}; it must be at least 1")
    return DATASETS[args.dataset_name](args, rng)


def random_samples(args: argparse.Namespace, rng: random.Random) -> list[Sample]:
    """Random token ids after a prefix that all share; lengths are drawn uniformly.

    Source: vllm/benchmarks/datasets/datasets.py#L532-L746 (RandomDataset) @ v0.22.1
    """
    input_spread, output_spread = range_ratios(args.random_range_ratio)
    input_len = args.random_input_len if args.input_len is None else args.input_len
    output_len = args.random_output_len if args.output_len is None else args.output_len
    prefix = _token_ids(args.random_prefix_len, args, rng)
    lengths = [_spread(input_len, input_spread, rng) for _ in range(args.num_prompts)]
    prompts = [prefix + _token_ids(length, args, rng) for length in lengths]
    return [Sample(prompt, _spread(output_len, output_spread, rng)) for prompt in prompts]


def range_ratios(word: str) -> tuple[float, float]:
    """Spreads of the lengths of input and output: one number for both, or a JSON object."""
    try:
        given = parse_json(word)
        pair = given if isinstance(given, dict) else {"input": given, "output": given}
        spreads = float(pair["input"]), float(pair["output"])
    except (ValueError, TypeError, KeyError):
        spreads = (-1.0, -1.0)
    if not all(0 <= spread < 1 for spread in spreads):
        raise ValueError(
            f"--random-range-ratio is {word!r}; it must be at least 0 and below 1, or "
            '\'{"input": 0.3, "output": 0.5}\''
        )
    return spreads


def _spread(length: int, spread: float, rng: random.Random) -> int:
    return max(1, round(length * rng.uniform(1 - spread, 1 + spread)))


def _token_ids(length: int, args: argparse.Namespace, rng: random.Random) -> list[int]:
    return [rng.randrange(args.vocab_size) for _ in range(length)]


def prefix_repetition_samples(args: argparse.Namespace, rng: random.Random) -> list[Sample]:
    """Several prefixes, each with the same number of different suffixes, to test a prefix cache.

    As upstream, the remainder of ``--num-prompts`` divided by the number of prefixes is dropped.

    Source: vllm/benchmarks/datasets/datasets.py#L3702-L3800 (PrefixRepetitionRandomDataset)
    @ v0.22.1
    """
    num_prefixes = args.prefix_repetition_num_prefixes
    if not 1 <= num_prefixes <= args.num_prompts:
        raise ValueError(
            f"--prefix-repetition-num-prefixes is {num_prefixes}; it must be between 1 and "
            f"--num-prompts, {args.num_prompts}"
        )
    output_len = args.prefix_repetition_output_len if args.output_len is None else args.output_len
    prefixes = [
        _token_ids(args.prefix_repetition_prefix_len, args, rng) for _ in range(num_prefixes)
    ]
    samples = [
        Sample(prefix + _token_ids(args.prefix_repetition_suffix_len, args, rng), output_len)
        for prefix in prefixes
        for _ in range(args.num_prompts // num_prefixes)
    ]
    rng.shuffle(samples)
    return samples


DATASETS = {
    "random": random_samples,
    "prefix_repetition": prefix_repetition_samples,
    "custom": custom_samples,
    "sharegpt": sharegpt_samples,
}
TOKENIZED = ("sharegpt",)
"""Data sets that need a tokenizer, to count tokens."""


# ---------------------------------------------------------------------- bodies


def make_bodies(
    args: argparse.Namespace, samples: list[Sample], model: str, rng: random.Random
) -> list[dict[str, Any]]:
    """The request body of each sample, for ``model`` or one of ``--lora-modules``."""
    common: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if args.ignore_eos or args.dataset_name == "random":  # random prompts may end at any token
        common["ignore_eos"] = True
    if args.logprobs is not None and args.backend == "openai-chat":
        common |= {"logprobs": True, "top_logprobs": args.logprobs}
    elif args.logprobs is not None:
        common["logprobs"] = args.logprobs
    given = {name: getattr(args, name) for name in SAMPLING}
    common |= {name: value for name, value in given.items() if value is not None}
    models = _models(args, len(samples), model, rng)
    return [
        {"model": name, "max_tokens": sample.output_len, **_prompt(args.backend, sample)}
        | common
        | args.extra_body
        for sample, name in zip(samples, models, strict=True)
    ]


def _models(
    args: argparse.Namespace, num_requests: int, model: str, rng: random.Random
) -> list[str]:
    """The model name of each request.

    Source: vllm/benchmarks/serve.py#L741-L757 (benchmark) @ v0.22.1
    """
    if not args.lora_modules:
        return [model] * num_requests
    if args.lora_assignment == "round-robin":
        return list(itertools.islice(itertools.cycle(args.lora_modules), num_requests))
    return rng.choices(args.lora_modules, k=num_requests)


def _prompt(backend: str, sample: Sample) -> dict[str, Any]:
    if backend != "openai-chat":
        return {"prompt": sample.prompt}
    is_text = isinstance(sample.prompt, str)
    text = sample.prompt if is_text else " ".join(f"word{token}" for token in sample.prompt)
    return {"messages": [{"role": "user", "content": text}]}
