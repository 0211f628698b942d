"""A layer as one call computes what the layer computes, and is not asked for more than it knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mini_vllm.attention import AttentionMetadata, get_backend
from mini_vllm.kernels import native, unpacked
from mini_vllm.lora.checkpoint import LoRAPair
from mini_vllm.lora.layers import LinearLoRA
from mini_vllm.lora.mapping import LoRAKernelMeta
from mini_vllm.lora.slots import slot_dtype
from mini_vllm.model import narrow
from mini_vllm.model.build import load_model
from mini_vllm.model.layers import NARROW, TiedEmbedding
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.narrow import MOST_TOKENS, LayerCall, linears_of
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.oneshot.writer import PRESETS
from tests.engine.model.test_model_parity import (
    EXPERTS,
    MODELS,
    SCHEDULES,
    make_prompts,
    paged_logits,
    save_random_model,
)

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
ROUND: dict[str, Any] = dict(hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=128)
"""Sizes that the packed product and attention take; 97 words of them are used."""
WHOLE = {
    "qwen3": {},
    "qwen3-gqa4-bias": {},
    "qwen3-window": {},
    "llama-mha-bias": {},
    "llama-yarn": {},
    "qwen2": {},
    "mistral-window-head10": {},
    "phi3": {},
}
IN_PARTS = {"olmo2": {}, "gemma3": {}, "qwen3-moe": EXPERTS, "qwen3": dict(head_dim=20)}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tokens that layers were called with as a whole."""
    counts: list[int] = []
    call = LayerCall.__call__

    def counted(self: LayerCall, x: torch.Tensor, *rest: Any) -> Any:
        counts.extend([len(x)] * self.num_layers)
        return call(self, x, *rest)

    monkeypatch.setattr(LayerCall, "__call__", counted)
    return counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", WHOLE)
@torch.inference_mode()
def test_one_call_computes_the_layer(
    name: str, dtype: str, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks and single tokens together; a bfloat16 model has a bfloat16 cache.

    What goes into that is rounded, some numbers up here and down there: they lie close to a half.
    """
    family, overrides = MODELS[name]
    save_random_model(family, overrides | ROUND, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"), dtype=dtype)
    schedule = (make_prompts([20, 9, 13]), SCHEDULES["decodes beside prefills"], 4)
    whole = paged_logits(model, *schedule)
    assert calls == [n for n in (20, 8, 7, 7) for _ in range(2)], "both layers, in every step"
    near = {"float32": 1e-4, "bfloat16": 0.05}[dtype]
    monkeypatch.setattr(native, "library", lambda: None)
    for ours, wanted in zip(whole, paged_logits(model, *schedule), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=near, atol=near * float(wanted.std()))


@pytest.mark.parametrize("name", WHOLE)
@torch.inference_mode()
def test_one_call_computes_a_wide_layer_to_the_bit(
    name: str, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its activations are bfloat16 if the processor multiplies them, with every rounding between.

    Prompts are short, for attention of long ones sums in another order.
    """
    family, overrides = MODELS[name]
    save_random_model(family, overrides | ROUND | {"hidden_size": NARROW}, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"), dtype="bfloat16")
    schedule = (make_prompts([9, 6, 3]), [[7, 0, 0], [1, 5, 3], [1, 1, 0]], 4)
    whole = paged_logits(model, *schedule)
    assert calls
    calls.clear()
    monkeypatch.setattr(LayerCall, "takes", lambda *_: False)
    for ours, wanted in zip(whole, paged_logits(model, *schedule), strict=True):
        assert torch.equal(ours, wanted)
    assert not calls


def quantised(form: str, dtype: str, folder: Path) -> LlamaForCausalLM:
    """A random model with biases, whose weights are quantised in a form."""
    family, overrides = MODELS["qwen2"]
    save_random_model(family, overrides | ROUND, folder)
    wanted = form if form == "int8" else None
    if wanted is None:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        preset = PRESETS[form]
        if preset.group_size:
            preset = replace(preset, group_size=32)
        config["quantization_config"] = preset.config(["lm_head"], act_order=False)
        file.write_text(json.dumps(config))
        for floats in folder.glob("*.safetensors"):
            floats.unlink()  # they contradict that entry, and a dummy load reads none
    quant = get_quantization_config(folder, wanted)
    load_format = "auto" if wanted else "dummy"
    backend = get_backend("cpu", "cpu")
    return load_model(folder, dtype, backend=backend, load_format=load_format, quant=quant)


@pytest.mark.parametrize(("wish", "is_one_call"), [("never", True), ("300", True), ("257", False)])
@torch.inference_mode()
def test_a_long_step_is_one_call_if_unpacking_is_not_faster(
    wish: str, is_one_call: bool, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in groups only; a step of more than `MOST_IN_GROUPS` tokens never is."""
    monkeypatch.setenv(unpacked.VARIABLE, wish)
    many = MOST_TOKENS + 1
    paged_logits(quantised("W4A16", "bfloat16", tmp_path), make_prompts([many]), [[many]], 4)
    assert bool(calls) == is_one_call
    calls.clear()
    monkeypatch.setattr(narrow, "MOST_IN_GROUPS", MOST_TOKENS)
    paged_logits(quantised("W4A16", "bfloat16", tmp_path), make_prompts([many]), [[many]], 4)
    assert not calls


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["int8", "W4A16", "W8A16", "W8A8"])
@torch.inference_mode()
def test_one_call_computes_a_quantised_layer(
    form: str, dtype: str, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bias; in float32 also many tokens, in bfloat16 to the bit: there attention of a long
    prompt adds in another order, which int8 makes larger."""
    model = quantised(form, dtype, tmp_path)
    prompts, steps = ([9, 6, 3], [[7, 0, 0], [1, 5, 3], [1, 1, 0]])
    if dtype == "float32":
        prompts, steps = [40, 9, 3], [[38, 7, 0], [1, 1, 3], [1, 1, 0]]
    whole = paged_logits(model, make_prompts(prompts), steps, 4)
    is_exact = form in ("W4A16", "W8A16") and dtype == "float32"  # every bit of the weight, slowly
    assert bool(calls) != is_exact
    calls.clear()
    monkeypatch.setattr(LayerCall, "takes", lambda *_: False)
    for ours, parts in zip(
        whole, paged_logits(model, make_prompts(prompts), steps, 4), strict=True
    ):
        near = 1e-4 if dtype == "float32" else 0
        torch.testing.assert_close(ours, parts, rtol=near, atol=near * float(parts.std()))
    assert not calls


@pytest.mark.parametrize("name", IN_PARTS)
@torch.inference_mode()
def test_a_layer_that_does_more_is_computed_in_parts(
    name: str, tmp_path: Path, calls: list[int]
) -> None:
    family, overrides = MODELS[name]
    save_random_model(family, overrides | ROUND | IN_PARTS[name], tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"))
    paged_logits(model, make_prompts([4]), [[3], [1]], 4)
    assert not calls


@torch.inference_mode()
def test_unknown_adapters_and_long_steps_are_computed_in_parts(
    tmp_path: Path, calls: list[int]
) -> None:
    family, overrides = MODELS["qwen3"]
    save_random_model(family, overrides | ROUND, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"))
    many = MOST_TOKENS + 1
    paged_logits(model, make_prompts([many]), [[many]], 4)
    assert not calls
    paged_logits(model, make_prompts([many]), [[many - 17], [17]], 4)
    assert calls == [many - 17] * 2 + [17] * 2
    calls.clear()
    model.model.layers[1].mlp.down_proj.adapters = lambda x, y: y + 1
    paged_logits(model, make_prompts([4]), [[4]], 4)
    assert calls == [4], "only the layer without adapters"


@pytest.mark.parametrize("name", ["self_attn", "self_attn.o_proj", "mlp", "mlp.gate_up_proj"])
@torch.inference_mode()
def test_hooks_inside_are_called(name: str, tmp_path: Path, calls: list[int]) -> None:
    """Before and after, as for a KV connector, also where the layer was one call until then."""
    family, overrides = MODELS["qwen3"]
    save_random_model(family, overrides | ROUND, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"))
    scene = (make_prompts([4]), [[4]], 4)
    paged_logits(model, *scene)
    part, seen = model.model.layers[1].get_submodule(name), []
    before = part.register_forward_pre_hook(lambda *_: seen.append("before"))
    after = part.register_forward_hook(lambda *_: seen.append("after"))
    paged_logits(model, *scene)
    assert seen == ["before", "after"]
    before.remove()
    after.remove()
    paged_logits(model, *scene)
    assert calls == [4, 4, 4, 4, 4], "all but the one layer that was watched"


@pytest.mark.parametrize("what", ["slot", "page"])
@torch.inference_mode()
def test_a_place_outside_the_cache_is_an_error(what: str, tmp_path: Path) -> None:
    family, overrides = MODELS["qwen3"]
    save_random_model(family, overrides | ROUND, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"))
    caches = [torch.zeros(2, 3, 4, 2, 16) for _ in range(2)]
    metadata = AttentionMetadata.from_lists([2], [6], [[1, 2]], 4)
    if what == "slot":
        metadata.slot_mapping[1] = 12
        error = "slot 12 of token 1; the cache has 12 slots"
    else:
        metadata.block_table[0, 1] = 3
        error = r"reads a page outside the cache, which has 3: \[1, 3\]"
    with pytest.raises(IndexError, match=error):
        model(torch.tensor([5, 6]), torch.tensor([4, 5]), caches, metadata)


def fill_slots(model: LlamaForCausalLM, num_slots: int = 3, rank: int = 5) -> None:
    """Random adapters for all products of a model; one slot has a lower rank, one leaves `v` alone.

    A token's number says which slot it uses: each stands beside those of others, and of the base.
    """
    meta = LoRAKernelMeta(num_slots, MOST_TOKENS, torch.device("cpu"))
    for linear in (each for layer in model.model.layers for each in linears_of(layer)):
        sizes = (linear.input_size, linear.output_sizes, num_slots, rank, meta)
        dtype = slot_dtype("auto", model.dtype, torch.device("cpu"))
        linear.adapters = LinearLoRA(*sizes, dtype, torch.device("cpu"))
        for slot in range(num_slots):
            r = 2 if slot == 1 else rank
            pairs: list[LoRAPair | None] = [
                LoRAPair(torch.randn(r, linear.input_size) / 8, torch.randn(size, r) / 8)
                for size in linear.output_sizes
            ]
            linear.adapters.set_lora(slot, [*pairs[:-1], None] if slot == 2 else pairs)
            linear.adapters.measure(slot)
        has_others = len(linear.output_sizes) > 1
        assert linear.adapters.ranks.tolist() == [rank, 2, rank if has_others else 0]

    def note(_: object, args: tuple[torch.Tensor, ...]) -> None:
        meta.update((args[0] % (num_slots + 1) - 1).numpy().astype(np.int32))

    model.register_forward_pre_hook(note)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen3", "llama-mha-bias", "phi3"])
@torch.inference_mode()
def test_one_call_adds_each_tokens_adapter(
    name: str,
    dtype: str,
    threads: int,
    tmp_path: Path,
    calls: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a token of the base is computed to the bit as if there were no adapters beside it."""
    monkeypatch.setattr(native, "threads", lambda *_: threads)
    family, overrides = MODELS[name]
    save_random_model(family, overrides | ROUND, tmp_path)
    model = load_model(tmp_path, backend=get_backend("cpu", "cpu"), dtype=dtype)
    prompts = make_prompts([20, 9, 13])
    prompts[1] = torch.full((9,), 8)  # only of the base
    schedule = (prompts, SCHEDULES["decodes beside prefills"], 4)
    base = paged_logits(model, *schedule)
    fill_slots(model)
    calls.clear()
    whole = paged_logits(model, *schedule)
    assert calls == [n for n in (20, 8, 7, 7) for _ in range(2)], "both layers, in every step"
    assert torch.equal(whole[1], base[1])
    assert not torch.allclose(whole[0], base[0], atol=0.1)
    near = {"float32": 1e-4, "bfloat16": 0.05}[dtype]
    monkeypatch.setattr(LayerCall, "takes", lambda *_: False)
    for ours, wanted in zip(whole, paged_logits(model, *schedule), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=near, atol=near * float(wanted.std()))


def test_rows_of_a_heads_blocks_have_the_models_dtype() -> None:
    """A head multiplies in bfloat16 where the processor does; a narrow model's rest is float32."""
    weight = torch.randn(64, 32).bfloat16()
    embedding = TiedEmbedding(native.pack(weight), torch.float32)
    rows = embedding(torch.tensor([5, 40]))
    assert rows.dtype == embedding.weight.dtype == torch.float32
    assert torch.equal(rows, weight[[5, 40]].float())


def test_slots_leave_the_call_whole() -> None:
    """`enable_lora` must not slow the base: not in its own steps, nor beside rows of an adapter."""
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.bundled import adapter_path
    from mini_vllm.lora.request import LoRARequest

    llm = LLM("storyteller", enable_lora=True, num_gpu_blocks=64)
    call = llm.engine.core.model.model.call
    if call is None:
        pytest.skip("no compiler here")
    taken: list[bool] = []
    takes = call.takes

    def note(*args: Any) -> bool:
        taken.append(takes(*args))
        return taken[-1]

    call.takes = note
    params = SamplingParams(temperature=0, max_tokens=4)
    pirate = LoRARequest("pirate", 1, str(adapter_path("pirate")))
    for adapters in ([None, None], [None, pirate], [pirate, pirate]):
        taken.clear()
        llm.generate(["Once upon"] * 2, params, use_tqdm=False, lora_request=adapters)
        assert taken and all(taken)
    llm.shutdown()
