"""What a grammar costs: compiling it, filling a mask, and a whole step of a batch.

The vocabulary is synthetic, 150,000 tokens of random letters, digits and JSON's own marks, since
the cost of a mask grows with it. Times are the least of some rounds; a step with and without a
grammar is measured in turns, in one engine of random weights.

    compile   until the grammar can be followed
    first     the mask of a state that nobody has met
    again     the mask of a state that was met before: the median over a text
    step      wall clock of a batch with grammars over the same batch without, at most 1.15
    bundled   the same, of the bundled model with its own words: a step is short, so Python shows

    python -m benchmarks.bench_structured
    python -m benchmarks.bench_structured --step-only --batch 64
    python -m benchmarks.bench_structured --save             also writes results/structured.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.bench_scheduler import machine
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.request import Request
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.backend_types import StructuredOutputBackend
from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Kind
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.native import NativeBackend
from mini_vllm.structured_output.token_index import TokenTable, unpack_bits
from mini_vllm.structured_output.xgrammar import XgrammarBackend

END = 0
STEP_LIMIT = 1.15
ANY_TEXT = "[a-zA-Z0-9 ,.]+"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, tuple[Kind, str]] = {
    "person": (Kind.JSON, json.dumps(PERSON)),
    "any object": (Kind.JSON_OBJECT, ""),
    "date": (Kind.REGEX, "[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "200 letters": (Kind.REGEX, "[a-zA-Z0-9 ]{1,200}"),
    "1,000 values": (Kind.JSON, json.dumps({"enum": [f"value {i}" for i in range(1000)]})),
    "100 fields": (
        Kind.JSON,
        json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"}
                                                     for i in range(100)},
                    "additionalProperties": False}),
    ),
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring. Exit code 1 if the step's limit is missed."""
    parser = argparse.ArgumentParser("bench_structured", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--vocab-size", type=int, default=150_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-only", action="store_true", help="leave the table out")
    parser.add_argument("--save", action="store_true", help="write results/structured.json")
    options = parser.parse_args(argv)
    if options.save and options.step_only:
        parser.error("--save keeps the whole table; leave --step-only out")
    texts = vocabulary(options.vocab_size)
    tokens = TokenTable(texts)
    rows = [] if options.step_only else print_table(tokens)
    print("\nsmall schema alone, and behind a large one: "
          + ", ".join(f"{seconds * 1e3:.0f} ms" for seconds in waits(tokens)))  # fmt: skip
    ratios = {f"{options.vocab_size:,} tokens": step_ratio(tokens, options)}
    ratios |= bundled_ratios(options)
    for name, value in ratios.items():
        verdict = "kept" if value <= STEP_LIMIT else "missed"
        print(f"\nstep, {options.batch} requests, {name}: {value:.3f} times the free one, at most "
              f"{STEP_LIMIT} is wanted: {verdict}")  # fmt: skip
    if options.save:
        save(rows, ratios, options)
    return 0 if max(ratios.values()) <= STEP_LIMIT else 1


def save(rows: list[dict[str, Any]], ratios: dict[str, float], options: argparse.Namespace) -> None:
    """Keep the figures, with the machine they are of."""
    facts = machine() | {"vocab_size": options.vocab_size, "batch": options.batch}
    facts |= {"rows": rows, "step_ratios": ratios, "step_limit": STEP_LIMIT}
    path = ROOT / "benchmarks" / "results" / "structured.json"
    write_text(path, json.dumps(facts, indent=1) + "\n")
    print(f"saved to {path.relative_to(ROOT)}")


def print_table(tokens: TokenTable) -> list[dict[str, Any]]:
    """Both backends beside one another, a line for each grammar; returns the lines' figures."""
    rows: list[dict[str, Any]] = []
    print(f"{'grammar':14} {'backend':9} {'compile':>10} {'first':>10} {'again':>10}")
    for name, (kind, spec) in GRAMMARS.items():
        for backend_class in (NativeBackend, XgrammarBackend):
            backend = backend_class.__name__[:-7].lower()
            try:
                row = measure(lambda c=backend_class: c(tokens, [END]), kind, spec, tokens)
            except ValueError as error:
                print(f"{name:14} {backend:9} refused: {error}")
                rows.append({"grammar": name, "backend": backend, "refused": str(error)})
                continue
            figures = " ".join(f"{seconds * 1e3:7.3f} ms" for seconds in row)
            print(f"{name:14} {backend:9} {figures}", flush=True)
            times = dict(zip(("compile_ms", "first_ms", "again_ms"), row, strict=True))
            times_ms = {key: seconds * 1e3 for key, seconds in times.items()}
            rows.append({"grammar": name, "backend": backend, **times_ms})
    return rows


def vocabulary(size: int) -> list[bytes]:
    """The end, every byte, JSON's marks in pairs, and words."""
    draw = Random(0)
    marks = [a + b for a in '{}[]",: \n' for b in '{}[]",: \n']
    texts = [b"", *(bytes([byte]) for byte in range(256)), *(mark.encode() for mark in marks)]
    known = set(texts)
    while len(texts) < size:
        word = draw.choice(["", " "]) + "".join(
            draw.choice("etaoinshrdlucmfwypvbgkjqxzETA0123456789")
            for _ in range(draw.randint(2, 9))
        )
        if (text := word.encode()) not in known:
            known.add(text)
            texts.append(text)
    return texts


def measure(
    make: Callable[[], StructuredOutputBackend], kind: Kind, spec: str, tokens: TokenTable
) -> tuple[float, float, float]:
    """Seconds to compile, for the first mask, and for the masks of a text walked again."""
    backend = make()
    start = time.perf_counter()
    grammar = backend.compile_grammar(kind, spec)
    compiled = time.perf_counter() - start
    words = np.asarray(backend.allocate_token_bitmask(1))
    start = time.perf_counter()
    grammar.fill_bitmask(words, 0)
    first = time.perf_counter() - start
    draw, path = Random(1), []
    for _ in range(40):
        grammar.fill_bitmask(words, 0)
        legal = np.flatnonzero(unpack_bits(words[0], tokens.vocab_size)).tolist()
        legal = [token for token in legal if token != END]
        if not legal:
            break
        path.append(draw.choice(legal))
        grammar.accept_tokens("", [path[-1]])
    grammar.reset()
    times = []
    for token in path:
        start = time.perf_counter()
        grammar.fill_bitmask(words, 0)
        times.append(time.perf_counter() - start)
        grammar.accept_tokens("", [token])
    return compiled, first, statistics.median(times)


def waits(tokens: TokenTable) -> list[float]:
    """Seconds until a small schema is ready, alone and with a large one before it."""
    fields = {f"p{i}": {"type": "array", "items": {"pattern": "^[a-z]{1,9}$"}} for i in range(300)}
    large: dict[str, Any] = {"type": "object", "properties": fields}
    times = []
    alone: list[dict[str, Any]] = []
    for before in (alone, [large]):
        manager = StructuredOutputManager(StructuredOutputsConfig(), lambda: tokens, [END])
        for number, schema in enumerate([*before, PERSON]):
            params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
            request = Request(str(number), [1], params, eos_token_id=END)
            start = time.perf_counter()
            manager.request_added(request)
        constraint = request.structured_output_request
        assert constraint is not None and constraint.future is not None
        constraint.future.result()
        times.append(time.perf_counter() - start)
        manager.clear_backend()
    return times


def step_ratio(tokens: TokenTable, options: argparse.Namespace) -> float:
    """A batch with a grammar over the same batch without, in turns; the least of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        source = bundled.path("storyteller")
        for file in source.iterdir():
            if file.suffix != ".safetensors":
                (Path(folder) / file.name).write_bytes(file.read_bytes())
        config = json.loads((source / "config.json").read_text())
        config["vocab_size"] = tokens.vocab_size
        (Path(folder) / "config.json").write_text(json.dumps(config))
        llm = LLM(folder, load_format="dummy", dtype="float32", max_model_len=256,
                  num_gpu_blocks=1024)  # fmt: skip
    manager: Any = llm.engine.core.structured_output_manager
    manager._tokens = tokens
    prompts = [[300 + request] * 8 for request in range(options.batch)]
    return turns(llm, prompts, StructuredOutputsParams(regex=ANY_TEXT), options)


def bundled_ratios(options: argparse.Namespace) -> dict[str, float]:
    """The same of the bundled storyteller: a list of persons, and text that may always end."""
    llm = LLM(bundled.path("storyteller"), max_model_len=256, num_gpu_blocks=1024)
    prompts = [[300 + request] * 8 for request in range(options.batch)]
    persons = {"type": "array", "items": PERSON, "minItems": 100}
    constraints = {
        "bundled model, JSON": StructuredOutputsParams(json=persons),
        "bundled model, regex": StructuredOutputsParams(regex=ANY_TEXT),
    }
    return {name: turns(llm, prompts, form, options) for name, form in constraints.items()}


def turns(
    llm: LLM,
    prompts: list[list[int]],
    constraint: StructuredOutputsParams,
    options: argparse.Namespace,
) -> float:
    """Held over free, measured in turns."""
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        for name, form in (("free", None), ("held", constraint)):
            params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True,
                                    detokenize=False, structured_outputs=form)  # fmt: skip
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - start
            best[name] = min(best.get(name, seconds), seconds)
    return best["held"] / best["free"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
