"""Structured output in the whole engine: what ends validates, whatever runs beside it."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mini_vllm import LLM, SamplingParams
from mini_vllm.outputs import RequestOutput
from mini_vllm.request import RequestStatus
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.native import NativeBackend
from tests.engine.pace import PATIENCE
from tests.engine.structured_output.keyword_table import PERSON, SHAPES

PROMPT = "Write a JSON record for a person named Ada."
CLOSED = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
          "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"],
          "additionalProperties": False}  # fmt: skip
FLAT = {"type": "object", "properties": {"name": {"enum": ["Ada", "Bo"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["name", "age"],
        "additionalProperties": False}  # fmt: skip
"""What both backends enforce: xgrammar refuses strings of limited length."""


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("storyteller", num_gpu_blocks=400, max_num_seqs=32)


def run(
    llm: LLM, params: list[SamplingParams] | SamplingParams, prompt: str = PROMPT
) -> list[RequestOutput]:
    many = params if isinstance(params, list) else [params]
    return llm.generate([prompt] * len(many), many, use_tqdm=False)


def params(
    seed: int = 0, temperature: float = 1.5, max_tokens: int = 100, **options: Any
) -> SamplingParams:
    constraint = {
        k: options.pop(k)
        for k in ("json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace")
        if k in options
    }
    structured = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_tokens,
        structured_outputs=structured,
        **options,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("schema", [CLOSED, PERSON, SHAPES, {"enum": ["red", 12, None, [1]]}])
def test_json_that_ends_validates(llm: LLM, schema: Any, temperature: float) -> None:
    oracle = Draft202012Validator(schema)
    outputs = run(llm, [params(seed, temperature, json=schema) for seed in range(8)])
    ended = [o.outputs[0] for o in outputs if o.outputs[0].finish_reason == "stop"]
    assert ended or schema is not CLOSED
    for output in ended:
        assert oracle.is_valid(json.loads(output.text)), output.text


@pytest.mark.parametrize(
    "pattern",
    [r"\d{4}-\d\d-\d\d", "(yes|no|maybe)!?", "[A-Z][a-z]{2,9} is \\S{1,5}", "é{1,3}|日本"],
)
def test_text_that_ends_matches(llm: LLM, pattern: str) -> None:
    outputs = run(llm, [params(seed, regex=pattern) for seed in range(8)])
    for output in outputs:
        assert output.outputs[0].finish_reason == "stop"
        assert re.fullmatch(pattern, output.outputs[0].text, re.ASCII)


def test_choices_and_grammars_and_any_object(llm: LLM) -> None:
    choices = ["red", "green\n", 'say "hi"']
    outputs = run(llm, [params(seed, choice=choices) for seed in range(6)])
    assert {output.outputs[0].text for output in outputs} <= set(choices)
    nested = run(llm, params(grammar='root ::= "(" root ")" | "x"'))[0].outputs[0].text
    assert nested.count("(") == nested.count(")") == len(nested) // 2
    for output in run(llm, [params(seed, 0.7, json_object=True) for seed in range(4)]):
        if output.outputs[0].finish_reason == "stop":
            assert isinstance(json.loads(output.outputs[0].text), dict)


def test_greedy_takes_the_best_legal_token_at_each_step(llm: LLM) -> None:
    pattern = r"(The|A) [a-z]{3,8} (ran|sat)\."
    [output] = run(llm, params(temperature=0.0, regex=pattern, logprobs=5))
    backend = llm.engine.core.structured_output_manager.backend
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, pattern)
    for token, entry in zip(
        output.outputs[0].token_ids, output.outputs[0].logprobs or [], strict=True
    ):
        best = max(entry.items(), key=lambda item: item[1].logprob)[0]
        assert best == token and grammar.accept_tokens("", [token])
        finite = [i for i, logprob in entry.items() if logprob.logprob > -1e30]
        assert finite, "logprobs are those of the masked draw"


def test_a_mixed_batch_gives_each_what_it_gets_alone(llm: LLM) -> None:
    mixed = [
        params(1, json=CLOSED), params(2), params(3, regex="[a-z ]{5,20}"), params(4, 0.0),
        params(5, choice=["red", "blue"]), params(6, 0.0, json=CLOSED), params(7, top_k=5),
    ]  # fmt: skip
    together = [output.outputs[0].token_ids for output in run(llm, mixed)]
    assert together == [run(llm, one)[0].outputs[0].token_ids for one in mixed]


@pytest.mark.parametrize("options", [
    {"num_gpu_blocks": 22, "block_size": 4, "max_model_len": 64},  # preemption
    {"max_num_batched_tokens": 8}, {"enable_prefix_caching": False}, {"block_size": 1},
    {"structured_outputs_config": {"backend": "native"}},
])  # fmt: skip
def test_scheduling_changes_no_token(llm: LLM, options: dict[str, Any]) -> None:
    wanted = [params(seed, json=CLOSED, max_tokens=40) for seed in range(6)]
    expected = [output.outputs[0].token_ids for output in run(llm, wanted)]
    other = LLM("storyteller", **{"num_gpu_blocks": 300, **options})
    assert [output.outputs[0].token_ids for output in run(other, wanted)] == expected


DRAFTERS = [
    {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": 4,
    },
    {"method": "draft_model", "model": "storyteller-draft", "num_speculative_tokens": 3},
]


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda drafter: drafter["method"])
def test_drafts_change_no_greedy_token(llm: LLM, drafter: dict[str, Any]) -> None:
    wanted = [
        params(0, 0.0, 60, json=CLOSED), params(0, 0.0, 20), params(0, 0.0, json=PERSON),
        params(0, 0.0, regex="(ab c){9}"), params(0, 0.0, choice=["green green green", "blue"]),
    ]  # fmt: skip
    expected = [output.outputs[0].token_ids for output in run(llm, wanted)]
    other = LLM("storyteller", num_gpu_blocks=400, speculative_config=drafter)
    outputs = run(other, wanted)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    drawn = run(other, [params(seed, json=CLOSED) for seed in range(8)])
    for output in drawn:
        if output.outputs[0].finish_reason == "stop":
            assert Draft202012Validator(CLOSED).is_valid(json.loads(output.outputs[0].text))


@pytest.mark.parametrize("drafter", [None, DRAFTERS[0]], ids=["plain", "ngram"])
def test_a_grammar_sleeps_while_the_model_thinks(drafter: dict[str, Any] | None) -> None:
    """The first sentence stands for the reasoning: what follows its full stop has the form."""
    llm = LLM(
        "storyteller-draft", num_gpu_blocks=200, dtype="float32", reasoning_parser="@@@....",
        speculative_config=drafter,
    )  # fmt: skip
    once = "Once upon a time"
    both = [params(0, 0.0, regex="ab{9}a"), params(5, 0.7, regex="ab{9}a")]
    for output in run(llm, both, once):
        thought, end, text = output.outputs[0].text.partition(".")
        assert len(thought) > 9 and end and text == "abbbbbbbbba"
        assert output.outputs[0].finish_reason == "stop"
    ended = run(llm, both[0], "The end. So")[0]
    assert ended.outputs[0].text == "abbbbbbbbba"


def test_both_backends_write_the_same() -> None:
    pytest.importorskip("xgrammar")
    wanted = [params(seed, json=FLAT) for seed in range(6)]
    wanted += [params(0, regex="(ab c){9}"), params(0, choice=["a", "bc"])]
    texts = []
    for backend in ("native", "xgrammar"):
        config = {"backend": backend, "disable_any_whitespace": True}
        llm = LLM("storyteller", num_gpu_blocks=400, structured_outputs_config=config)
        texts.append([output.outputs[0].text for output in run(llm, wanted)])
    assert texts[0] == texts[1]


def test_a_request_may_ask_for_no_white_space(llm: LLM) -> None:
    for backend in ("native", "xgrammar"):
        if backend == "xgrammar":
            pytest.importorskip("xgrammar")
            llm = LLM(
                "storyteller", num_gpu_blocks=400, structured_outputs_config={"backend": backend}
            )
        compact = [params(seed, json=FLAT, disable_any_whitespace=True) for seed in range(3)]
        for output in run(llm, [*compact, params(9, json=FLAT)])[:3]:
            text = output.outputs[0].text
            assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_params_are_not_changed_and_can_be_used_again(llm: LLM) -> None:
    used = params(choice=["a\nb", "c"], n=4)
    before = copy.deepcopy(used)
    first = [o.text for o in run(llm, used)[0].outputs]
    assert used == before and [o.text for o in run(llm, used)[0].outputs] == first
    assert set(first) <= {"a\nb", "c"} and len(first) == 4


# ---------------------------------------------------------------- ends
def test_special_tokens_cannot_end_a_string(llm: LLM) -> None:
    bias = {0: 100.0, 1: 100.0, 2: 100.0}
    outputs = run(llm, [params(seed, json=CLOSED, logit_bias=bias) for seed in range(4)])
    for output in outputs:
        assert Draft202012Validator(CLOSED).is_valid(json.loads(output.outputs[0].text))
        assert not set(output.outputs[0].token_ids[:-1]) & {0, 1, 2}


def test_min_tokens_ends_where_the_grammar_does(llm: LLM) -> None:
    for output in run(llm, [params(seed, regex="yes|no", min_tokens=30) for seed in range(4)]):
        assert output.outputs[0].text in ("yes", "no")
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (
            "stop",
            "grammar_end",
        )
    [longer] = run(llm, params(regex="(ab)+", min_tokens=12, max_tokens=50))
    assert len(longer.outputs[0].token_ids) >= 12 and re.fullmatch("(ab)+", longer.outputs[0].text)


def test_ignore_eos_goes_on_while_the_grammar_can(llm: LLM) -> None:
    [output] = run(llm, params(regex="[ab]*", ignore_eos=True, max_tokens=30))
    assert output.outputs[0].finish_reason == "length" and len(output.outputs[0].token_ids) == 30
    [output] = run(llm, params(regex="yes|no", ignore_eos=True))
    assert output.outputs[0].text in ("yes", "no") and output.outputs[0].finish_reason == "stop"


def test_stop_strings_and_allowed_tokens(llm: LLM) -> None:
    [output] = run(llm, params(regex="[ab]{50}", stop=["b"]))
    assert output.outputs[0].finish_reason == "stop" and set(output.outputs[0].text) <= {"a"}
    digits = [llm.tokenizer.encode(str(digit))[0] for digit in range(10)]
    [output] = run(llm, params(regex="[0-9]{3}x?", allowed_token_ids=[*digits, 0]))
    assert re.fullmatch("[0-9]{3}", output.outputs[0].text)
    outputs = run(llm, [params(regex="[a-z]+", allowed_token_ids=digits), params(max_tokens=3)])
    assert "structured_outputs" in str(outputs[0].error) and outputs[1].error is None


def test_length_cuts_a_prefix(llm: LLM) -> None:
    [output] = run(llm, params(json=CLOSED, max_tokens=3))
    assert output.outputs[0].finish_reason == "length" and output.outputs[0].text.startswith("{")


# ---------------------------------------------------------------- mistakes and waiting
def test_a_bad_constraint_fails_only_its_own_request(llm: LLM) -> None:
    bad = [
        params(regex="(a"), params(regex=".*a.{18}"), params(json="[1]"), params(json={"not": {}}),
        params(grammar="root ::= root"), params(json={"$ref": "#"}), params(regex="a^b"),
    ]  # fmt: skip
    outputs = run(llm, [*bad, params(json=CLOSED), params(max_tokens=3)])
    for output in outputs[: len(bad)]:
        assert output.error and output.outputs[0].finish_reason == "error" and output.finished
    assert [output.error for output in outputs[len(bad) :]] == [None, None]
    assert len({output.error for output in outputs[: len(bad)]}) == len(bad)
    with pytest.raises(ValueError, match="missing \\)"):
        run(llm, params(regex="(a"))
    assert run(llm, params(regex="ab"))[0].outputs[0].text == "ab"


def test_without_a_tokenizer_a_constraint_is_refused() -> None:
    llm = LLM("storyteller", num_gpu_blocks=64, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="no tokenizer is loaded"):
        llm.generate([[5, 6]], params(regex="a"), use_tqdm=False)


def test_no_request_waits_for_the_grammar_of_another(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, core = threading.Event(), llm.engine.core
    compile_grammar = NativeBackend.compile_grammar

    def slowly(self: NativeBackend, *key: Any) -> Any:
        go_on.wait(PATIENCE)
        return compile_grammar(self, *key)

    monkeypatch.setattr(NativeBackend, "compile_grammar", slowly)
    llm.engine.add_request("slow", PROMPT, params(regex="a(b)"))  # not compiled before
    llm.engine.add_request("free", PROMPT, params(max_tokens=5))
    request = core.scheduler.requests["slow"]
    finished: list[str] = []
    while "free" not in finished:
        finished += [o.request_id for o in llm.engine.step() if o.finished]
        assert request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        assert request.structured_output_request.grammar is None
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < 0.2:
        llm.engine.step()
        steps += 1
    assert steps < 60, "a step in which all wait sleeps"
    go_on.set()
    while "slow" not in finished:
        finished += [o.request_id for o in llm.engine.step() if o.finished]
    assert request.structured_output_request.grammar is not None
    assert request.output_token_ids[-1] in (0, 2)


def test_an_aborted_request_leaves_nothing(llm: LLM) -> None:
    manager = llm.engine.core.structured_output_manager
    llm.engine.add_request("gone", PROMPT, params(json=CLOSED))
    llm.engine.step()
    llm.engine.abort_requests(["gone"])
    llm.engine.step()
    assert not manager.requests
