"""Builders for the tests of phase 17. The story: six experts with names of dishes, which no test
needs to know; numbers small enough to multiply in the head. Each task is judged with its own
functions alone: what others would do is done here by hand.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

NEWCOMER = Path(__file__).with_name("newcomer.json")


def rounded(x: Tensor, digits: int = 4) -> Any:
    """A tensor as nested lists, rounded so that both sides can be read."""
    values = x.tolist()

    def walk(value: Any) -> Any:
        return [walk(one) for one in value] if isinstance(value, list) else round(value, digits)

    return walk(values)


def draw(name: str, shape: list[int]) -> Tensor:
    """The weight called `name`, the same on any machine."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randn(*shape, generator=generator)
    if "norm" in name:
        return 0.3 * x + 1.0
    if "embed" in name:
        return x
    return (3.0 if name.endswith("gate.weight") else 1.6) * x / shape[-1] ** 0.5


class Newcomer:
    """A tiny FlexOlmo, and what transformers said of it.

    Attributes:
        folder: of the checkpoint, as a hub would have it.
        prompts, tokens: and the greedy continuations, each of 8 tokens.
        states: of the first prompt's last token, behind each layer.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import save_file

        known = json.loads(NEWCOMER.read_text())
        self.folder = folder
        self.prompts, self.tokens, self.states = (
            known[key] for key in ("prompts", "tokens", "states")
        )
        (folder / "config.json").write_text(json.dumps(known["config"]))
        tensors = {name: draw(name, shape) for name, shape in known["shapes"].items()}
        save_file(tensors, folder / "model.safetensors")

    def layer_states(self) -> list[list[float]]:
        """What our layers say of the last token of the first prompt, one after the other."""
        import torch

        from mini_vllm.attention import AttentionMetadata
        from mini_vllm.model.build import load_model

        prompt, found = self.prompts[0], []
        model = load_model(self.folder, dtype=torch.float32)
        for layer in model.model.layers:
            layer.register_forward_hook(lambda _, __, out: found.append((out[0] + out[1])[-1]))
        spec = model.kv_cache_spec()
        caches = [
            torch.zeros(2, 8, 16, spec.num_kv_heads, spec.head_dim) for _ in model.model.layers
        ]
        length = len(prompt)
        metadata = AttentionMetadata.from_lists([length], [length], [[1]], 16, torch.device("cpu"))
        with torch.inference_mode():
            model(torch.tensor(prompt), torch.arange(length), caches, metadata)
        return [state.tolist() for state in found]

    def generate(self) -> list[list[int]]:
        """Our greedy continuations."""
        from mini_vllm import LLM, SamplingParams

        llm = LLM(self.folder, skip_tokenizer_init=True, dtype="float32", num_gpu_blocks=40,
                  max_model_len=64, enable_prefix_caching=False,
                  attention_backend="reference")  # fmt: skip
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        outputs = llm.generate(self.prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Newcomer:
    """The checkpoint, in an engine whose other tasks of this phase are solved by hand."""
    import torch

    from mini_vllm import kernels
    from mini_vllm.model import decoder, sharded_loader
    from mini_vllm.model.moe import experts, layer

    def projections(name: str, stacked: Any) -> list[str]:
        whole = next((key for key in stacked if f".{key}." in name), None)
        return [name.replace(whole, part) for part in stacked[whole]] if whole else [name]

    def make_router(args: Any) -> Any:
        def route(logits: Tensor, bias: Any) -> tuple[Tensor, Tensor]:
            weights, ids = logits.float().softmax(-1).topk(args.num_experts_per_tok, -1)
            return weights / weights.sum(-1, keepdim=True) if args.norm_topk_prob else weights, ids

        return route

    def mix(x: Tensor, weights: Tensor, ids: Tensor, number: int, run: Any, _: bool) -> Tensor:
        order = ids.flatten().argsort(stable=True)
        results = torch.empty(len(order), x.shape[1])
        results[order] = run(x[order // ids.shape[1]], ids.flatten().bincount(minlength=number))
        return (results.view(*ids.shape, -1) * weights[..., None]).sum(1)

    monkeypatch.setattr(kernels, "INTERPRETED", False)  # the interpreter would take a minute
    monkeypatch.setattr(sharded_loader, "projections", projections)
    monkeypatch.setattr(decoder, "renamed", lambda name, pieces: name)
    monkeypatch.setattr(layer, "make_router", make_router)
    monkeypatch.setattr(experts, "mix_experts", mix)
    return Newcomer(tmp_path)


@pytest.fixture
def lab() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(rounded=rounded)
