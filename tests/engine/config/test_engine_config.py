"""Arguments sorted into sections, and what is refused: by name, with the nearest, with the fix."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mini_vllm.config import (
    EngineConfig,
    EPLBConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    MultiModalConfig,
    ParallelConfig,
    SpeculativeConfig,
    StructuredOutputsConfig,
)
from mini_vllm.config.combinations import FEATURES, ROWS, check
from mini_vllm.config.engine import (
    ARGUMENT_NAMES,
    FLAT_SECTIONS,
    LEFT_OPEN,
    WHOLE_SECTIONS,
    arguments,
)
from mini_vllm.config.scheduler import FLAGS
from mini_vllm.config.vllm_names import DEFAULTS, REFUSED
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.entrypoints.cli import build_parser
from mini_vllm.model.families.table import LLAMA
from mini_vllm.model.mixers.args import GatedDeltaArgs, Mamba2Args
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.policies import POLICIES, scheduler_class


def config(**options: Any) -> EngineConfig:
    return EngineConfig.from_kwargs("storyteller", **options)


def test_every_section_has_a_place_and_every_argument_one_section() -> None:
    sections = {item.name for item in dataclasses.fields(EngineConfig)} - {"fits_max_model_len"}
    assert sections == {*FLAT_SECTIONS, *(name for name, _ in WHOLE_SECTIONS.values())}
    names = [item.name for cls in FLAT_SECTIONS.values() for item in dataclasses.fields(cls)]
    names = [ARGUMENT_NAMES.get(name, name) for name in names]
    assert len(names) == len(set(names)) and set(arguments()) == set(names) - {"model"}


def test_arguments_are_sorted_into_sections() -> None:
    made = config(
        block_size=8,
        max_num_seqs=3,
        seed=5,
        tensor_parallel_size=2,
        limit_mm_per_prompt={"image": 2},
    )
    assert made.cache.block_size == 8 and made.scheduler.max_num_seqs == 3
    assert made.model.seed == 5 and made.model.model.endswith("storyteller")
    assert made.parallel == ParallelConfig(tensor_parallel_size=2)
    assert made.multimodal == MultiModalConfig({"image": 2})
    assert made.lora is made.speculative is made.kv_transfer is None
    assert made.structured == StructuredOutputsConfig()


@pytest.mark.parametrize(
    "open_", [{}, {"max_model_len": None}, {"max_model_len": -1}, {"max_model_len": "auto"}]
)
def test_a_length_may_be_left_open(open_: dict[str, Any]) -> None:
    assert config(**open_).fits_max_model_len
    given = config(max_model_len=7)
    assert (given.fits_max_model_len, given.scheduler.max_model_len) == (False, 7)


def test_an_unset_step_limit_follows_the_other() -> None:
    """As in vLLM. Both given count as they are: a request without a token gets one later."""

    def limits(**options: int) -> tuple[int, int]:
        found = config(max_model_len=8, **options).scheduler
        return found.max_num_batched_tokens, found.max_num_seqs

    assert limits(max_num_batched_tokens=8) == (8, 8)
    assert limits(max_num_batched_tokens=4096) == (4096, 128)
    assert limits(max_num_seqs=4096) == (4096, 4096)
    assert limits(max_num_batched_tokens=8, max_num_seqs=9) == (8, 9)
    with pytest.raises(ValueError, match="max_num_batched_tokens is 0"):
        limits(max_num_batched_tokens=0)


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_what_vllm_leaves_open_may_be_none(name: str) -> None:
    assert EngineConfig.from_kwargs("storyteller", **{name: None}) == EngineConfig.from_kwargs(
        "storyteller"
    )


def test_a_token_and_a_scheduler_may_be_left_to_the_engine() -> None:
    assert EngineConfig.from_kwargs("storyteller", hf_token=True).model.hf_token is True
    assert scheduler_class(None) is Scheduler


@pytest.mark.parametrize("name", [*DEFAULTS, *REFUSED])
def test_what_vllm_does_anyway_may_be_written_down(name: str) -> None:
    """None is the default of most; scripts write the others, too."""
    plain = EngineConfig.from_kwargs("storyteller")
    for value in (None, *DEFAULTS.get(name, ()), [], {}):
        assert EngineConfig.from_kwargs("storyteller", **{name: value}) == plain
    with pytest.raises(ValueError, match=f"{name} is vLLM's, and not supported"):
        EngineConfig.from_kwargs("storyteller", **{name: "other"})


@pytest.mark.parametrize("value", ["False", 0, 1.5, [], "x"])
@pytest.mark.parametrize(
    "name", ["enforce_eager", "compile_model", "enable_prefix_caching", *FLAGS]
)
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    """A word such as "False" would switch it on."""
    with pytest.raises(ValueError, match=f"{name} is .*; it must be True or False"):
        EngineConfig.from_kwargs("storyteller", **{name: value})


def test_adapters_need_their_switch() -> None:
    assert config(enable_lora=True, max_loras=4).lora == LoRAConfig(max_loras=4)
    assert config(enable_lora=False).lora is None
    assert config(enable_lora=False, max_loras=4, max_lora_rank=16).lora is None
    assert config(max_lora_rank=16).lora is None, "as in vLLM, which clients rely on"


def test_a_whole_section_is_a_dict_its_json_or_the_dataclass() -> None:
    wanted = KVTransferConfig("SharedStorageConnector", "kv_both")
    fields = {"kv_connector": "SharedStorageConnector", "kv_role": "kv_both"}
    for value in (wanted, fields, json.dumps(fields)):
        assert config(kv_transfer_config=value).kv_transfer == wanted
    assert config(kv_transfer_config=None).kv_transfer is None
    assert config(structured_outputs_config={"backend": "native"}).structured.backend == "native"
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    assert config(speculative_config=drafts).speculative == SpeculativeConfig(**drafts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_transfer_config": {"kv_rol": "kv_both"}}, "no key 'kv_rol'; did you mean kv_role?"),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "kv_transfer_config needs 'kv_connector'"),
        ({"kv_transfer_config": "{kv"}, "that is not JSON"),
        ({"kv_transfer_config": 3}, "kv_transfer_config is 3; it must be an object or a KVTra"),
        ({"structured_outputs_config": {"backend": "outlines"}}, "one of auto, native, xgrammar"),
        ({"speculative_config": {}}, "speculative_config needs 'num_speculative_tokens'"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; it must be at least 1"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True; it must be a whole"),
        ({"data_parallel_size": 10**6}, "are 1000000 workers; this machine has memory for"),
        ({"disable_custom_all_reduce": "no"}, "disable_custom_all_reduce is 'no'; it must be True"),
        ({"distributed_executor_backend": "mpi"}, "must be one of uni, mp, ray"),
        ({"enable_lora": True, "max_cpu_loras": 1, "max_loras": 2}, "max_cpu_loras is 1; it must"),
        ({"enable_lora": True, "max_lora_rank": 0}, "max_lora_rank is 0; it must be at least 1"),
        ({"limit_mm_per_prompt": {"video": 1}}, "must be one of image"),
        ({"limit_mm_per_prompt": {"image": -1}}, "'image'] is -1; it must be at least 0"),
        ({"encoder_cache_size": 0}, "encoder_cache_size is 0; it must be at least 1"),
    ],
)
def test_a_bad_value_is_refused_with_limit_and_fix(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        config(**options)
    assert message in str(caught.value)


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="'tensor_paralel_size'; did you mean tensor_parallel_size"):
        config(tensor_paralel_size=2)
    with pytest.raises(TypeError, match="'speculative'; did you mean speculative_config"):
        config(speculative={})


def test_the_command_line_has_an_option_for_every_argument() -> None:
    parser = build_parser()
    words = ["generate", "--enable-lora", "--max-loras", "2", "--tensor-parallel-size", "2",
             "--speculative-config", '{"num_speculative_tokens": 2}',
             "--limit-mm-per-prompt", '{"image": 1}']  # fmt: skip
    args = vars(parser.parse_args(words))
    assert args["enable_lora"] is True and args["max_loras"] == 2
    assert args["tensor_parallel_size"] == 2 and args["limit_mm_per_prompt"] == {"image": 1}
    commands = next(action for action in parser._actions if action.dest == "command")
    actions = commands.choices["generate"]._actions  # type: ignore[index]
    options = {option for action in actions for option in action.option_strings}
    wanted = (*arguments(), *WHOLE_SECTIONS)
    assert {"--" + name.replace("_", "-") for name in wanted} <= options


# ------------------------------------------------------------------ what goes together

MODEL = dataclasses.make_dataclass(
    "Shape",
    [("num_attention_heads", int, 4), ("num_key_value_heads", int, 2),
     ("intermediate_size", int, 64), ("num_hidden_layers", int, 3), ("moe", Any, None),
     ("parts", Any, LLAMA), ("gated_delta", Any, None), ("mamba2", Any, None)],
)  # fmt: skip
EVERYTHING = frozenset({"tp", "pp", "lora", "quantization", "compile"})
WAYS: dict[str, dict[str, Any]] = {
    "speculative_config": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    "tensor_parallel_size > 1": {"tensor_parallel_size": 2},
    "pipeline_parallel_size > 1": {"pipeline_parallel_size": 2},
    'distributed_executor_backend="uni"': {"distributed_executor_backend": "uni"},
    "more than one worker": {"data_parallel_size": 2},
    "several workers of one model": {"tensor_parallel_size": 2},
    "enable_lora": {"enable_lora": True},
    "structured_outputs_config": {"structured_outputs_config": {"backend": "native"}},
    "kv_transfer_config": {"kv_transfer_config": KVTransferConfig("X", "kv_both")},
    "a drafter with KV of its own": {
        "speculative_config": {
            "method": "draft_model",
            "model": "storyteller-draft",
            "num_speculative_tokens": 2,
        }
    },
    "workers in processes of their own": {"distributed_executor_backend": "mp"},
    "compile_model": {"compile_model": True},
    "logits_processors": {"logits_processors": ["module:Class"]},
    "quantization": {"quantization": "int8"},
    "enable_prefix_caching=False": {"enable_prefix_caching": False},
    "async_scheduling": {"async_scheduling": True},
    "kv_events_config": {"kv_events_config": {"enable_kv_cache_events": True}},
    "a quantised KV cache": {"kv_cache_dtype": "fp8"},
    "num_lookahead_tokens > 0": {"num_lookahead_tokens": 1},
    "disable_hybrid_kv_cache_manager": {"disable_hybrid_kv_cache_manager": True},
    "runner='pooling'": {"runner": "pooling"},
}
"""How to bring about each feature that a configuration has."""
HAS = {
    "images": "images",
    "layers that keep a state": "states",
    "layers that keep latents": "latents",
}
"""What makes a model bring about the others: a word of its `supports`,"""
LACKS = {
    "a model without tensor parallelism": "tp",
    "a model without pipeline parallelism": "pp",
    "a model without adapters": "lora",
    "a model in full precision only": "quantization",
    "a model that does not compile": "compile",
}
"""or the lack of one."""


def refusal(row: Any) -> str:
    """What `check` says when both sides of a row come together; "" if nothing."""
    options: dict[str, Any] = {}
    supports, scheduler_cls = set(EVERYTHING), Scheduler
    for side in (row.left, row.right):
        options |= WAYS.get(side, {})
        if side in LACKS:
            supports.remove(LACKS[side])
        elif side in HAS:
            supports.add(HAS[side])
        elif side.startswith("a scheduler without"):
            scheduler_cls = POLICIES["vllm-v0"]
        else:
            assert side in WAYS, f"the test does not know how to bring about {side!r}"
    try:
        check(config(**options), MODEL(), frozenset(supports), scheduler_cls)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.left} + {row.right}")
def test_every_row_is_refused_with_its_reason_and_fix(row: Any) -> None:
    text = refusal(row)
    assert row.why in text and text.endswith(row.fix), text


@pytest.mark.parametrize("name", sorted(WAYS))
def test_a_feature_alone_is_allowed(name: str) -> None:
    check(config(**WAYS[name]), MODEL(), EVERYTHING, Scheduler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tensor_parallel_size": 3},
            "is 3; it must divide the model's num_attention_heads=4; use 1, 2 or 4$",
        ),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 4}, "the model has 3 layers"),
    ],
)
def test_sizes_that_cannot_be_shared_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(config(**options), MODEL(), EVERYTHING, Scheduler)
    check(config(tensor_parallel_size=4), MODEL(), EVERYTHING, Scheduler)  # 2 KV heads, repeated
    odd = MODEL(num_attention_heads=12, num_key_value_heads=3)
    with pytest.raises(ValueError, match=r"num_key_value_heads=3 must be a multiple .*; use 1$"):
        check(config(tensor_parallel_size=4), odd, EVERYTHING, Scheduler)
    with pytest.raises(ValueError, match="must divide the model's intermediate_size=6; use 1 or 2"):
        check(config(tensor_parallel_size=4), MODEL(intermediate_size=6), EVERYTHING, Scheduler)


def test_states_that_cannot_be_shared_out() -> None:
    """By key heads, which serve neighbours; a group that all heads share is on every rank."""
    delta = MODEL(gated_delta=GatedDeltaArgs(2, 4, 8, 8, 4))
    check(config(tensor_parallel_size=2), delta, EVERYTHING, Scheduler)
    with pytest.raises(ValueError, match=r"linear_num_key_heads=2; use 1 or 2$"):
        check(config(tensor_parallel_size=4), delta, EVERYTHING, Scheduler)
    space = Mamba2Args(8, 8, 8, 1, 4, True, False)
    alone = replace(LLAMA, mixers=["mamba2"] * 3, feed_forwards=["none"] * 3)
    only = MODEL(1, 1, 1, parts=alone, mamba2=space)  # it has neither attention nor an MLP
    check(config(tensor_parallel_size=8), only, EVERYTHING, Scheduler)
    with pytest.raises(ValueError, match=r"state-space heads=8; use 1, 2, 4 or 8$"):
        check(config(tensor_parallel_size=3), only, EVERYTHING, Scheduler)
    groups = MODEL(mamba2=replace(space, n_groups=2))
    with pytest.raises(ValueError, match=r"groups of state-space heads=2; use 1 or 2$"):
        check(config(tensor_parallel_size=4), groups, EVERYTHING, Scheduler)


def test_experts_that_cannot_be_shared_out() -> None:
    whole = dict(tensor_parallel_size=4, enable_expert_parallel=True)
    experts = MODEL(moe=MoEArgs(6, 2, 30))
    with pytest.raises(ValueError, match="the model has no experts to share out; leave it out"):
        check(config(**whole), MODEL(), EVERYTHING, Scheduler)
    with pytest.raises(ValueError, match=r"num_experts=6 and .* with enable_eplb, 2 redundant"):
        check(config(**whole), experts, EVERYTHING, Scheduler)
    copies = dict(enable_eplb=True, eplb_config={"num_redundant_experts": 2})
    check(config(**whole, **copies), experts, EVERYTHING, Scheduler)
    with pytest.raises(ValueError, match="must divide the model's moe_intermediate_size=30; use 1"):
        check(config(tensor_parallel_size=4), experts, EVERYTHING, Scheduler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_eplb": True}, "enable_eplb is True, and enable_expert_parallel is False"),
        (
            {"enable_eplb": True, "enable_expert_parallel": True},
            "tensor_parallel_size is 1: one rank has all experts",
        ),
        (
            {"eplb_config": '{"num_redundant_experts": 2}'},
            "num_redundant_experts is 2, and enable_eplb is False",
        ),
        ({"eplb_config": {"step_intervall": 2}}, "eplb_config has no key 'step_intervall'"),
        ({"eplb_config": {"window_size": 0}}, "window_size is 0; it must be at least 1"),
        ({"eplb_config": {"use_async": True}}, "weights move between two steps; leave it out"),
        ({"eplb_config": 3}, "eplb_config is 3; it must be an object or a EPLBConfig"),
    ],
)
def test_settings_of_experts_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**options)
    assert config(eplb_config={"communicator": "torch_gloo"}).parallel.eplb_config == EPLBConfig()


def test_every_name_in_the_tables_is_a_feature() -> None:
    assert {side for row in ROWS for side in (row.left, row.right)} <= set(FEATURES)


def test_the_plain_engine_is_allowed() -> None:
    plain = EngineConfig(ModelConfig("m"))
    for scheduler_cls in (Scheduler, *POLICIES.values()):
        check(plain, MODEL(), frozenset(), scheduler_cls)
