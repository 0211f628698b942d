"""What a model's authors recommend is what requests get that say nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.entrypoints.cli import main
from mini_vllm.model.generation import default_sampling_params, without_effect

RECOMMENDED = {"temperature": 0.0, "max_new_tokens": 7, "repetition_penalty": 1.5, "top_k": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    shutil.copytree(bundled.path("storyteller-draft"), target)
    path = target / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | RECOMMENDED))
    return target


def test_names_are_translated_and_the_switch_turns_it_off(folder: Path) -> None:
    expected = {"temperature": 0.0, "max_tokens": 7, "repetition_penalty": 1.5}
    assert default_sampling_params(folder) == expected
    assert default_sampling_params(folder, "vllm") == {}
    assert default_sampling_params(bundled.path("storyteller"), str(folder)) == expected
    changed = default_sampling_params(folder, "auto", {"temperature": 0.5})
    assert changed == expected | {"temperature": 0.5}
    assert default_sampling_params(folder, "vllm", {"min_p": 0.1}) == {"min_p": 0.1}
    assert default_sampling_params(folder.parent) == {}


def test_the_engine_uses_it_only_where_nothing_is_said(folder: Path) -> None:
    llm = LLM(folder, max_model_len=64)
    assert llm.get_default_sampling_params() == SamplingParams(
        temperature=0.0, max_tokens=7, repetition_penalty=1.5
    )
    one, other = llm.generate(["Once upon", "Once upon"], use_tqdm=False)
    assert one.outputs[0].token_ids == other.outputs[0].token_ids
    assert len(one.outputs[0].token_ids) == 7
    said = llm.generate("Once upon", SamplingParams(max_tokens=3), use_tqdm=False)[0]
    assert len(said.outputs[0].token_ids) == 3
    off = LLM(folder, max_model_len=64, generation_config="vllm")
    assert off.get_default_sampling_params() == SamplingParams()


def test_the_command_line_uses_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--json", "--model", str(folder), "--max-model-len", "64", "Once upon"]
    for more, count in (([], 7), (["--max-tokens", "3"], 3)):
        assert main([*command, *more]) == 0
        assert len(json.loads(capsys.readouterr().out)["outputs"][0]["token_ids"]) == count


def test_what_transformers_writes_by_itself_asks_for_nothing() -> None:
    """Its version 5 writes these into every file, with a model that asks for none of them."""
    from transformers import AutoConfig, GenerationConfig

    written = GenerationConfig.from_model_config(AutoConfig.for_model("llama")).to_dict()
    assert written["output_attentions"] is False
    assert without_effect(written) == []


def test_what_is_wrong_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="give a folder that has one, 'auto' or 'vllm'"):
        default_sampling_params(folder, "nowhere")
    (folder / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(ValueError, match=r"generation_config.json: top_p is 7.*'vllm'"):
        LLM(folder)


def test_an_entry_is_named_as_it_is_called_where_it_stands(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"max_new_tokens": 0}')
    with pytest.raises(ValueError, match=r"generation_config.json: max_new_tokens is 0; it must"):
        default_sampling_params(folder)
    with pytest.raises(ValueError, match="override_generation_config: max_new_tokens is -1; it"):
        default_sampling_params(folder, "vllm", {"max_new_tokens": -1})
