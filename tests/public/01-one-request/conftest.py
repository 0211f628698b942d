"""What the tests of phase 01 share: a tiny random model that writes down what it is asked.

The model has 2 layers and 59 tokens of vocabulary; its hidden size, its query heads together and
its KV heads together all differ, so that no formula is right by accident.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from mini_vllm.bundled import path as bundled_path
from mini_vllm.model.config import ModelArgs

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


@dataclass
class Call:
    """One forward pass, as the model saw it."""

    tokens: list[int]
    positions: list[int]
    room: int
    """Tokens that the cache can hold."""


@dataclass
class Watched:
    """A model, and the list of what it has computed."""

    model: Any
    calls: list[Call] = field(default_factory=list)

    def write_down(self, _: Any, args: tuple[Any, ...]) -> None:
        tokens, positions, caches, _metadata = args
        room = caches[0].shape[1] * caches[0].shape[2] // 2  # half of the blocks is the null block
        self.calls.append(Call(tokens.tolist(), positions.tolist(), room))

    def lengths(self) -> list[int]:
        """How many tokens each forward pass computed."""
        return [len(call.tokens) for call in self.calls]

    def most_likely(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """What the model would say after the prompt, and after each token of `answer` but the last.

        One pass over all of it is enough: no token sees those behind it.
        """
        import torch

        from mini_vllm.attention import AttentionMetadata
        from mini_vllm.engine.naive import ContiguousKVCache

        tokens = [*prompt, *answer[:-1]]
        n = len(tokens)
        cache = ContiguousKVCache(self.model, n)
        metadata = AttentionMetadata.from_lists([n], [n], [[1]], n)
        with torch.inference_mode():
            hidden = self.model.model(torch.tensor(tokens), torch.arange(n), cache.layers, metadata)
            return self.model.compute_logits(hidden[len(prompt) - 1 :]).argmax(dim=1).tolist()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import torch

    from mini_vllm.model.build import load_model

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return load_model(folder, load_format="dummy", seed=1)


@pytest.fixture
def tiny(tiny_model: Any) -> Iterator[Watched]:
    """The tiny random model, watched."""
    watched = Watched(tiny_model)
    handle = tiny_model.register_forward_pre_hook(watched.write_down)
    yield watched
    handle.remove()


@pytest.fixture
def prompt() -> list[int]:
    """A prompt of 5 tokens for the tiny model, whose vocabulary has 59."""
    return [7, 21, 3, 40, 11]


@pytest.fixture(scope="session")
def storyteller() -> Watched:
    """The model that ships with the repository, in float32."""
    import torch

    from mini_vllm.model.build import load_model

    torch.set_num_threads(1)
    return Watched(load_model(bundled_path("storyteller"), dtype="float32"))


@pytest.fixture(scope="session")
def shape() -> ModelArgs:
    """The tiny model's shape."""
    return ModelArgs.from_dict(TINY)


@pytest.fixture(scope="session")
def qwen3() -> ModelArgs:
    """The shape of Qwen3-0.6B."""
    return ModelArgs.from_dict(
        TINY
        | {
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        }
    )


def cache_spec(dtype: str = "bfloat16", kinds: Sequence[str] = (), **shape: int) -> Any:
    """The shape of a model's KV cache; `kinds`: what each layer remembers, if not everything."""
    import torch

    from mini_vllm.model.interface import KVCacheSpec, LayerSpec

    layers = tuple(LayerSpec(kind, window=32 * (kind == "sliding_window")) for kind in kinds)
    return KVCacheSpec(dtype=getattr(torch, dtype), layers=layers, **shape)


@pytest.fixture(scope="session")
def lab_cache() -> Any:
    """`lab_cache(num_layers=4, num_kv_heads=2, head_dim=64)` makes a cache's shape."""
    return cache_spec
