"""Which model and format KV belongs to. Keys and values fit one model, in one format, and nothing
else.

A block's hash names its tokens. Two models have other keys and values for the same tokens, and both
can share one store. So every hash grows from a root that names all that the numbers depend on::

    model's files, overrides ┐
    dtype, scales ├─ sha256 ─► namespace ─► root of the hashes, folder of the store, header of
    block size    │                         each file, first word of every peer
    shape, layout ┘

With a random root, as an engine without a connector has, two processes could never share KV.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.block_hash import extra_hash_keys, hash_block
from mini_vllm.gguf import is_gguf
from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.model.interface import KVCacheSpec

FORMAT_VERSION = 1
SAMPLES = 64
SAMPLE_BYTES = 1 << 20
"""Of a large file so many pieces are read; a file up to their sum is read whole."""


def kv_namespace(config: EngineConfig, spec: KVCacheSpec) -> bytes:
    """32 bytes that are equal for two engines only if they can read each other's KV.

    Args:
        spec: what the cache of this engine holds.
    """
    model, cache = config.model, config.cache
    facts: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "model": _model_identity(Path(model.model), model.load_format, model.seed),
        "overrides": model.hf_overrides and dict(model.hf_overrides),
        "weights": [model.dtype, model.quantization],
        "cache": [cache.kv_cache_dtype, str(spec.dtype), cache.block_size],
        "shape": [spec.num_layers, spec.num_kv_heads, spec.head_dim, spec.pad_bytes],
        "layout": "block, layer, [key, value], token, head, dim",
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).digest()


def prompt_identity(request: Request) -> str:
    """64 hex digits, equal for two requests of one namespace only if their prompts' KV is.

    Blocks that are fetched by their ids have no hash to compare. This digest takes its place: over
    all tokens of the prompt, with the adapter, the salt and the pictures.
    """
    token_ids = request.prompt_token_ids
    return hash_block(bytes(32), token_ids, extra_hash_keys(request, 0, len(token_ids))).hex()


def _model_identity(folder: Path, load_format: str, seed: int) -> list[str]:
    """Digests of the model's configuration, and of its weights or the seed that they come from."""
    if is_gguf(folder):
        return [f"dummy:{seed}" if load_format == "dummy" else "", fingerprint(folder)]
    config = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    if load_format == "dummy":
        return [config, f"dummy:{seed}"]
    return [config, *(fingerprint(path) for path in sorted(folder.glob("*.safetensors")))]


def fingerprint(path: Path) -> str:
    """A digest of a file's size and contents; of a large one, of pieces spread over all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    step = max(size // SAMPLES, SAMPLE_BYTES)
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
