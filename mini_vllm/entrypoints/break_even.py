"""``break-even``: the prompt length from which transferring KV is faster than computing it.

For a local model the prefill rate is measured. For a well-known model only the shape is needed, and
the rate is an option. The arithmetic is in :mod:`mini_vllm.kv_transfer.economics`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import TYPE_CHECKING, Any

from mini_vllm.entrypoints.cli_options import engine_options_of, load_llm
from mini_vllm.hub import in_units
from mini_vllm.kv_transfer.economics import (
    LINKS,
    SHAPES,
    break_even_tokens,
    kv_bytes_per_token,
    load_seconds,
)
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine.llm import LLM

BUNDLED = "storyteller"
"""The only well-known shape whose name can also be loaded and measured."""


def add_break_even_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help=f"another way to say --model; known by their shape alone: {', '.join(by_shape())}",
    )
    command.add_argument(
        "--link",
        nargs="+",
        type=read_link,
        default=list(LINKS.items()),
        metavar="LINK",
        help=f"GB a second, or some of {', '.join(map(repr, LINKS))} (default: all)",
    )
    command.add_argument(
        "--prefill-rate",
        type=positive,
        metavar="TOKENS",
        help="that are computed a second (default: measured here)",
    )
    command.add_argument(
        "--fixed-ms",
        type=not_negative,
        default=1.0,
        metavar="MS",
        help="that every trip takes, however little it carries (default 1)",
    )
    command.add_argument(
        "--input-len",
        type=int,
        default=512,
        metavar="TOKENS",
        help="of the prompt that is measured, and for which both ways are timed (default 512)",
    )
    command.add_argument("--json", action="store_true", help="figures as one JSON object")


def by_shape() -> list[str]:
    return [name for name in SHAPES if name != BUNDLED]


def not_negative(text: str) -> float:
    """A finite number of at least 0. Raises ArgumentTypeError for anything else."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a number, 0 or more")
    return number


def positive(text: str) -> float:
    """A finite number above 0. Raises ArgumentTypeError for anything else."""
    if (number := not_negative(text)) == 0:
        raise argparse.ArgumentTypeError(f"it is {text!r}; it must be above 0")
    return number


def read_link(text: str) -> tuple[str, float]:
    """A link's name, and its bandwidth in bytes/s."""
    if text in LINKS:
        return text, LINKS[text]
    try:
        return f"{text} GB/s", positive(text) * 1e9
    except argparse.ArgumentTypeError:
        known = ", ".join(map(repr, LINKS))
        raise argparse.ArgumentTypeError(
            f"it is {text!r}; give GB a second, or one of {known}"
        ) from None


def token_bytes(model: str, options: dict[str, Any]) -> int:
    """The KV bytes of a token: of a well-known shape, or of a local model with the engine's
    options.

    Raises:
        ValueError: for engine options with a well-known shape, which has no engine.
    """
    if model in by_shape():
        if options:
            raise ValueError(
                f"{model} is known by its shape alone, with KV in bfloat16; leave out "
                f"{', '.join(options)}, or give a model that lies here"
            )
        return kv_bytes_per_token(SHAPES[model])
    from mini_vllm.engine.checked_config import make_engine_config
    from mini_vllm.entrypoints.info import build_empty
    from mini_vllm.platforms import pick_device
    from mini_vllm.worker.kv_cache import bytes_per_block

    config = make_engine_config(model, **(options | {"load_format": "dummy"}))
    skeleton = build_empty(config, pick_device(config.model.device))
    return bytes_per_block(skeleton.kv_cache_spec(), 1)


def measure_prefill(llm: LLM, num_tokens: int) -> float:
    """The rate in tokens/s at which the engine computes a prompt: the best of three runs."""
    vocab_size = llm.engine.core.model_args.vocab_size
    params = SamplingParams(temperature=0, max_tokens=1)
    best = math.inf
    for number in range(4):  # the first warms up
        prompt = [(number + 7 * token) % vocab_size for token in range(num_tokens)]
        begin = time.perf_counter()
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        if output.error:
            raise ValueError(f"--input-len is {num_tokens}: {output.error}")
        if number:
            best = min(best, seconds)
    return num_tokens / best


def figures(
    model: str,
    bytes_per_token: int,
    prefill_rate: float,
    links: list[tuple[str, float]],
    num_tokens: int,
    fixed_seconds: float,
) -> dict[str, Any]:
    """The results to print; ``break_even_tokens`` is None if a transfer never pays."""
    rows = []
    for link, bandwidth in links:
        tokens = break_even_tokens(bytes_per_token, bandwidth, prefill_rate, fixed_seconds)
        rows.append(
            {
                "link": link,
                "bytes_per_s": bandwidth,
                "break_even_tokens": tokens if math.isfinite(tokens) else None,
                "carry_seconds": load_seconds(
                    num_tokens, bytes_per_token, bandwidth, fixed_seconds
                ),
            }
        )
    return {
        "model": model,
        "kv_bytes_per_token": bytes_per_token,
        "prefill_tokens_per_s": prefill_rate,
        "fixed_seconds": fixed_seconds,
        "slowest_link_bytes_per_s": bytes_per_token * prefill_rate,
        "input_len": num_tokens,
        "compute_seconds": num_tokens / prefill_rate,
        "links": rows,
    }


def as_text(found: dict[str, Any], is_measured: bool) -> str:
    """The figures as a short table."""
    num_tokens, measured = found["input_len"], ", measured here" if is_measured else ""
    lines = [
        f"{found['model']}: {found['kv_bytes_per_token']:,} bytes of KV a token; "
        f"{found['prefill_tokens_per_s']:,.0f} tokens/s computed{measured}",
        f"{num_tokens:,} tokens: {found['compute_seconds'] * 1e3:,.1f} ms to compute, "
        f"{in_units(num_tokens * found['kv_bytes_per_token'])} to carry",
        "",
        f"{'link':14}{'carried in':>12}  pays from (tokens)",
    ]
    for row in found["links"]:
        tokens, seconds = row["break_even_tokens"], row["carry_seconds"]
        pays = "never" if tokens is None else f"{max(math.ceil(tokens), 1):,}"
        lines.append(f"{row['link']:14}{seconds * 1e3:9,.1f} ms  {pays}")
    slowest = in_units(found["slowest_link_bytes_per_s"])
    lines += ["", f"at {slowest} a second or less, a transfer takes longer than computing the KV"]
    return "\n".join(lines)


def run_break_even(args: argparse.Namespace) -> int:
    """Print from which prompt length a transfer over each link is faster than computing."""
    if args.input_len < 1:
        raise ValueError(f"--input-len is {args.input_len}; it must be at least 1")
    if args.prefill_rate is None and args.model in by_shape():
        raise ValueError(
            f"{args.model} is known by its shape alone, so its speed cannot be measured "
            "here; give the tokens a second that are computed with --prefill-rate"
        )
    options = engine_options_of(args)
    options.pop("scheduler_cls", None)
    size = token_bytes(args.model, options)
    rate = args.prefill_rate or measure_prefill(
        load_llm(args, enable_prefix_caching=False), args.input_len
    )
    found = figures(args.model, size, rate, args.link, args.input_len, args.fixed_ms / 1e3)
    is_measured = args.prefill_rate is None
    print(json.dumps(found) if args.json else as_text(found, is_measured))
    return 0
