"""The loader of parts: what ranks load is together what the whole loader loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mini_vllm.model.build import Build, default_dtype, load_model
from mini_vllm.model.config import load_config
from mini_vllm.model.layers import Linear, LinearMethod
from mini_vllm.model.layout import SINGLE, Layout, ParamSpec, Part, Single
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.loader import load_weights, weight_targets
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.model.sharded_loader import load_parts

HEAD = 8


class Cut:
    """Rows or columns of one of `world` ranks, in steps of `unit`; a slice may pass the end."""

    adds_bias = True

    def __init__(self, rank: int, world: int, dim: str, unit: int = 1) -> None:
        self.rank, self.world, self.dim, self.unit = rank, world, dim, unit

    def slice(self, size: int, index: int) -> slice:
        each = -(-size // self.unit // self.world) * self.unit
        return slice(self.rank * each, (self.rank + 1) * each)

    def parts(self, input_size: int, output_sizes: Sequence[int]) -> list[Part]:
        if self.dim == "in":
            return [Part(slice(0, n), self.slice(input_size, 0)) for n in output_sizes]
        return [
            Part(self.slice(n, index), slice(0, input_size)) for index, n in enumerate(output_sizes)
        ]

    def finish(self, y: Tensor) -> Tensor:
        return y


class Heads(Cut):
    """q's heads divided; each KV head on as many ranks as there are more ranks than KV heads."""

    def __init__(self, rank: int, world: int, kv_heads: int) -> None:
        super().__init__(rank, world, "out", HEAD)
        self.kv_heads = kv_heads

    def slice(self, size: int, index: int) -> slice:
        if index == 0 or self.kv_heads >= self.world:
            return super().slice(size, index)
        head = self.rank // (self.world // self.kv_heads)
        return slice(head * HEAD, (head + 1) * HEAD)


class Rank(Single):
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def column(self) -> Layout:
        return Cut(self.rank, self.world, "out")

    def qkv(self, num_heads: int, num_kv_heads: int) -> Layout:
        return Heads(self.rank, self.world, num_kv_heads)

    def row(self) -> Layout:
        return Cut(self.rank, self.world, "in")

    def vocab(self, vocab_size: int) -> Layout:
        return Cut(self.rank, self.world, "out", unit=4)

    embedding = vocab


def write(folder: Path, **changes: Any) -> None:
    """A checkpoint of random values whose config has `changes`."""
    config: dict[str, Any] = dict(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=41,
        hidden_size=24,
        intermediate_size=36,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=HEAD,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        dtype="float32",
    )
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    torch.manual_seed(0)
    model = load_model(folder, load_format="dummy")
    tensors = {name: torch.randn(view.shape) for name, view in weight_targets(model).items()}
    save_file(tensors, folder / "model.safetensors")


def build(folder: Path, parallel: Any = SINGLE, quant: Any = None) -> LlamaForCausalLM:
    args = load_config(folder)
    with default_dtype(torch.float32):
        model = resolve_model_class(args.architectures)(args, Build(None, quant, parallel))
    return model.requires_grad_(False)


def loaded(folder: Path, parallel: Any = SINGLE) -> LlamaForCausalLM:
    model = build(folder, parallel)
    for parameter in model.parameters():
        parameter.fill_(99.0)  # an entry that is not loaded would show
    load_parts(model, folder)
    return model


def joined(models: list[LlamaForCausalLM], name: str, whole: Tensor) -> Tensor:
    """The whole parameter from all ranks' parts of it, each put where its layout says."""
    result = torch.full_like(whole, 77.0)
    for model in models:
        module, parameter = model.get_submodule(name.rpartition(".")[0]), model.get_parameter(name)
        if not hasattr(parameter, "spec"):
            assert torch.equal(parameter, whole)
            return parameter
        row = start = 0
        for part, all_of_it in zip(module.parts, module.whole_parts, strict=True):
            here = parameter[row : row + part.output_size]
            row += part.output_size
            out = slice(start + part.out.start, min(start + part.out.stop, len(whole)))
            start += all_of_it.output_size
            length = max(out.stop - out.start, 0)
            assert (here[length:] == 0).all(), "behind the vocabulary's end"
            if whole.dim() == 1:
                result[out] = here[:length]
            elif part.in_.stop <= whole.shape[1]:
                result[out, part.in_] = here[:length]
    return result


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("kv_heads", "world"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 3), (3, 6), (2, 6)]
)
def test_cut_and_joined_is_the_whole(kv_heads: int, world: int, tied: bool, tmp_path: Path) -> None:
    """Fused matrices, biases, norms, shared KV heads, a vocabulary that does not divide."""
    write(tmp_path, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    whole = build(tmp_path)
    load_weights(whole, tmp_path)
    models = [loaded(tmp_path, Rank(rank, world)) for rank in range(world)]
    for name, parameter in whole.named_parameters():
        assert torch.equal(joined(models, name, parameter), parameter), name
    assert models[0].kv_cache_spec().num_kv_heads == max(1, kv_heads // world)
    if tied:
        assert models[-1].lm_head.weight is models[-1].model.embed_tokens.weight


class Packed:
    """Eight columns a word, a scale for 12 columns of each row, one number for each projection."""

    def create_weights(self, layer: Linear) -> None:
        rows, columns = sum(layer.output_sizes), layer.input_size

        def parameter(name: str, tensor: Tensor, **spec: Any) -> None:
            setattr(layer, name, nn.Parameter(tensor, requires_grad=False))
            getattr(layer, name).spec = ParamSpec(**spec)

        words = torch.zeros(columns // 4, rows, dtype=torch.int32)
        parameter("words", words, out_dim=1, in_dim=0, in_pack=4)
        parameter("scales", torch.zeros(rows, columns // 12), out_dim=0, in_dim=1, in_pack=12)
        parameter("top", torch.zeros(len(layer.parts)), out_dim=None, per_part=True)
        parameter("order", torch.full((2,), 7.0), out_dim=None, optional=True)

    def process_weights_after_loading(self, layer: Linear) -> None: ...

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError


class PackedDown:
    def get_quant_method(self, layer: Linear, prefix: str) -> LinearMethod | None:
        return Packed() if prefix.endswith("mlp.gate_up_proj") else None


@pytest.mark.parametrize("scalar", [[], [1]])
def test_packed_parameters_are_cut_by_their_spec(scalar: list[int], tmp_path: Path) -> None:
    write(tmp_path)
    model = build(tmp_path, Rank(1, 2), PackedDown())
    tensors = {}
    for layer in range(2):
        at = f"model.layers.{layer}.mlp."
        for number, part in enumerate(("gate", "up")):
            words = torch.arange(6 * 36).view(6, 36) + 1000 * number
            tensors[f"{at}{part}_proj.words"] = words.to(torch.int32)
            tensors[f"{at}{part}_proj.scales"] = torch.arange(36 * 2.0).view(36, 2) + number
            tensors[f"{at}{part}_proj.top"] = torch.full(scalar, 5.0 + number)
    rest = weight_targets(load_model(tmp_path))
    rest = {n: t for n, t in rest.items() if "gate_proj" not in n and "up_proj" not in n}
    save_file({**rest, **tensors}, tmp_path / "model.safetensors")
    load_parts(model, tmp_path)
    linear = model.model.layers[1].mlp.gate_up_proj
    gate, up = (tensors[f"model.layers.1.mlp.{part}_proj.words"] for part in ("gate", "up"))
    assert torch.equal(linear.words, torch.cat((gate[:, 18:], up[:, 18:]), 1))
    assert linear.scales[0].tolist() == [36.0, 37.0] and linear.scales[18].tolist() == [37.0, 38.0]
    assert linear.top.tolist() == [5.0, 6.0]
    assert linear.order.tolist() == [7.0, 7.0], "optional and not in the file"


def change(folder: Path, **tensors: Tensor) -> None:
    kept = {n: t.contiguous() for n, t in weight_targets(load_model(folder)).items()}
    save_file({**kept, **tensors}, folder / "model.safetensors")


@pytest.mark.parametrize("parallel", [SINGLE, Rank(0, 2)], ids=["whole", "part"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.float8_e4m3fn])
def test_integers_never_become_weights(dtype: torch.dtype, parallel: Any, tmp_path: Path) -> None:
    """Loaded as numbers without their scales they would be noise that speaks."""
    write(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    change(tmp_path, **{name: torch.ones(36, 24).to(dtype)})
    with pytest.raises(ValueError, match=rf"'{name}' in .* has dtype .*quantization_config"):
        load_model(tmp_path, parallel=parallel)


def test_a_part_of_a_wrong_shape_is_refused(tmp_path: Path) -> None:
    """Too few rows must not pass for a padded vocabulary."""
    write(tmp_path)
    change(tmp_path, **{"model.embed_tokens.weight": torch.ones(40, 24)})
    with pytest.raises(ValueError, match=r"has shape \[40, 24\]; config.json asks for \[41, 24\]"):
        loaded(tmp_path, Rank(1, 2))
