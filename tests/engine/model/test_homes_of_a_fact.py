"""Facts that several files of a checkpoint may say: each home is read, and an override counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.config import ModelConfig
from mini_vllm.engine.checked_config import load_model_args, make_engine_config
from mini_vllm.model.checkpoint_files import load_tokenizer, read_eos_token_id
from mini_vllm.model.config import ModelArgs, load_config
from mini_vllm.model.generation import default_sampling_params, without_effect
from mini_vllm.model.rope import compute_inv_freq
from mini_vllm.quantization.config import get_quantization_config
from tests.engine.reports.loading import checkpoint, ends

NO_END = {"config.json": {"eos_token_id": None}, "generation_config.json": None}


def test_a_tokenizer_alone_ends_the_text() -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell me a story about a cat."}]
    params = SamplingParams(temperature=0, max_tokens=400)
    expected = LLM("storyteller-draft").chat(messages, params, use_tqdm=False)[0].outputs[0]
    with checkpoint(NO_END) as folder:
        llm = LLM(str(folder))
        found, on = llm.chat(
            [messages, messages],
            [params, SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)],
            use_tqdm=False,
        )
    assert expected.finish_reason == "stop"
    assert found.outputs[0].token_ids == expected.token_ids
    assert (found.outputs[0].finish_reason, found.outputs[0].stop_reason) == ("stop", None)
    assert on.outputs[0].finish_reason == "length"


def test_min_tokens_keeps_every_end_away() -> None:
    files = {"config.json": {"eos_token_id": 0}, "generation_config.json": {"eos_token_id": [7]}}
    params = {"logit_bias": {0: 100, 2: 100, 7: 100}, "min_tokens": 3, "max_tokens": 9}
    with checkpoint(files) as folder:
        output = (
            LLM(str(folder))
            .generate("Once", SamplingParams(temperature=0, **params), use_tqdm=False)[0]
            .outputs[0]
        )
    assert len(output.token_ids) == 4 and not {0, 2, 7} & set(output.token_ids[:3])
    assert output.token_ids[3] in (0, 2, 7)


def test_the_files_and_the_library_agree_on_the_end(tmp_path: Path) -> None:
    for name in ("storyteller", "storyteller-vision"):
        folder = bundled.path(name)
        assert read_eos_token_id(folder) == load_tokenizer(folder).eos_token_id
    old_form = {"tokenizer_config.json": {
        "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>"},
        "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": True}},
    }}  # fmt: skip
    for files in (old_form, {"tokenizer_config.json": {"eos_token": "a"}}):
        with checkpoint(files) as folder:
            found = read_eos_token_id(folder)
            assert found is not None and found == load_tokenizer(folder).eos_token_id
    moved = {"tokenizer_config.json": {"eos_token": None}}
    with checkpoint(moved | {"special_tokens_map.json": {"eos_token": "<|im_end|>"}}) as folder:
        assert read_eos_token_id(folder) == 2
    with checkpoint(moved) as folder:
        assert read_eos_token_id(folder) is None
    assert read_eos_token_id(tmp_path) is None


def test_an_end_of_the_tokenizer_beyond_the_vocabulary_is_none() -> None:
    args = load_config(bundled.path("storyteller-draft"))
    assert args.ending_with(10**6) == args.ending_with(None) == args
    assert args.ending_with(5).eos_token_ids == (5, *args.eos_token_ids)


def test_ends_of_a_model_that_sees() -> None:
    folder = bundled.path("storyteller-vision")
    config = json.loads((Path(folder) / "config.json").read_text())
    for where in (config, config["text_config"]):
        for other in (config, config["text_config"]):
            other.pop("eos_token_id", None)
        where["eos_token_id"] = [5, 6]
        assert ModelArgs.from_dict(config).eos_token_ids == (5, 6)


def test_the_generation_config_of_another_folder_ends_texts_too() -> None:
    with checkpoint({"generation_config.json": {"eos_token_id": 9}}) as other:
        model = ModelConfig(str(bundled.path("storyteller-draft")), generation_config=str(other))
        assert 9 in load_model_args(model).eos_token_ids


def test_an_end_that_a_caller_names() -> None:
    files: dict[str, Any] = {"config.json": {"eos_token_id": 0}}
    own = {"arguments": {"override_generation_config": {"eos_token_id": [8, 9]}}}
    assert ends({"files": files, **own}) == {"tokens": [2, 8, 9], "grammar": [2, 8, 9]}
    with pytest.raises(ValueError, match=r"eos_token_id is \[100000\]; the vocabulary ends at"):
        make_engine_config("storyteller-draft", override_generation_config={"eos_token_id": 100000})


# ------------------------------------------------------------------ generation_config


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("presence_penalty", 0.5, {"presence_penalty": 0.5}),
    ("frequency_penalty", -0.5, {"frequency_penalty": -0.5}),
    ("repetition_penalty", 1.5, {"repetition_penalty": 1.5}),
    ("min_new_tokens", 3, {"min_tokens": 3}),
    ("max_new_tokens", 3, {"max_tokens": 3}),
    ("do_sample", True, {}),
    ("pad_token_id", 0, {}),
    ("temperature", None, {}),
])  # fmt: skip
def test_an_override_is_applied(name: str, value: Any, expected: dict[str, Any]) -> None:
    folder = bundled.path("storyteller-draft")
    assert default_sampling_params(folder, "vllm", {name: value}) == expected


@pytest.mark.parametrize(("name", "value", "hint"), [
    ("temprature", 0.5, "did you mean temperature?"),
    ("max_tokens", 5, "did you mean max_new_tokens?"),
    ("no_repeat_ngram_size", 3, "it may have"),
    ("do_sample", False, "it may have"),
    ("stop_strings", ["a"], "it may have"),
])  # fmt: skip
def test_an_override_without_effect_is_refused_by_name(name: str, value: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=f"override_generation_config has {name}=") as caught:
        make_engine_config("storyteller-draft", override_generation_config={name: value})
    assert hint in str(caught.value)


def test_an_override_that_takes_an_entry_back() -> None:
    with checkpoint({"generation_config.json": {"temperature": 0.5}}) as folder:
        assert default_sampling_params(folder, "auto", {"temperature": None}) == {}


def test_every_default_of_transformers_asks_for_what_is_so() -> None:
    from transformers import GenerationConfig

    defaults = GenerationConfig().to_dict()
    left = [name for name in without_effect(defaults) if defaults[name] not in (None, False)]
    assert not left


# ------------------------------------------------------------------ lengths

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize("where", ["file", "new", "overrides", "new overrides"])
def test_a_stretched_model_takes_longer_prompts(where: str) -> None:
    """Qwen's recipe: the file keeps the length of the training, and a scaling is added to it."""
    theta = load_config(bundled.path("storyteller-draft")).rope_parameters["rope_theta"]
    entries: dict[str, Any] = {"rope_scaling": YARN}
    if "new" in where:
        entries = {"rope_parameters": YARN | {"rope_theta": theta}}
    lengths = {"max_position_embeddings": 512}
    overrides = entries if "overrides" in where else None
    file = lengths if overrides else lengths | entries | {"rope_theta": theta}
    if "new" in where and not overrides:
        file["rope_theta"] = None
    with checkpoint({"config.json": file}) as folder:
        options: dict[str, Any] = {"load_format": "dummy", "num_gpu_blocks": 200}
        llm = LLM(str(folder), max_model_len=2048, hf_overrides=overrides, **options)
        output = llm.generate({"prompt_token_ids": [5] * 1500}, use_tqdm=False)[0]
        assert not output.error
        with pytest.raises(ValueError, match="max_model_len is 2049; the model has 2048 positions"):
            LLM(str(folder), max_model_len=2049, hf_overrides=overrides, **options)


def test_positions_are_what_vllm_derives() -> None:
    """By hand, as `_get_and_verify_max_len` of vLLM 0.22.1 does; longrope ends at the original,
    where a request's angles would change."""
    base = json.loads((Path(bundled.path("storyteller-draft")) / "config.json").read_text())
    for key in ("rope_parameters", "rope_scaling"):
        base.pop(key, None)
    base |= {"max_position_embeddings": 1000, "rope_theta": 1e4}
    llama3 = {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}
    pairs = ModelArgs.from_dict(base).head_dim // 2
    for scaling, expected in [
        (None, 1000),
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 2.5}, 2500),
        ({"type": "linear", "factor": 2}, 2000),
        ({"rope_type": "yarn", "factor": 4.0}, 4000),
        (YARN, 2048),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "yarn", "original_max_position_embeddings": 250}, 1000),
        (llama3 | {"factor": 8, "original_max_position_embeddings": 125}, 1000),
        ({"rope_type": "longrope", "short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs,
          "original_max_position_embeddings": 250}, 250),
    ]:  # fmt: skip
        config = base | ({"rope_scaling": scaling} if scaling else {})
        assert ModelArgs.from_dict(config).max_position_embeddings == expected, scaling


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_beyond_the_original_length_tokens_are_those_of_transformers(kind: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
    entries = {"max_position_embeddings": 64, "rope_parameters": scaling | {"rope_theta": 1e4}}
    prompt = [5 + token % 300 for token in range(100)]
    with checkpoint({"config.json": entries | {"dtype": "float32"}}) as folder:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        told = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=100, min_new_tokens=100
        )
        params = SamplingParams(temperature=0, max_tokens=100, min_tokens=100)
        llm = LLM(str(folder), max_model_len=256)
        output = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]
    assert list(output.outputs[0].token_ids) == told[0, 100:].tolist()


# ------------------------------------------------------------------ hf_overrides


@pytest.mark.parametrize(("overrides", "field", "expected"), [
    ({"rms_norm_eps": 0.5}, "rms_norm_eps", 0.5),
    ({"text_config": {"rms_norm_eps": 0.5}}, "rms_norm_eps", 0.5),
    ({"max_position_embeddings": 99}, "max_position_embeddings", 99),
    ({"text_config": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0,
        "mrope_section": [12, 10, 10]}}}, "max_position_embeddings", 4096),
    ({"rope_theta": 7.0}, "rope_theta", 7.0),
    ({"dtype": "float16"}, "dtype", "float16"),
    ({"torch_dtype": "float16"}, "dtype", "float16"),
    ({"eos_token_id": 9}, "eos_token_id", 9),
    ({"vision_config": {"depth": 3}}, "depth", 3),
])  # fmt: skip
def test_an_override_of_a_model_that_sees_reaches_its_part(
    overrides: dict[str, Any], field: str, expected: Any
) -> None:
    args = load_config(bundled.path("storyteller-vision"), overrides)
    assert args.vision is not None
    homes = [args, args.vision]
    found = [getattr(home, field) for home in homes if hasattr(home, field)]
    assert expected in [*found, args.rope_parameters.get(field)]
    assert args.hidden_size == args.vision.out_hidden_size, "the rest stays"


@pytest.mark.parametrize(("file", "overrides"), [
    ("torch_dtype", {"dtype": "float16"}), ("dtype", {"torch_dtype": "float16"}),
])  # fmt: skip
def test_of_two_names_of_a_fact_the_override_s_counts(file: str, overrides: dict[str, Any]) -> None:
    with checkpoint({"config.json": {"dtype": None, file: "bfloat16"}}) as folder:
        assert load_config(folder, overrides).dtype == "float16"


def test_a_misspelt_override_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"hf_overrides has rope_tetha=7.0, which the engine does not read"
    ) as e:
        make_engine_config("storyteller-draft", hf_overrides={"rope_tetha": 7.0})
    assert "did you mean rope_theta?" in str(e.value)


def test_an_override_of_how_numbers_are_held() -> None:
    config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    folder = bundled.path("storyteller-draft")
    assert get_quantization_config(folder) is None
    found = get_quantization_config(folder, None, {"quantization_config": config})
    assert found is not None and found.name == "fp8"
    with checkpoint({"config.json": {"quantization_config": config}}) as quantised:
        assert get_quantization_config(quantised, None, {"quantization_config": None}) is None


@pytest.mark.parametrize(
    "key", ["original_max_position_embeddings", "attention_factor", "beta_fast"]
)
def test_null_in_a_rotation_is_what_is_left_out(key: str) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    folder = bundled.path("storyteller-draft")
    left_out, null = (
        load_config(folder, {"rope_scaling": s}) for s in (scaling, scaling | {key: None})
    )
    assert null == left_out
    assert compute_inv_freq(null)[1] == compute_inv_freq(left_out)[1]
