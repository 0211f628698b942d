"""Names that a file spells in another way than its readers expect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from benchmarks.families.record import read
from benchmarks.families.tiny import FAMILIES, write
from mini_vllm import LLM, bundled
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.model import checkpoint_files
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.config_schema import misspelt_entries

ANSWERS = read()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a bundled model."""
    target = tmp_path / "model"
    shutil.copytree(bundled.path("storyteller-draft"), target)
    return target


def change(file: Path, **entries: Any) -> None:
    """Set entries of a JSON file; those that are None are taken away."""
    both = {**json.loads(file.read_text()), **entries}
    file.write_text(json.dumps({key: value for key, value in both.items() if value is not None}))


def test_a_misspelt_entry_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = folder / "config.json"
    change(file, rms_norm_eps=None, rms_norm_epsilon=1e-5, invented=1)
    with caplog.at_level("WARNING"):
        make_engine_config(folder)
    said = f"{file}: rms_norm_epsilon is not read, and rms_norm_eps is left out; if that is meant, "
    assert said in caplog.text and "invented" not in caplog.text


def test_a_misspelt_entry_in_a_rotation_or_of_a_model_that_sees_is_told() -> None:
    rope = {"rope_typ": "linear", "factor": 2.0}
    text = {"rope_parameters": rope, "tie_word_embedding": True, "attention_bias": False}
    for config in (text, {"text_config": text, "vision_config": {}}):
        assert misspelt_entries({"architectures": ["LlamaForCausalLM"], **config}) == {
            "tie_word_embedding": "tie_word_embeddings",
            "rope_parameters.rope_typ": "rope_parameters.rope_type",
        }


def test_a_rotation_with_a_factor_and_without_a_type_is_told() -> None:
    """It is not scaled, as in transformers, which warns, too."""
    llama = {"architectures": ["LlamaForCausalLM"]}
    for rope in ({"rope_type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}, {}):
        assert misspelt_entries({**llama, "rope_scaling": rope}) == {}
    told = misspelt_entries({**llama, "rope_scaling": {"factor": 2.0, "rope_theta": 1e4}})
    assert told == {"rope_scaling.factor": "rope_scaling.rope_type"}


def test_a_needed_entry_that_is_misspelt_is_shown(folder: Path) -> None:
    change(folder / "config.json", hidden_size=None, hiden_size=64)
    with pytest.raises(ValueError, match=r"hidden_size is None; .*; is hiden_size meant to be it"):
        make_engine_config(folder)


def test_real_files_have_no_entry_that_looks_misspelt() -> None:
    """Those of large models, and what the config classes of transformers write."""
    written = json.loads(Path(__file__).with_name("written_configs.json").read_text())
    assert len(written) > 20
    for name, config in written.items():
        assert misspelt_entries(config) == {}, name
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for kind in {kind for kind, _ in FAMILIES.values()}:
        config = AutoConfig.for_model(kind).to_dict() | {"architectures": [classes[kind]]}
        assert misspelt_entries(config) == {}, kind


def test_a_file_without_an_architecture_is_told_the_one_of_its_model_type(folder: Path) -> None:
    change(folder / "config.json", architectures=None, model_type="qwen3_moe")
    with pytest.raises(ValueError) as error:
        make_engine_config(folder)
    assert (
        'its model_type is \'qwen3_moe\': add "architectures": ["Qwen3MoeForCausalLM"], or pass '
        'hf_overrides={"architectures": ["Qwen3MoeForCausalLM"]}'
    ) in str(error.value)


def test_a_class_that_does_not_list_the_library_s_file_reads_it(folder: Path) -> None:
    """GPT-2's lists vocab.json and merges.txt only, and saves tokenizer.json only."""
    plain = load_tokenizer(folder).encode("Once upon a time")
    change(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert load_tokenizer(folder).encode("Once upon a time") == plain


def test_a_vocabulary_of_sentencepiece_names_its_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    monkeypatch.setattr(checkpoint_files, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"it has tokenizer.model and no tokenizer.json; .* sentence"
    ):
        load_tokenizer(folder)


def test_a_mamba2_without_a_head_embeds(tmp_path: Path) -> None:
    """Its names lack `backbone.` then, as those of others lack `model.`."""
    answer = ANSWERS["mamba2"]
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "runner": "pooling"}
    write(tmp_path / "whole", answer["config"], answer["shapes"])
    whole = LLM(tmp_path / "whole", **options).embed([[5, 9, 11]], use_tqdm=False)
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    write(tmp_path / "bare", answer["config"] | {"architectures": ["Mamba2Model"]}, {})
    short = {k.removeprefix("backbone."): v for k, v in tensors.items() if "lm_head" not in k}
    save_file(short, tmp_path / "bare" / "model.safetensors")
    bare = LLM(tmp_path / "bare", **options).embed([[5, 9, 11]], use_tqdm=False)
    assert bare[0].outputs.embedding == whole[0].outputs.embedding


def test_of_two_names_of_an_activation_only_the_one_that_is_read_is_checked() -> None:
    """Files of Gemma have "gelu" under the older name, and mean what the newer one says."""
    sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    config = {**sizes, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_act": "gelu"}
    for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM"):
        args = ModelArgs.from_dict({"architectures": [name], **config})
        assert args.hidden_act == "gelu_pytorch_tanh"
    with pytest.raises(ValueError, match="hidden_act is 'gelu'; choose from"):
        ModelArgs.from_dict({"architectures": ["LlamaForCausalLM"], **config})


def test_a_shared_expert_of_no_size_is_none(tmp_path: Path) -> None:
    answer = ANSWERS["dots1"]
    shapes = {k: v for k, v in answer["shapes"].items() if "shared_expert" not in k}
    empty = {k: [0, 32] for k in answer["shapes"] if "shared_experts.up_proj" in k}
    assert empty
    write(tmp_path, answer["config"] | {"n_shared_experts": 0}, shapes | empty)
    load_model(tmp_path)
