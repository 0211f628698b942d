"""Every bad value is refused with a message that names the value, the limit and the fix."""

from __future__ import annotations

import subprocess
import sys
import typing
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from mini_vllm.sampling_fields import derive_seed
from mini_vllm.sampling_params import (
    MIN_TEMPERATURE,
    OtherParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    StructuredOutputsParams,
)

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1; leave it out for"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5 (float); it must be an integer"),
        ({"top_k": "5"}, "top_k is '5' (str); it must be an integer"),
        ({"top_k": -2}, "top_k is -2; it must be at least 1; 0 or -1 switches it off"),
        ({"top_k": True}, "top_k is True (bool)"),
        ({"temperature": NAN}, "temperature is nan; it must be finite"),
        ({"temperature": INF}, "temperature is inf"),
        ({"temperature": -1}, "temperature is -1; it must be finite and at least 0"),
        ({"temperature": None}, "temperature is None"),
        ({"top_p": 0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"min_p": 1.01}, "min_p is 1.01; it must be between 0 and 1"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must be between -2 and 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be finite and above 0"),
        ({"n": 0}, "n is 0; it must be between 1 and 16384"),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be between -2**63 and"),
        ({"logprobs": -2}, "logprobs is -2; it must be at least 0, or -1"),
        ({"prompt_logprobs": -2}, "prompt_logprobs is -2"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 17}, "min_tokens is 17; it must be at most max_tokens, which is 16"),
        ({"ignore_eos": 1}, "ignore_eos is 1; it must be True or False"),
        ({"seed": np.array([1, 2])}, "seed is array([1, 2])"),
        ({"bad_words": np.array([1, 2])}, "bad_words is array([1, 2]); it must be a list of"),
        ({"routed_experts_prompt_start": np.array([1, 2])}, "start is array([1, 2]); it must be 0"),
        ({"spaces_between_special_tokens": 1}, "spaces_between_special_tokens is 1; it must be"),
        ({"stop": 3}, "stop is 3; it must be a list of strings"),
        ({"stop": ["a", ""]}, "stop holds an empty string"),
        ({"stop": ""}, "stop holds an empty string"),
        ({"stop": "a", "detokenize": False}, "stop is ['a'] but detokenize is False"),
        ({"stop_token_ids": ["2"]}, "stop_token_ids is ['2']; it must be a list of token ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": 3}, "allowed_token_ids is 3"),
        ({"logit_bias": {"x": 1}}, "logit_bias has the key 'x'"),
        ({"logit_bias": {1: NAN}}, "logit_bias[1] is nan"),
        ({"logit_bias": [1]}, "logit_bias is [1]; it must be a dict"),
        ({"extra_args": 1}, "extra_args is 1"),
        ({"n": 2, "temperature": 0}, "n is 2 with temperature 0"),
        ({"stop": "\ud800"}, "stop holds '\\ud800', half of a surrogate pair"),
        ({"logit_bias": {True: 1}}, "logit_bias has the key True"),
        # What int64 or float32 cannot hold would end the step of all requests.
        ({"min_tokens": 2**63, "max_tokens": None}, "at least 0, and int64 must hold it"),
        ({"max_tokens": 2**63}, "max_tokens is 9223372036854775808; it must be at least 1, and"),
        (
            {"top_k": 10**5000},
            "top_k is an integer of 16610 bits; it must be at least 1, and int64",
        ),
        (
            {"temperature": 1e39},
            "temperature is 1e+39; it must be finite and at least 0, and float",
        ),
        ({"temperature": Fraction(1, 2)}, "temperature is Fraction(1, 2) (Fraction); it must be"),
        ({"temperature": Decimal("0.5")}, "temperature is Decimal('0.5') (Decimal); it must be"),
        ({"top_p": Fraction(1, 2)}, "top_p is Fraction(1, 2) (Fraction); it must be a number"),
        ({"temperature": 10**400}, "temperature is an integer of 1329 bits; it must be finite"),
        ({"repetition_penalty": 1e-46}, "repetition_penalty is 1e-46; it must be finite and above"),
        ({"repetition_penalty": 1e39}, "repetition_penalty is 1e+39; it must be finite and above"),
        ({"logit_bias": {1: 1e39}}, "logit_bias[1] is 1e+39; it must be finite, and float32 must"),
        ({"logit_bias": {1: 10**400}}, "logit_bias[1] is an integer of 1329 bits; it must be"),
        ({"logit_bias": {1: Fraction(1, 2)}}, "logit_bias[1] is Fraction(1, 2) (Fraction)"),
        (
            {"stop_token_ids": list(range(10**5)) + ["x"]},
            "stop_token_ids is [0, 1, 2, 3, 4, 5, ...]",
        ),
    ],
)
def test_bad_value(values, words):
    with pytest.raises(ValueError) as error:
        SamplingParams(**values)
    assert words in str(error.value)
    assert len(str(error.value)) < 300


def test_numbers_of_numpy_become_pythons_own():
    """They cross process boundaries and end up in tensors together with others."""
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=[np.int32(7)],
        allowed_token_ids=[np.uint8(1)], logit_bias={np.int64(2): np.float16(1.5)},
    )  # fmt: skip
    assert (params.temperature, params.top_k) == (0.5, 3)
    found = [params.temperature, params.top_k, params.stop_token_ids[0]]
    found += [params.allowed_token_ids[0], *params.logit_bias, *params.logit_bias.values()]
    assert [type(value) for value in found] == [float, int, int, int, int, float]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"guided_decoding": {}}, "'guided_decoding' was vLLM's: use structured_outputs"),
        ({"logits_processors": []}, "was vLLM's: classes of your own are given to LLM"),
        ({"use_beam_search": True}, "was vLLM's: call LLM.beam_search"),
    ],
)
def test_a_name_that_vllm_had_before(values, words):
    with pytest.raises(TypeError, match=words):
        SamplingParams(**values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"whitespace_pattern": " ?"}, "whitespace_pattern=' .'; use disable_any_whitespace"),
        ({"disable_additional_properties": True}, "set it in structured_outputs_config"),
        ({"disable_any_whitespace": "no"}, "disable_any_whitespace is 'no'"),
    ],
)
def test_options_of_a_constraint(options, words):
    with pytest.raises(ValueError, match=words):
        StructuredOutputsParams(json={}, **options)
    nothing = {"whitespace_pattern": None, "disable_additional_properties": False}
    assert StructuredOutputsParams(json={}, **nothing) == StructuredOutputsParams(json={})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "did you mean temperature?"),
        ("max_token", "did you mean max_tokens?"),
        ("topk", "did you mean top_k?"),
        ("zzz", "known names: n, presence_penalty"),
    ],
)
def test_unknown_name(name, hint):
    with pytest.raises(TypeError) as error:
        SamplingParams(**{name: 1})
    assert f"unknown sampling parameter '{name}'; {hint}" in str(error.value)
    with pytest.raises(ValueError) as error:
        SamplingParams.from_dict({name: 1})
    assert hint in str(error.value)


def test_defaults_are_vllms():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.logprobs) == (16, 0, None)
    assert (params.stop, params.stop_token_ids) == ([], [])
    assert (params.presence_penalty, params.repetition_penalty) == (0.0, 1.0)
    assert not params.is_greedy and not params.skip_reading_prefix_cache


def test_normal_forms():
    assert SamplingParams(stop="end").stop == ["end"]
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(logprobs=True).logprobs == 1
    assert SamplingParams(max_tokens=None, min_tokens=1000).max_tokens is None
    assert SamplingParams(stop_token_ids=[3, 3]).all_stop_token_ids == {3}
    assert SamplingParams(stop_token_ids=[3], eos_token_ids=[1, 2]).all_stop_token_ids == {1, 2, 3}
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache
    assert SamplingParams.from_dict({"logit_bias": {"7": -100}}).logit_bias == {7: -100}


def test_greedy_switches_the_filters_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert params.is_greedy
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)


def test_tiny_temperature_is_raised(caplog):
    assert SamplingParams(temperature=1e-6).temperature == MIN_TEMPERATURE
    assert "temperature 1e-06 is below 0.01" in caplog.text


def test_clone_shares_nothing():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0})
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")
    copy.logit_bias[1] = 3.0
    assert params.stop == ["a"] and params.logit_bias == {1: 2.0}


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
@pytest.mark.parametrize("token_id", [-1, 100])
def test_token_outside_the_vocabulary(name, token_id):
    value = {token_id: 1.0} if name == "logit_bias" else [token_id]
    params = SamplingParams(**{name: value})
    with pytest.raises(ValueError, match=f"{name} holds token {token_id}.*vocabulary size 100"):
        params.verify(vocab_size=100)
    SamplingParams(stop_token_ids=[0, 99]).verify(vocab_size=100)


def test_derived_seeds_differ_and_repeat():
    seeds = {derive_seed(engine, number) for engine in range(30) for number in range(30)}
    assert len(seeds) == 900
    assert derive_seed(0, 1) == derive_seed(0, 1)
    assert SamplingParams(seed=max(seeds)).seed == max(seeds)


def test_import_needs_no_torch():
    code = "import sys, mini_vllm.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("name", "only", "other"),
    [
        ("routed_experts_prompt_start", 0, 3),
    ],
)
def test_names_of_vllm_with_one_value_are_taken(name: str, only: object, other: object) -> None:
    assert getattr(SamplingParams(**{name: only}), name) == only
    with pytest.raises(ValueError, match=f"{name} is {other}; it must be {only}: "):
        SamplingParams(**{name: other})


def test_a_type_checker_is_told_of_every_field_that_may_be_left_open() -> None:
    """None stands for the default; JSON spells the tokens of a bias as strings."""
    fields = typing.get_type_hints(SamplingParams)
    open_too = "n presence_penalty frequency_penalty repetition_penalty temperature top_p".split()
    fields |= {name: fields[name] | None for name in open_too}
    fields["logit_bias"] = Mapping[int, float] | Mapping[str, float] | None
    taken = typing.get_type_hints(SamplingParams.from_optional)
    del taken["others"], taken["return"]
    assert taken | typing.get_type_hints(OtherParams) == fields


def test_arguments_may_be_given_in_the_order_of_vllm() -> None:
    by_name = SamplingParams(2, min_p=0.1, seed=7, stop="x", stop_token_ids=[3], ignore_eos=True)
    assert SamplingParams(2, 0.0, 0.0, 1.0, 1.0, 1.0, 0, 0.1, 7, "x", [3], True) == by_name
    made = SamplingParams.from_optional(
        None, None, None, None, 0.5, None, 5, 0.1, 7, "x", [3], ["bad"], None, True, True, 8, 2,
        1, 1, True, False, True, RequestOutputKind.DELTA, None, {"4": 200.0}, [4], {"a": 1},
    )  # fmt: skip
    assert made == SamplingParams(
        temperature=0.5, top_k=5, min_p=0.1, seed=7, stop="x", stop_token_ids=[3],
        bad_words=["bad"], include_stop_str_in_output=True, ignore_eos=True, max_tokens=8,
        min_tokens=2, logprobs=1, prompt_logprobs=1, skip_special_tokens=False,
        output_kind=RequestOutputKind.DELTA, logit_bias={4: 100.0}, allowed_token_ids=[4],
        extra_args={"a": 1},
    )  # fmt: skip
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(*[None] * 40)


def test_skip_clone_shares_what_a_clone_copies() -> None:
    shared = SamplingParams(stop=["a"], skip_clone=True)
    assert shared.clone() is not shared and shared.clone().stop is shared.stop
    own = SamplingParams(stop=["a"])
    assert own.clone().stop is not own.stop


def test_end_tokens_of_a_generation_config_end_the_output() -> None:
    params = SamplingParams(stop_token_ids=[9])
    params.update_from_generation_config({"eos_token_id": [2, 5]}, 2)
    assert (params.eos_token_id, params.stop_token_ids) == (2, [5, 9])
    assert params.all_stop_token_ids == {2, 5, 9}
    params = SamplingParams(ignore_eos=True)
    params.update_from_generation_config({"eos_token_id": 5}, 2)
    assert (params.eos_token_id, params.stop_token_ids) == (None, [])
    assert params.all_stop_token_ids == {2, 5}  # min_tokens masks them


def test_what_is_asked_of_a_text_is_told() -> None:
    tagged = StructuredOutputsParams(structural_tag={"type": "structural_tag"})
    assert not tagged.all_constraints_none()
    assert tagged.all_non_structural_tag_constraints_none()
    assert not StructuredOutputsParams(regex="a").all_non_structural_tag_constraints_none()


def test_how_tokens_are_chosen_and_how_many_logprobs_are_told() -> None:
    kinds = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(seed=1)]
    assert [params.sampling_type for params in kinds] == [
        SamplingType.GREEDY, SamplingType.RANDOM, SamplingType.RANDOM_SEED,
    ]  # fmt: skip
    assert SamplingParams(logprobs=3).num_logprobs == 3
    assert SamplingParams(logprob_token_ids=[4, 5]).num_logprobs == 2
    assert SamplingParams().num_logprobs is None
