"""A hundred schemas and a hundred regular expressions through the whole engine: what ends is legal.

Greedy, and so hot that the model alone would write nothing of the kind. A text that was cut by
`max_tokens` is a beginning of something legal, and is not judged.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mini_vllm import LLM, SamplingParams
from mini_vllm.sampling_params import StructuredOutputsParams

COUNT = 100
ATOMS = ["a", "[a-f]", "[0-9]", r"\d", r"\w", "the", " ", "[A-Z]", "é", r"\.", "[^aeiou\n]", "x"]
LEAVES: list[dict[str, Any]] = [
    {"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -20, "maximum": 1203},
    {"type": "string", "maxLength": 6}, {"type": "string", "minLength": 1, "maxLength": 3},
    {"enum": ["red", "green", 1, None]}, {"const": {"a": [1, "é"]}},
    {"type": "string", "pattern": "^[a-c]{2}-[0-9]$"}, {"type": "string", "format": "date"},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 2.5},
]  # fmt: skip


def regex(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(ATOMS)
    inner = regex(rng, depth - 1)
    forms = [f"({inner})?", f"(?:{inner}){{1,3}}", f"({inner}|{regex(rng, depth - 1)})"]
    return rng.choice([*forms, inner + regex(rng, depth - 1), f"(?:{inner}){{2}}"])


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(5) if depth else 0
    if kind < 2:
        return rng.choice(LEAVES)
    if kind == 2:
        return {"type": "array", "items": schema(rng, depth - 1), "maxItems": rng.randrange(1, 4)}
    if kind == 3:
        return {"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}
    names = ["name", "age", "tags"][: rng.randrange(1, 4)]
    return {
        "type": "object",
        "properties": {name: schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_whatever_ends_is_legal(temperature: float) -> None:
    rng = random.Random(12)
    constraints: list[dict[str, Any]] = [{"regex": regex(rng, 3)} for _ in range(COUNT)]
    constraints += [{"json": schema(rng, 2)} for _ in range(COUNT)]
    params = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=80,
            structured_outputs=StructuredOutputsParams(**constraint),
        )
        for seed, constraint in enumerate(constraints)
    ]  # fmt: skip
    llm = LLM("storyteller", dtype="float32", max_model_len=128, max_num_seqs=64,
              structured_outputs_config={"disable_any_whitespace": True})  # fmt: skip
    outputs = llm.generate(["Write a record:"] * len(params), params, use_tqdm=False)
    ended = 0
    for constraint, output in zip(constraints, outputs, strict=True):
        completion = output.outputs[0]
        assert output.error is None, (constraint, output.error)
        if completion.finish_reason != "stop":
            continue
        ended += 1
        if "regex" in constraint:
            assert re.fullmatch(constraint["regex"], completion.text, re.ASCII), constraint
        else:
            Draft202012Validator(constraint["json"]).validate(json.loads(completion.text))
    assert ended > 1.9 * COUNT
