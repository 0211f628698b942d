"""Checkpoints whose files say a thing in one of several places, as the engine reads them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.config import EngineConfig
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.engine.pooling_inputs import Tokenization
from mini_vllm.lora.registry import read_adapter
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from mini_vllm.model.generation import default_sampling_params


@contextmanager
def checkpoint(changes: Mapping[str, Any]) -> Iterator[Path]:
    """A copy of a bundled model, some of whose files are changed.

    `changes` are entries by file; null takes the entry away, or the whole file.
    """
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        shutil.copytree(bundled.path("storyteller-draft"), folder)
        for name, entries in changes.items():
            file = folder / name
            if entries is None:
                file.unlink()
                continue
            old = json.loads(file.read_text()) if file.is_file() else {}
            new = {key: value for key, value in (old | entries).items() if value is not None}
            file.write_text(json.dumps(new))
        yield folder


def ends(given: dict[str, Any]) -> dict[str, Any]:
    """The tokens that end a text, first the one that needs no `stop_reason`; and those that a
    grammar allows at its end."""
    options = {"load_format": "dummy", "num_gpu_blocks": 8, **given.get("arguments", {})}
    with checkpoint(given["files"]) as folder:
        llm = LLM(str(folder), **options)
        params = SamplingParams(**given.get("params", {}))
        request = llm.engine.input_processor.process("0", [5], params)
        manager = llm.engine.core.structured_output_manager
        assert manager.tokens  # the tokenizer's end is read when the first grammar needs it
    stops = request.sampling_params.stop_token_ids or []
    return {"tokens": [request.eos_token_id, *stops], "grammar": manager.stop_token_ids}


def positions(given: dict[str, Any]) -> int | str:
    """How many positions a model has whose `config.json` has these entries."""
    with checkpoint({"config.json": given["config"]}) as folder:
        return load_config(folder, given.get("hf_overrides")).max_position_embeddings


def defaults(given: dict[str, Any]) -> Any:
    """Sampling parameters of requests that bring none, or the words that refuse the setting."""
    with checkpoint({"generation_config.json": given.get("file", {})}) as folder:
        try:
            return default_sampling_params(folder, "auto", given["override"])
        except ValueError as error:
            return str(error)


def refusal(given: dict[str, Any]) -> str:
    """What is said about arguments that have no effect; nothing if they are taken."""
    try:
        EngineConfig.from_kwargs("storyteller-draft", **given)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def template_of(given: dict[str, Any]) -> str:
    """The template that writes a chat, with tools or without, by the files of a folder."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        shutil.copytree(bundled.path("storyteller-vision"), folder)
        (folder / "chat_template.jinja").unlink()
        for name, text in given["files"].items():
            (folder / name).write_text(text)
        tools = [{"type": "function", "function": {"name": "f"}}] if given["tools"] else None
        return render_chat(load_tokenizer(folder), [{"role": "user", "content": "Hi"}], tools=tools)


def folder_lacks(given: dict[str, Any]) -> str:
    """What is said of a model's folder, or an adapter's, without some files or with others; the
    folder is called MODEL."""
    with tempfile.TemporaryDirectory() as parent:
        is_adapter = "adapter" in given
        folder = Path(parent) / "model"
        source = (
            bundled.adapter_path(given["adapter"]) if is_adapter else bundled.path("storyteller")
        )
        shutil.copytree(source, folder)
        for name in given.get("without", ()):
            (folder / name).unlink()
        for name in given.get("added", ()):
            (folder / name).write_bytes(b"")
        try:
            read_adapter(folder) if is_adapter else load_tokenizer(folder)
        except ValueError as error:
            return str(error).replace(str(folder), "MODEL")
        return ""


def element_type(given: dict[str, Any]) -> str:
    """What an argument, by its name in torch if it is called so, or an entry of a file comes to."""
    try:
        if "argument" in given:
            name = given["argument"]
            value = getattr(torch, name.removeprefix("object torch.")) if "object" in name else name
            return EngineConfig.from_kwargs("storyteller", dtype=value).model.dtype
        with checkpoint({"config.json": given["file"]}) as folder:
            return load_config(folder).dtype
    except ValueError as error:
        return str(error)


def cut(given: dict[str, Any]) -> dict[str, Any] | str:
    """How `tokenization_kwargs` cut a text, or the words that refuse them."""
    try:
        return {k: v for k, v in asdict(Tokenization.of(given)).items() if v is not None}
    except ValueError as error:
        return str(error)
