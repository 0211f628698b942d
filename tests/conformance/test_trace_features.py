"""The keys that features bring to a trace: absent where a feature is off, refused where it is not
there, and a pretended proposer, model and grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labkit.trace.format import (
    FEATURE_FIELDS,
    STEP_FIELDS,
    External,
    TraceConfig,
    TraceError,
    config_dict,
    draft_tokens,
    dump_trace,
    parse_trace,
    sample_token,
    sample_tokens,
    step_fields,
)
from labkit.trace.runner import run_reference

ADD = {"op": "add", "id": "r0", "prompt": [1, 2, 3]}


def run(*events: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    return list(run_reference(parse_trace({"config": config, "events": list(events)})))


@pytest.mark.parametrize(
    ("event", "config", "message"),
    [
        ({"lora": "a"}, {}, "lora needs max_loras in the config; set it"),
        ({"images": [[0, 2, "x"]]}, {}, "images needs encoder_cache_size in the config"),
        ({"external": {}}, {}, "external needs connector in the config"),
        ({"images": [[0, 2]]}, {"encoder_cache_size": 8}, "[offset, length, hash]"),
        ({"external": {"answer": [3]}}, {"connector": "sync"}, "no key 'answer'; did you mean"),
        ({"external": {"answers": 3}}, {"connector": "sync"}, "answers is 3; it must be a list"),
        ({"grammar": -1}, {}, "grammar is -1; it must be at least 0"),
        ({}, {"connector": "both"}, "connector is 'both'; it must be 'sync' or 'async'"),
        ({}, {"spec_method": "oracle"}, "spec_method is 'oracle'; it must be 'ngram' or"),
        ({}, {"kv_load_failure_policy": "x"}, "it must be 'recompute' or 'fail'"),
        ({}, {"preemption_mode": "hope"}, "it must be 'swap' or 'recompute'"),
    ],
)
def test_a_wrong_key_is_refused(event: dict, config: dict, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace({"config": config, "events": [ADD | event]})
    assert message in str(caught.value)


def test_features_survive_writing_and_reading() -> None:
    event = ADD | {
        "lora": "a", "grammar": 2, "images": [[0, 2, "x"], [2, 1, "y", 1]],
        "external": {"answers": [None, 2], "arrive": 2, "invalid": [0], "keep": 3},
    }  # fmt: skip
    config = {"max_loras": 2, "encoder_cache_size": 8, "connector": "async"}
    trace = parse_trace({"config": config, "events": [event]})
    assert parse_trace(json.loads(dump_trace(trace))) == trace
    assert trace.to_dict()["events"] == [event] and trace.to_dict()["config"] == config
    assert trace.events[0].external == External((None, 2), 2, (0,), 3)  # type: ignore[union-attr]


def test_an_unused_feature_leaves_no_trace() -> None:
    plain = TraceConfig()
    assert step_fields(plain) == STEP_FIELDS
    assert not any(
        name.startswith(("spec", "num_spec", "max_loras")) for name in config_dict(plain)
    )
    drafts = TraceConfig(num_speculative_tokens=2)
    assert step_fields(drafts) == (*STEP_FIELDS, *FEATURE_FIELDS["num_speculative_tokens"])
    assert config_dict(drafts)["num_speculative_tokens"] == 2


def test_the_pretended_proposer_is_right_now_and_then() -> None:
    for accept, right in ((1000, True), (0, False)):
        config = TraceConfig(num_speculative_tokens=3, spec_accept=accept, vocab_size=50)
        guesses = draft_tokens("r0", 7, config, sampled=True)
        truth = [sample_token("r0", position, 50) for position in range(7, 10)]
        assert len(guesses) == 3 and (guesses == truth) is right
    ragged = TraceConfig(num_speculative_tokens=3, spec_ragged=True)
    lengths = {len(draft_tokens("r0", n, ragged, sampled=True)) for n in range(40)}
    assert lengths == {0, 1, 2, 3} and draft_tokens("r0", 7, ragged, sampled=False) == []


def test_the_pretended_model_verifies() -> None:
    truth = [sample_token("r0", position, 50) for position in range(7, 11)]
    assert sample_tokens("r0", 7, truth[:3], 50) == truth
    wrong = [truth[0], truth[1] + 1, truth[2]]
    assert sample_tokens("r0", 7, wrong, 50) == truth[:2]
    assert sample_tokens("r0", 7, [], 50) == truth[:1]


def test_drafts_change_the_steps_and_not_the_text() -> None:
    events = (ADD | {"max_tokens": 12}, {"op": "drain"})
    plain = run(*events)
    fast = run(*events, num_speculative_tokens=3, spec_accept=800)
    text = [token for line in fast for token in line["sampled"].get("r0", [])]
    assert text == [sample_token("r0", position, 32000) for position in range(3, 15)]
    assert len(fast) < len(plain)
    assert all(set(line["spec"]) <= set(line["scheduled"]) for line in fast)


def test_a_request_waits_for_its_grammar_beside_the_line() -> None:
    other = {"op": "add", "id": "r1", "prompt": [4, 5]}
    lines = run(ADD | {"grammar": 2}, other, {"op": "step", "n": 4})
    assert [list(line["scheduled"]) for line in lines] == [
        ["r1"],
        ["r1"],
        ["r1", "r0"],
        ["r1", "r0"],
    ]
    assert lines[0]["waiting"] == ["r0"]


@pytest.mark.parametrize(
    "config",
    [
        {"max_loras": 1},
        {"encoder_cache_size": 8},
        {"connector": "sync"},
    ],
)
def test_each_feature_can_be_alone(config: dict) -> None:
    run(ADD, {"op": "step"}, **config)
