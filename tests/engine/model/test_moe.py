"""Mixtures of experts: routers, the forms of files, and sorted rows against one token at a time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import LoRAConfig
from mini_vllm.distributed.eplb.picture import forecast, heat_map, shade
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.entrypoints.experts import run_with
from mini_vllm.kernels import native, unpacked
from mini_vllm.kernels.moe_layout import moe_align_block_size
from mini_vllm.lora.checkpoint import unknown_module
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.model.build import compile_model, load_model
from mini_vllm.model.checkpoint import TensorInfo, tensor_files
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import PLAIN, Build, Linear
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.experts import (
    SeparateExperts,
    StackedExperts,
    grouped_product,
    make_experts,
)
from mini_vllm.model.moe.files import one_by_one as one_by_one_in
from mini_vllm.model.moe.files import unpack_mxfp4
from mini_vllm.model.moe.grouped import product_by_expert
from mini_vllm.model.moe.layer import SparseMoE
from mini_vllm.model.moe.routers import fused_topk, grouped_topk, topk_sigmoid, topk_softmax
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.cpu_products import groups_linear, hold_groups
from mini_vllm.quantization.oneshot.calibrate import run_prompt

E, H, INNER = 4, 32, 32
CONFIG: dict[str, Any] = dict(
    architectures=["Qwen3MoeForCausalLM"], vocab_size=16, hidden_size=H, intermediate_size=16,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    num_experts=E, num_experts_per_tok=2, moe_intermediate_size=INNER, dtype="float32",
)  # fmt: skip


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- routers
def by_hand(
    logits: Tensor, k: int, groups: int, best: int, bias: Tensor | None, scoring: str
) -> list[tuple[list[int], list[float]]]:
    """DeepSeek's rule, one token at a time."""
    found = []
    for row in logits.double():
        scores = (row.sigmoid() if scoring == "sigmoid" else row.softmax(0)).tolist()
        choice = [
            s + (0 if bias is None else float(b))
            for s, b in zip(scores, bias if bias is not None else scores, strict=True)
        ]
        size = len(scores) // groups
        of_group = [sorted(choice[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
        worth = [one[0] if bias is None else one[0] + one[1] for one in of_group]
        allowed = sorted(range(groups), key=lambda g: -worth[g])[:best]
        experts = sorted(
            (e for e in range(len(scores)) if e // size in allowed), key=lambda e: -choice[e]
        )
        found.append((experts[:k], [scores[e] for e in experts[:k]]))
    return found


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("groups, best", [(1, 1), (4, 2), (4, 1)])
def test_grouped_topk_is_deepseeks_rule(
    scoring: str, has_bias: bool, groups: int, best: int
) -> None:
    logits, bias = draw(20, 16), draw(16, seed=1) * 0.3 if has_bias else None
    weights, ids = grouped_topk(logits, 3, False, groups, best, scoring, 2.5, bias)
    for row, (experts, scores) in enumerate(by_hand(logits, 3, groups, best, bias, scoring)):
        assert ids[row].tolist() == experts
        torch.testing.assert_close(weights[row], torch.tensor(scores).float() * 2.5)
    scaled, again = grouped_topk(logits, 3, True, groups, best, scoring, 2.5, bias)
    assert torch.equal(again, ids)
    torch.testing.assert_close(scaled, weights / weights.sum(-1, keepdim=True) * 2.5)


def test_other_routers() -> None:
    logits = draw(9, 8)
    weights, ids = fused_topk(logits, 2, renormalize=False)
    assert torch.equal(ids, logits.topk(2).indices)
    torch.testing.assert_close(weights, logits.softmax(-1).gather(-1, ids))
    over_k, same = topk_softmax(logits, 2)
    torch.testing.assert_close(over_k, weights / weights.sum(-1, keepdim=True))
    assert torch.equal(same, ids) and torch.equal(topk_sigmoid(logits, 2)[1], ids)
    torch.testing.assert_close(topk_sigmoid(logits, 2)[0], logits.gather(-1, ids).sigmoid())
    assert fused_topk(logits.bfloat16(), 2, True)[0].dtype == torch.float32


# ---------------------------------------------------------------- experts
FORMS = {
    "qwen": MoEArgs(6, 2, 24, norm_topk_prob=True),
    "deepseek": MoEArgs(
        8, 3, 24, "grouped_topk", True, "sigmoid", 4, 2, 1.5, has_correction_bias=True,
        shared_expert_intermediate_size=40,
    ),
    "gpt-oss": MoEArgs(
        6, 2, 24, "topk_softmax", router_bias=True, expert_bias=True, hidden_act="swigluoai",
        swiglu_limit=1.0,
    ),
    "llama4": MoEArgs(6, 1, 24, "topk_sigmoid", shared_expert_intermediate_size=24),
    "qwen2": MoEArgs(6, 2, 24, shared_expert_intermediate_size=40, shared_expert_gate=True),
}  # fmt: skip


def one_by_one(moe: SparseMoE, args: MoEArgs, x: Tensor) -> Tensor:
    """Each token through its experts, one after the other, in plain products."""
    rows = []
    for token in x:
        weights, ids = moe.gate(token[None])
        y = torch.zeros(len(token))
        for weight, e in zip(weights[0], ids[0].tolist(), strict=True):
            y = y + mlp_of(moe.experts, args, e, token, weight)
        if moe.shared_expert is not None:
            shared = moe.shared_expert(token[None])[0]
            gate = moe.shared_expert_gate
            y = y + (shared if gate is None else shared * gate(token[None])[0])
        rows.append(y)
    return torch.stack(rows)


def mlp_of(experts: Any, args: MoEArgs, e: int, x: Tensor, weight: Tensor) -> Tensor:
    gate_up, down = experts.gate_up_proj, experts.down_proj
    biases = (0, 0) if gate_up.bias is None else (gate_up.bias[e], down.bias[e])
    is_on_input = args.routing == "topk_sigmoid"
    gate, up = (gate_up.weight[e] @ (x * weight if is_on_input else x) + biases[0]).chunk(2)
    if args.hidden_act == "swigluoai":
        gate, up = (
            gate.clamp(max=args.swiglu_limit),
            up.clamp(-args.swiglu_limit, args.swiglu_limit),
        )
        inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    else:
        inner = gate * torch.sigmoid(gate) * up
    y = down.weight[e] @ inner + biases[1]
    return y if is_on_input else y * weight


@pytest.mark.parametrize("form", FORMS)
def test_sorted_rows_are_each_token_alone(form: str) -> None:
    args = FORMS[form]
    moe = SparseMoE(H, args, PLAIN, "mlp").requires_grad_(False)
    for seed, parameter in enumerate(moe.parameters()):
        parameter.copy_(draw(*parameter.shape, seed=seed) * 0.4)
    for tokens in (1, 2, 33):
        x = draw(tokens, H, seed=tokens)
        torch.testing.assert_close(moe(x), one_by_one(moe, args, x), rtol=1e-4, atol=1e-4)


def test_separate_experts_are_the_stacked_ones() -> None:
    args = FORMS["gpt-oss"]
    stacked = StackedExperts(H, args, PLAIN, "e").requires_grad_(False)
    separate = make_experts(H, args, Build(separates_experts=True), "e").requires_grad_(False)
    for name in ("gate_up_proj", "down_proj"):
        for kind in ("weight", "bias"):
            whole = getattr(getattr(stacked, name), kind)
            whole.copy_(draw(*whole.shape))
            for e, own in enumerate(separate.children()):
                getattr(getattr(own, name), kind).copy_(whole[e])
    x, weights, ids = (
        draw(5, H),
        torch.rand(5, 2),
        torch.tensor([[0, 5], [5, 2], [2, 0], [2, 5], [1, 2]]),
    )
    torch.testing.assert_close(stacked(x, weights, ids), separate(x, weights, ids))


def test_the_aligned_layout_is_upstreams_example() -> None:
    """Of its docstring, with experts counted from 0: four experts of three pairs each."""
    ids = torch.tensor([[1, 2, 3], [0, 1, 3], [0, 2, 3], [0, 1, 2]])
    sorted_ids, expert_ids, num_padded = moe_align_block_size(ids, 4, 4)
    assert sorted_ids[:16].tolist() == [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    assert expert_ids.tolist() == [0, 1, 2, 3, -1, -1] and num_padded.tolist() == [16]
    few = moe_align_block_size(torch.tensor([[7, 2]]), 16, 64)
    assert few[1].tolist() == [2, 7] and few[0].tolist() == [1] + [2] * 15 + [0] + [2] * 15


# ---------------------------------------------------------------- files
def write(folder: Path, form: str, leave_out: str = "") -> dict[str, Tensor]:
    """A checkpoint whose experts lie in the file as `form` says; the experts one by one."""
    shapes = {"gate_proj": (INNER, H), "up_proj": (INNER, H), "down_proj": (H, INNER)}
    experts = {
        f"{e}.{name}": draw(*shape, seed=7 * e + n)
        for e in range(E)
        for n, (name, shape) in enumerate(shapes.items())
    }
    stack = {name: torch.stack([experts[f"{e}.{name}"] for e in range(E)]) for name in shapes}
    base, both = "model.layers.0.mlp.experts.", torch.cat((stack["gate_proj"], stack["up_proj"]), 1)
    tensors = {f"{base}{name}.weight": value for name, value in experts.items()}
    if form == "mixtral":
        base = "model.layers.0.block_sparse_moe.experts."
        short = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        tensors = {f"{base}{n[:2]}{short[n[2:]]}.weight": value for n, value in experts.items()}
    elif form == "stacked":
        tensors = {f"{base}gate_up_proj": both, f"{base}down_proj": stack["down_proj"]}
    elif form == "transposed":
        tensors = {f"{base}gate_up_proj": both.mT, f"{base}down_proj": stack["down_proj"].mT}
    gate = base.replace("experts", "gate")
    others = {
        "model.embed_tokens": (16, H), "lm_head": (16, H), "model.norm": (H,),
        "model.layers.0.input_layernorm": (H,), "model.layers.0.post_attention_layernorm": (H,),
        **{f"model.layers.0.self_attn.{n}_proj": s for n, s in
           {"q": (H, H), "k": (16, H), "v": (16, H), "o": (H, H)}.items()},
        "model.layers.0.self_attn.q_norm": (16,), "model.layers.0.self_attn.k_norm": (16,),
        gate.removesuffix("."): (E, H),
    }  # fmt: skip
    tensors |= {f"{name}.weight": draw(*shape) for name, shape in others.items()}
    tensors = {
        name: t.contiguous()
        for name, t in tensors.items()
        if leave_out not in name or not leave_out
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return experts


@pytest.mark.parametrize("form", ["one by one", "mixtral", "stacked", "transposed"])
def test_every_form_of_file_loads_the_same_experts(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write(tmp_path / "m", form)
    if form == "transposed":
        from mini_vllm.model.moe import files

        real = files.one_by_one
        monkeypatch.setattr(
            "mini_vllm.model.sharded_loader.one_by_one",
            lambda found, args: real(found, MoEArgs(E, 2, INNER, is_transposed=True)),
        )
    model = load_model(tmp_path / "m")
    own = model.model.layers[0].mlp.experts
    for e in range(E):
        both = torch.cat((experts[f"{e}.gate_proj"], experts[f"{e}.up_proj"]))
        assert torch.equal(own.gate_up_proj.of_expert(e), both)
        assert torch.equal(own.down_proj.of_expert(e), experts[f"{e}.down_proj"])


def test_mxfp4_means_what_transformers_reads() -> None:
    """Two of transformers' `convert_moe_packed_tensors`, by its table: low half first."""
    blocks = torch.arange(16, dtype=torch.uint8).repeat(2, 1) * 17
    numbers = unpack_mxfp4(blocks, torch.tensor([127, 129], dtype=torch.uint8))
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    row = [v for n in values + [-v for v in values] for v in (n, n)]
    assert numbers.dtype == torch.bfloat16
    assert numbers.tolist() == row + [4 * v for v in row]
    low_first = torch.tensor([[0x21] + [0] * 15], dtype=torch.uint8)
    assert unpack_mxfp4(low_first, torch.tensor([127], dtype=torch.uint8)).tolist()[:2] == [0.5, 1]


def test_gpt_oss_files_have_gate_and_up_in_turns(tmp_path: Path) -> None:
    """Blocks and scales, which may be in two files, and biases; all interleaved."""
    base = "model.layers.0.mlp.experts."
    blocks = torch.randint(0, 256, (2, 8, 1, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (2, 8, 1), dtype=torch.uint8)
    bias = draw(2, 8)
    parts = {"gate_up_proj_blocks": blocks, "gate_up_proj_bias": bias}
    save_file({base + name: tensor for name, tensor in parts.items()}, tmp_path / "1.safetensors")
    save_file({f"{base}gate_up_proj_scales": scales}, tmp_path / "2.safetensors")
    args = MoEArgs(2, 1, 4, is_transposed=True, is_interleaved=True)
    files = one_by_one_in(tensor_files(tmp_path), args)
    whole = unpack_mxfp4(blocks, scales)
    seen: dict[str, Tensor] = {}
    for file in files:
        with file.open() as tensors:
            seen |= {name: tensors.get_tensor(name) for name in file.header}
    for e in range(2):
        assert torch.equal(seen[f"{base}{e}.gate_proj.weight"], whole[e, ::2])
        assert torch.equal(seen[f"{base}{e}.up_proj.weight"], whole[e, 1::2])
        assert torch.equal(seen[f"{base}{e}.up_proj.bias"], bias[e, 1::2])
    assert files[0].header[f"{base}1.up_proj.weight"] == TensorInfo("BF16", [4, 32])


def test_blocks_and_scales_belong_together(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file({name: torch.zeros(2, 8, 1, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"down_proj_scales' in .* has no '.*down_proj_blocks'"):
        one_by_one_in(tensor_files(tmp_path), MoEArgs(2, 1, 4))


# ---------------------------------------------------------------- together with other features
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe") / "m"
    write(folder, "stacked")
    return folder


def test_each_rank_has_a_share_of_every_expert(folder: Path) -> None:
    def work(group: SimulatedGroup) -> Tensor:
        parallel = ModelParallel(group, GroupCoordinator([0], 0))
        model = load_model(folder, parallel=parallel)
        assert model.model.layers[0].mlp.experts.down_proj.weight.shape == (E, H, INNER // 2)
        return run_prompt(model, PROMPT)

    alone = run_prompt(load_model(folder), PROMPT)
    for logits in run_ranks(2, work):
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("redundant", [0, 2])
def test_each_rank_has_some_whole_experts(redundant: int, folder: Path) -> None:
    def work(group: SimulatedGroup) -> Tensor:
        parallel = ModelParallel(group, GroupCoordinator([0], 0), True, redundant)
        model = load_model(folder, parallel=parallel)
        wanted = [2, 3] if redundant == 0 else [3, 0, 1]
        experts = model.model.layers[0].mlp.experts
        assert experts.local_experts == wanted or group.rank_in_group == 0
        return run_prompt(model, PROMPT)

    alone = run_prompt(load_model(folder), PROMPT)
    for logits in run_ranks(2, work):
        torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-4)


def test_the_picture_shows_the_load_of_each_expert(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        num_gpu_blocks=20,
        enable_prefix_caching=False,
    )
    prompts = [{"prompt_token_ids": PROMPT}, {"prompt_token_ids": [7] * 20}]
    args = argparse.Namespace(prompts=prompts, output_len=6, ranks=2, copies=2, json=True)
    assert run_with(llm, args) == 0
    (loads,) = json.loads(capsys.readouterr().out)["loads"]
    assert len(loads) == E and sum(loads) == 2 * (8 + 20 + 2 * 5)  # the last token is not read
    args.json = False
    assert run_with(llm, args) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2 texts, 38 tokens, 2 of 4 experts each")
    shades = "".join(shade(load / (sum(loads) / E)) for load in loads)
    hot = f"expert {loads.index(max(loads))} has {max(loads) / (sum(loads) / E):.1f} x its share"
    assert said[2].startswith(f"    0 |{shades}| {hot}")
    assert said[3].startswith("2 ranks with 3 places each")
    with pytest.raises(ValueError, match="3 ranks cannot share 4 experts and 0 copies evenly"):
        run_with(llm, argparse.Namespace(**vars(args) | {"ranks": 3, "copies": 0}))


def test_a_busy_expert_is_darker_and_a_move_helps() -> None:
    assert [shade(share) for share in (0, 0.1, 1, 2, 3.9, 50)] == [" ", "▁", "▂", "▄", "█", "█"]
    (line,) = heat_map(torch.arange(300)[None] == 299)
    assert line == f"    0 |{' ' * 99}█| expert 299 has 300.0 x its share, 299 idle"
    loads = torch.tensor([[90, 10, 10, 10], [10, 10, 10, 90]])
    assert [line[-6:] for line in forecast(loads, 2, 0)[1:]] == ["1.67 x", "1.67 x"]
    assert [line[-6:] for line in forecast(loads, 2, 2)[1:]] == ["1.33 x", "1.17 x"]


@pytest.mark.slow
@pytest.mark.serial
def test_two_processes_share_out_experts_and_move_them(folder: Path) -> None:
    options: dict[str, Any] = dict(
        skip_tokenizer_init=True, dtype="float32", max_model_len=64, num_gpu_blocks=20
    )
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": PROMPT}, {"prompt_token_ids": PROMPT[::-1]}]
    alone = LLM(str(folder), **options).generate(prompts, params, use_tqdm=False)
    spread = LLM(
        str(folder), tensor_parallel_size=2, enable_expert_parallel=True, enable_eplb=True,
        eplb_config={"num_redundant_experts": 2, "step_interval": 4}, **options,
    )  # fmt: skip
    outputs = spread.generate(prompts, params, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in alone]


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_experts_are_rounded_while_loading(form: str, folder: Path) -> None:
    whole = run_prompt(load_model(folder), PROMPT)
    model = load_model(folder, quant=get_quantization_config(folder, form))
    assert isinstance(model.model.layers[0].mlp.experts, SeparateExperts)
    rounded = run_prompt(model, PROMPT)
    error = (rounded - whole).norm() / whole.norm()
    assert 0 < error < 0.1


def test_mxfp4_is_what_experts_are_loaded_from(folder: Path) -> None:
    quant = get_quantization_config(
        folder, None, {"quantization_config": {"quant_method": "mxfp4"}}
    )
    assert quant is not None and quant.keeps_experts
    model = load_model(folder, quant=quant)  # experts in floats are as welcome
    assert torch.equal(run_prompt(model, PROMPT), run_prompt(load_model(folder), PROMPT))


@pytest.mark.skipif(native.library() is None, reason="there is no compiler")
@pytest.mark.parametrize("form", ["bfloat16", "int8"])
def test_one_call_multiplies_all_experts(form: str, folder: Path) -> None:
    """What `cpu.cpp` makes of rows of several experts is what it makes of each alone."""
    quant = None if form == "bfloat16" else get_quantization_config(folder, form)
    experts = load_model(folder, "bfloat16", quant=quant).model.layers[0].mlp.experts
    x, counts = draw(7, H), torch.tensor([2, 0, 4, 1])
    if native.multiplies_bf16() or form == "int8":
        assert (experts.matrices if quant else experts.gate_up_proj.matrices) is not None
    together = experts.run(x, counts)
    parts = [(e, own) for e, own in enumerate(x.split(counts.tolist())) if len(own)]
    alone = [experts.run(own, torch.eye(E, dtype=torch.int64)[e] * len(own)) for e, own in parts]
    assert torch.equal(together, torch.cat(alone))
    if quant is not None:
        apart = [experts.get_submodule(str(e))(own) for e, own in parts]
        torch.testing.assert_close(together, torch.cat(apart))


@pytest.mark.skipif(not native.can_read(torch.float32, "cpu"), reason="there is no compiler")
def test_the_busiest_expert_says_whether_weights_are_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then each expert is multiplied alone, and one of few rows by its packed numbers."""
    args = replace(FORMS["gpt-oss"], moe_intermediate_size=INNER)
    separate = make_experts(H, args, Build(separates_experts=True), "e")
    for linear in separate.requires_grad_(False).modules():
        if isinstance(linear, Linear):
            numbers = torch.randint(0, 16, linear.weight.shape, dtype=torch.int32)
            scale = 0.01 + torch.rand(len(numbers), 1) * 0.01
            assert hold_groups(linear, numbers, scale, None, 8)
            linear.bias.copy_(draw(len(numbers)))
            linear.quant_method = SimpleNamespace(apply=groups_linear)
    counts = torch.tensor([3, 0, 40, 5, 0, 0])
    x, calls, results = draw(48, H), [], []
    for name in ("grouped_multiply", "multiply"):
        monkeypatch.setattr(native, name, note(getattr(native, name), name, calls))
    monkeypatch.setattr(unpacked, "multiply", note(unpacked.multiply, "floats", calls))
    for wish, wanted in (
        ("41", ["grouped_multiply"] * 2),
        ("40", ["multiply"] * 2 + ["floats"] * 2 + ["multiply"] * 2),
    ):
        calls.clear()
        monkeypatch.setenv(unpacked.VARIABLE, wish)
        results.append(separate.run(x, counts))
        assert calls == wanted
    near = 4e-3 if native.has_tiles() else 1e-3  # tiles take x in bfloat16
    torch.testing.assert_close(*results, rtol=near, atol=near)


def note(function: Callable[..., Tensor], name: str, calls: list[str]) -> Callable[..., Tensor]:
    """The function; its calls are listed by `name`."""

    def noted(*args: Any) -> Tensor:
        calls.append(name)
        return function(*args)

    return noted


def test_adapters_change_attention_and_no_expert(folder: Path) -> None:
    config = LoRAConfig(max_loras=1, max_lora_rank=4)
    quant = get_quantization_config(folder, "int8")  # whose experts have linear layers of their own
    model = load_model(folder, quant=quant)
    manager = LoRAModelManager(model, config, 8, torch.device("cpu"))
    assert {name.split(".")[3] for name in manager.layers} == {"self_attn"}
    name = "model.layers.0.mlp.experts.1.up_proj"
    assert "adapters of experts are not supported" in unknown_module(name, manager.targets)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_says_the_same(folder: Path) -> None:
    model = load_model(folder)
    eager = run_prompt(model, PROMPT)
    backend = model.model.layers[0].self_attn.backend
    with mock.patch.object(
        type(model.model),
        "compile",
        lambda self, dynamic: setattr(
            self, "forward", torch.compile(self.forward, dynamic=dynamic, backend="eager")
        ),
    ):
        compile_model(model, backend)
    torch.testing.assert_close(run_prompt(model, PROMPT), eager)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((4, 6), "num_experts_per_tok is 6 and the number of experts 4"),
        ((6, 2, 1, 4), "n_group is 4 and the number of experts 6"),
        ((8, 2, 3, 2), "topk_group is 3 and n_group 2"),
        ((8, 3, 1, 4), "num_experts_per_tok is 3; topk_group 1 of n_group 4 leaves a token 2"),
    ],
)
def test_numbers_of_experts_that_do_not_go_together(numbers: tuple[int, ...], says: str) -> None:
    experts, k, *groups = numbers
    topk_group, n_group = groups or (1, 1)
    with pytest.raises(ValueError, match=says):
        MoEArgs(experts, k, 16, n_group=n_group, topk_group=topk_group)
    if not groups:
        with pytest.raises(ValueError, match=f"^config.json: {says}"):
            ModelArgs.from_dict(CONFIG | {"num_experts_per_tok": k})


def test_nothing_is_asked_of_the_device_before_a_launch() -> None:
    """So a graph can hold it: with tensors without numbers, shapes alone must do."""
    with FakeTensorMode():
        ids = torch.empty(4, 2, dtype=torch.int64)
        sorted_ids, expert_ids, _ = moe_align_block_size(ids, 16, 8)
    assert len(sorted_ids) == 16 * len(expert_ids) == 16 * 8


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    write(tmp_path / "m", "one by one", leave_out="experts.2.up_proj")
    with pytest.raises(
        ValueError, match=r"1 tensor\(s\) missing .*'.*experts\.2\.up_proj\.weight'"
    ):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("size", [16, 17, 19])
def test_rows_of_a_product_of_groups_follow_one_another(size: int) -> None:
    """torch pads them to 16 bytes, and what comes next reads them by their number."""
    draw = torch.Generator().manual_seed(size)
    x, weight = torch.randn(5, 8, generator=draw), torch.randn(3, 2 * size, 8, generator=draw)
    counts = torch.tensor([2, 0, 3])
    found = grouped_product(x, weight, counts)
    assert found.is_contiguous()
    torch.testing.assert_close(found, product_by_expert(x, weight, counts))
