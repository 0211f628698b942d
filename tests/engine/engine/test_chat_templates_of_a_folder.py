"""Which chat template of a folder is used: the processor's, the tokenizer's, a named one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.model.checkpoint_files import load_tokenizer

MESSAGES: list[Any] = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def folder_with(parent: Path, files: dict[str, Any], model: str = "storyteller-vision") -> Path:
    """A copy of a bundled model with the templates of `files`: texts or objects, by file name."""
    folder = parent / "model"
    shutil.copytree(bundled.path(model), folder)
    (folder / "chat_template.jinja").unlink()
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        old = json.loads(file.read_text()) if file.is_file() else {}
        is_text = isinstance(content, str)
        file.write_text(content if is_text else json.dumps(old | content))
    return folder


PROCESSOR = {"chat_template.json": {"chat_template": "processor"}}
IN_CONFIG = {"processor_config.json": {"chat_template": "processor's config"}}
TOKENIZER = {"tokenizer_config.json": {"chat_template": "tokenizer"}}
FILE = {"chat_template.jinja": "file"}
NAMED = {"tokenizer_config.json": {"chat_template": [
    {"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"},
]}}  # fmt: skip
MORE = {"additional_chat_templates/tool_use.jinja": "with tools"}


@pytest.mark.parametrize(("files", "plain", "with_tools"), [
    (PROCESSOR, "processor", "processor"),
    (PROCESSOR | TOKENIZER, "processor", "tokenizer"),
    (PROCESSOR | FILE, "processor", "file"),
    (PROCESSOR | NAMED, "processor", "with tools"),
    (IN_CONFIG | PROCESSOR, "processor's config", "processor's config"),
    (IN_CONFIG | TOKENIZER, "processor's config", "tokenizer"),
    (TOKENIZER | FILE, "file", "file"),
    (NAMED, "default", "with tools"),
    (FILE | MORE, "file", "with tools"),
    (TOKENIZER, "tokenizer", "tokenizer"),
], ids=str)  # fmt: skip
def test_of_a_model_that_sees_as_in_vllm(
    files: dict[str, Any], plain: str, with_tools: str, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(folder_with(tmp_path, files))
    assert render_chat(tokenizer, MESSAGES) == plain
    assert render_chat(tokenizer, MESSAGES, tools=TOOLS) == with_tools
    assert render_chat(tokenizer, MESSAGES, template="mine") == "mine"


def test_the_order_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.processing_utils import ProcessorMixin

    folder = folder_with(tmp_path, PROCESSOR | FILE)
    told, _ = ProcessorMixin.get_processor_dict(folder, local_files_only=True)
    assert told["chat_template"] == load_tokenizer(folder).processor_chat_template == "processor"
    (folder / "processor_config.json").write_text(json.dumps(IN_CONFIG["processor_config.json"]))
    told, _ = ProcessorMixin.get_processor_dict(folder, local_files_only=True)
    found = load_tokenizer(folder).processor_chat_template
    assert told["chat_template"] == found == "processor's config"


def test_of_a_model_of_text_alone_the_tokenizer_s_counts(tmp_path: Path) -> None:
    files = PROCESSOR | TOKENIZER
    tokenizer = load_tokenizer(folder_with(tmp_path, files, "storyteller-draft"))
    assert render_chat(tokenizer, MESSAGES) == "tokenizer"


def test_a_chat_with_a_picture_by_the_processor_s_template(tmp_path: Path) -> None:
    template = (Path(bundled.path("storyteller-vision")) / "chat_template.jinja").read_text()
    picture = Image.new("RGB", (32, 32), "red")
    parts = [{"type": "image_pil", "image_pil": picture}, {"type": "text", "text": "What is it?"}]
    messages: list[Any] = [{"role": "user", "content": parts}]
    params = SamplingParams(temperature=0, max_tokens=8)
    expected = LLM("storyteller-vision").chat(messages, params, use_tqdm=False)[0]
    folder = folder_with(tmp_path, {"chat_template.json": {"chat_template": template}})
    found = LLM(str(folder)).chat(messages, params, use_tqdm=False)[0]
    assert found.prompt_token_ids == expected.prompt_token_ids
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids


@pytest.mark.parametrize("content", ["[" * 9999, '{"chat_template": 7}', "[]", "\ufeff{"])
def test_a_damaged_template_is_named(content: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"chat_template.json": content})
    with pytest.raises(ValueError, match=r"chat_template.json"):
        load_tokenizer(folder)
