"""Lets a program that imports `vllm` run on this engine without changes::

    from mini_vllm import as_vllm
    as_vllm.install()

Only names that such programs commonly import exist; `docs/api.md` describes them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from types import ModuleType
from typing import Any

VERSION = "0.22.1"
"""The version of vLLM whose interface this is."""
MODULES = {
    "vllm": "mini_vllm",
    "vllm.sampling_params": "mini_vllm.sampling_params",
    "vllm.outputs": "mini_vllm.outputs",
    "vllm.inputs": "mini_vllm.inputs",
    "vllm.config": "mini_vllm.config",
    "vllm.pooling_params": "mini_vllm.pooling_params",
    "vllm.lora": "mini_vllm.lora",
    "vllm.lora.request": "mini_vllm.lora.request",
    "vllm.engine": "mini_vllm.engine",
    "vllm.engine.arg_utils": "mini_vllm.engine.arg_utils",
    "vllm.engine.llm_engine": "mini_vllm.engine.llm_engine",
    "vllm.engine.async_llm_engine": "mini_vllm.engine.async_llm_engine",
    "vllm.entrypoints.llm": "mini_vllm.engine.llm",
    "vllm.exceptions": "mini_vllm.errors",
    "vllm.logprobs": "mini_vllm.outputs",
    "vllm.distributed": "mini_vllm.distributed",
    "vllm.utils.argparse_utils": "mini_vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm": "mini_vllm.engine.async_llm",
    "vllm.v1.engine.llm_engine": "mini_vllm.engine.llm_engine",
    "vllm.v1.engine.exceptions": "mini_vllm.engine.exceptions",
    "vllm.v1.metrics.reader": "mini_vllm.observability.reader",
    "vllm.v1.sample.logits_processor": "mini_vllm.sample.custom",
    "vllm.v1.sample.logits_processor.builtin": "mini_vllm.sample.custom",
}
"""vLLM's modules, and their counterparts here."""


def get_tokenizer(
    tokenizer_name: str, *args: Any, revision: str | None = None, **options: Any
) -> Any:
    """A `transformers` tokenizer, by the name of its model.

    Source: vllm/tokenizers/registry.py#L196-L258 (get_tokenizer) @ v0.22.1
    """
    from mini_vllm import hub
    from mini_vllm.model.checkpoint_files import load_tokenizer

    return load_tokenizer(hub.folder(tokenizer_name, revision, weights=False))


def resolve_chat_template(
    tokenizer: Any, chat_template: str | None = None, tools: Any = None, **options: Any
) -> str | None:
    """`chat_template`, or else the tokenizer's own; None if there is none."""
    return chat_template or getattr(tokenizer, "chat_template", None)


def install() -> None:
    """Register this engine's modules as `vllm` and its modules, in this process.

    Raises:
        RuntimeError: if another `vllm` is imported already.
    """
    there = sys.modules.get("vllm")
    if there is not None and there.__name__ != "mini_vllm":
        raise RuntimeError("vllm is imported already; call as_vllm.install() before that")
    for name, ours in MODULES.items():
        _add(name, importlib.import_module(ours))
    for name, found in (
        ("vllm.tokenizers", get_tokenizer),
        ("vllm.renderers.hf", resolve_chat_template),
    ):
        module = ModuleType(name)
        setattr(module, found.__name__, found)
        _add(name, module)
    importlib.metadata.version = _version


def _add(name: str, module: ModuleType) -> None:
    """Register a module, and empty ones for the parents that there are not."""
    sys.modules[name] = module
    while name := name.rpartition(".")[0]:
        sys.modules.setdefault(name, ModuleType(name))


_real_version = importlib.metadata.version


def _version(distribution_name: str) -> str:
    return VERSION if distribution_name == "vllm" else _real_version(distribution_name)
