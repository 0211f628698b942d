"""Tied weights of embedding and head, where `config.json` and the files may disagree.

    the files have         if config.json says tie_word_embeddings
    one of the two         it is used for both, under either name
    both, and equal        they are tied
    both, and different    they are not tied: a training untied them without changing the entry

Source: transformers, `PreTrainedModel.tie_weights`. vLLM 0.22.1 always ties them, and ignores the
file's tensor for the head,
vllm/model_executor/models/llama.py#L584-L593 (LlamaForCausalLM.load_weights) @ v0.22.1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mini_vllm.gguf import is_gguf
from mini_vllm.model.checkpoint import TensorFile, tensor_files
from mini_vllm.model.config import ModelArgs

logger = logging.getLogger(__name__)

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
Rename = Callable[[str], Sequence[str]]


def untied_if_different(args: ModelArgs, path: Path) -> ModelArgs:
    """`args`, untied if the files have a head that differs from the embedding."""
    if not args.tie_word_embeddings or is_gguf(path):
        return args
    files = tensor_files(path)
    head, embedding = (_read(files, end) for end in (HEAD, EMBEDDING))
    if head is None or embedding is None or head.shape != embedding.shape:
        return args
    if torch.equal(head.to(embedding.dtype), embedding):
        return args
    logger.warning(
        "%s: config.json has tie_word_embeddings=true, but lm_head.weight differs from the "
        "embedding; the file's head is used; set the entry to false",
        path,
    )
    return replace(args, tie_word_embeddings=False)


def _read(files: Sequence[TensorFile], end: str) -> torch.Tensor | None:
    """The tensor whose name ends with `end`, if there is exactly one."""
    found = [(file, name) for file in files for name in file.header if name.endswith(end)]
    if len(found) != 1:
        return None
    ((file, name),) = found
    with file.open() as tensors:
        tensor: torch.Tensor = tensors.get_tensor(name)
    return tensor


def name_of_both(model: Any, path: Path, rename: Rename | None) -> Rename | None:
    """`rename`, extended for files that have the tied weight only under the head's name."""
    if not model.config.tie_word_embeddings or is_gguf(path):
        return rename
    names = [name for file in tensor_files(path) for name in file.header]
    if HEAD not in names or any(name.endswith(EMBEDDING) for name in names):
        return rename
    embedding = model.checkpoint_prefix(f"model.{EMBEDDING}")
    plain = rename or (lambda name: (name,))
    return lambda name: (embedding,) if name == HEAD else plain(name)
