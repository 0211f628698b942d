"""Quantised experts move between ranks, and what the model says stays the same."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import EPLBConfig
from mini_vllm.distributed.eplb.parcels import from_parcel, to_parcel
from mini_vllm.distributed.eplb.state import EplbState
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.executor.shards import check_shards
from mini_vllm.kernels import native
from mini_vllm.model.build import load_model
from mini_vllm.model.layers import Build, GatedMLP
from mini_vllm.model.moe.experts import SeparateExperts
from mini_vllm.quantization.config import Int8Config, get_quantization_config
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from tests.engine.distributed.test_quantized_ranks import ALONE, INT8, OPTIONS, int8
from tests.engine.quantization.test_formats import FORMATS, FP8_FORMATS, PROMPT, Make

E, H, INNER, VOCAB = 4, 64, 96, 48
CONFIG: dict[str, Any] = dict(
    architectures=["Qwen3MoeForCausalLM"], vocab_size=VOCAB, hidden_size=H, intermediate_size=INNER,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=E,
    num_experts_per_tok=2, moe_intermediate_size=INNER, norm_topk_prob=True,
    max_position_embeddings=64, tie_word_embeddings=False, dtype="float32",
)  # fmt: skip
ALL = {"int8": (INT8, int8)} | FORMATS | FP8_FORMATS
"""By name: a `quantization_config`, and what makes a projection's tensors."""
HELD = ["int8", "ct sym", "ct asym", "ct 8 bits", "gptq", "gptq order", "awq", "fp8 dynamic",
        "fp8 odd block"]  # fmt: skip
"""Of each form in which a processor's weights are held, one or two."""
MOVES = EPLBConfig(window_size=4, step_interval=2, num_redundant_experts=2)


def write(folder: Path, quantization: dict[str, Any], make: Make) -> Path:
    """A mixture whose experts are quantised, and nothing else: a row-parallel int8 layer rounds
    what it reads for each rank's part, which would be another difference."""
    ignored = ["re:.*self_attn.*", "lm_head"]
    config = CONFIG | {"quantization_config": {**quantization, "ignore": ignored}}
    (folder / "config.json").write_text(json.dumps(config))
    numbers = torch.Generator().manual_seed(3)

    def draw(name: str, *shape: int, scale: float = 1) -> dict[str, Tensor]:
        return {f"{name}.weight": torch.randn(shape, generator=numbers) * scale}

    tensors = {"model.norm.weight": torch.ones(H)}
    tensors |= draw("model.embed_tokens", VOCAB, H) | draw("lm_head", VOCAB, H)
    for layer in range(CONFIG["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        norms = {"input_layernorm": H, "post_attention_layernorm": H, "self_attn.q_norm": 16,
                 "self_attn.k_norm": 16}  # fmt: skip
        tensors |= {f"{base}{name}.weight": torch.ones(size) for name, size in norms.items()}
        for name, rows, columns in (("q", 64, H), ("k", 32, H), ("v", 32, H), ("o", H, 64)):
            tensors |= draw(f"{base}self_attn.{name}_proj", rows, columns, scale=0.1)
        tensors |= draw(f"{base}mlp.gate", E, H)
        for expert in range(E):
            for name, rows, columns in (("gate", INNER, H), ("up", INNER, H), ("down", H, INNER)):
                full = f"{base}mlp.experts.{expert}.{name}_proj"
                made, _ = make(full, rows, columns, len(tensors))
                tensors |= {f"{full}.{suffix}": tensor for suffix, tensor in made.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def run_all(experts: SeparateExperts, x: Tensor) -> dict[int, Tensor]:
    """What each expert that is here makes of `x` `[n, H]`, in one call for all places."""
    places = len(experts.local_experts)
    counts = torch.full((places,), len(x))
    results = experts.run(x.repeat(places, 1), counts).split(len(x))
    return dict(zip(experts.local_experts, results, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HELD)
def test_packed_experts_say_the_same_wherever_they_are(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """Each expert bit for bit: the bytes that travel are the bytes that are multiplied."""
    folder = write(tmp_path, *ALL[name])
    quant = get_quantization_config(folder, None)
    x = torch.randn(3, H, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))

    def work(group: SimulatedGroup) -> tuple[list[Tensor], list[list[int]], int]:
        parallel = ModelParallel(group, ALONE, True, MOVES.num_redundant_experts)
        with one_at_a_time:  # torch's default dtype is of all threads
            model = load_model(folder, dtype, quant=quant, parallel=parallel)
        state, said = EplbState(model, MOVES, 1), []
        for _ in range(5):
            said.append(run_prompt(model, PROMPT))
            state.step()
            for layer, wanted in zip(state.layers, whole, strict=True):
                assert {int(e) for e, _ in layer.named_children()} == {*layer.local_experts}
                for expert, y in run_all(layer, x).items():
                    assert torch.equal(y, wanted[expert])
        return said, state.places.tolist(), state.num_moves

    one_at_a_time = threading.Lock()
    alone = load_model(folder, dtype, quant=quant)
    whole = [run_all(layer.mlp.experts, x) for layer in alone.model.layers]
    logits = run_prompt(alone, PROMPT)
    ranks = run_ranks(2, work)
    assert sum(moves for *_, moves in ranks) > 0 and ranks[0][1] == ranks[1][1]
    for one in [one for said, *_ in ranks for one in said] if dtype == "float32" else []:
        torch.testing.assert_close(one, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_what_onednn_packed_is_packed_again(
    quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler it multiplies, in an order of its own that has no bytes to copy."""
    monkeypatch.setattr(native, "library", lambda: None)
    build, cpu = Build(quant=Int8Config() if quantization else None), torch.device("cpu")
    mlp = GatedMLP(1024, 1024, bias=True, build=build).requires_grad_(False)
    for parameter in mlp.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.1)
    linears = (mlp.gate_up_proj, mlp.down_proj)
    for linear in linears:
        linear.process_weights_after_loading()
    packed = [linear.int8 if quantization else linear.packed for linear in linears]
    if not all(one is not None and one.is_mkldnn for one in packed):
        pytest.skip("oneDNN has no exact product of int8 on this processor")
    x = torch.randn(3, 1024)
    assert torch.equal(from_parcel(to_parcel(mlp, cpu), cpu)(x), mlp(x))


def test_whole_experts_need_no_groups_that_divide(tmp_path: Path) -> None:
    """With a part of every expert a shard would have 48 of 96 columns, in groups of 32."""
    folder = write(tmp_path, *ALL["gptq"])
    options: dict[str, Any] = dict(device="cpu", dtype="float32", tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"experts\.0\.down_proj': group_size 32 does not divide"):
        check_shards(make_engine_config(str(folder), **options))
    check_shards(make_engine_config(str(folder), enable_expert_parallel=True, **options))


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("name", ["int8", "gptq", "awq", "ct asym", "fp8 dynamic"])
def test_two_processes_move_packed_experts_and_say_the_same(name: str, tmp_path: Path) -> None:
    """Token for token, as one process does."""
    folder = write(tmp_path, *ALL[name])
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    spread: dict[str, Any] = dict(
        tensor_parallel_size=2, enable_expert_parallel=True, enable_eplb=True,
        eplb_config={"num_redundant_experts": 2, "step_interval": 4, "window_size": 4},
    )  # fmt: skip
    said = []
    for options in ({}, spread):
        llm = LLM(str(folder), disable_log_stats=False, **OPTIONS, **options)
        try:
            outputs = llm.generate([PROMPT, PROMPT[::-1]], params, use_tqdm=False)
            said.append([output.outputs[0].token_ids for output in outputs])
            found = [one for one in llm.get_metrics() if one.name.startswith("mini_vllm:expert")]
        finally:
            llm.shutdown()
    assert said[0] == said[1]
    values: dict[str, list[float]] = {}
    for one in found:
        values.setdefault(one.name.removeprefix("mini_vllm:expert_"), []).append(one.value)
    assert values["rearrangements"][0] > 0 and min(values["busiest_ratio"]) >= 1
    # Two prompts of the same length; the last token of each is not read.
    rows = 2 * (len(PROMPT) + params.max_tokens - 1)  # of each layer, for each of two experts
    assert sum(values["rank_tokens"]) == rows * 2 * CONFIG["num_hidden_layers"]
