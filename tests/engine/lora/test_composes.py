"""Adapters beside what else an engine may be: packed bases, and steps that Ctrl-C cuts off. Several
workers: `tests/engine/distributed/test_workers.py`. All at random:
`tests/engine/whole/test_combinations.py`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.lora.layers import LinearLoRA
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.layers import Linear
from mini_vllm.model.narrow import LayerCall
from tests.engine.lora.adapters import random_tensors, write_adapter
from tests.engine.whole.interrupts import strike

PROMPT = list(range(300, 311))
PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PIRATE, JSON = (
    LoRARequest(name, number, str(bundled.adapter_path(name)))
    for number, name in enumerate(("pirate", "json"), 1)
)
BATCH = [None, PIRATE, JSON, PIRATE]


def make_llm(**options: Any) -> LLM:
    usual = dict(
        dtype="float32", enable_lora=True, max_loras=2, num_gpu_blocks=64, max_model_len=64
    )
    return LLM("storyteller", **(usual | options))


def tokens_of(llm: LLM, loras: list[LoRARequest | None]) -> list[list[int]]:
    outputs = llm.generate([PROMPT] * len(loras), PARAMS, use_tqdm=False, lora_request=loras)
    assert all(output.error is None for output in outputs)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_a_packed_base_gets_the_same_delta(tmp_path: Path) -> None:
    """fp8 weights: what a layer says with an adapter, less what it says without, is B A x of the
    adapter's own numbers; and a mixed batch says what each says alone."""
    tensors = random_tensors(3, 4, ("mlp.down_proj",), size=0.3)
    path = write_adapter(tmp_path / "x", tensors, r=4, lora_alpha=8)
    llm = make_llm(quantization="fp8")
    own = LoRARequest("x", 9, path)
    loras = [None, own, PIRATE]
    assert tokens_of(llm, loras) == [tokens_of(llm, [lora])[0] for lora in loras]
    worker = llm.engine.core.executor.worker
    manager, name = worker.lora, "model.layers.1.mlp.down_proj"
    layer = dict(worker.model.named_modules())[name]
    assert isinstance(layer, Linear) and layer.adapters is manager.layers[name]
    x = torch.randn(2, 576, generator=torch.Generator().manual_seed(0))
    key = next(key for key in manager.cpu_cache if key.startswith("x@"))
    assert manager.map([None, key], [1, 1]) == {}
    with torch.inference_mode():
        with_adapters = layer(x)
        manager.map([None, None], [1, 1])
        alone = layer(x)
    a, b = (tensors[f"base_model.model.{name}.lora_{half}.weight"] for half in "AB")
    torch.testing.assert_close(
        with_adapters[1] - alone[1], 2 * (b @ (a @ x[1])), atol=1e-4, rtol=1e-4
    )
    assert torch.equal(with_adapters[0], alone[0])


def test_a_step_like_the_last_maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the slots is looked at as well: it may change between two steps."""
    llm = make_llm(max_loras=1)
    tokens_of(llm, [PIRATE, None])
    manager = llm.engine.core.executor.worker.lora
    (key,) = manager.cpu_cache
    path, measured = manager.paths[key], []
    monkeypatch.setattr(LinearLoRA, "measure", lambda layer, slot: measured.append(slot))
    updates: list[list[int]] = []
    monkeypatch.setattr(manager.meta, "update", lambda slots: updates.append(slots.tolist()))
    manager.map([key, None], [1, 2])
    manager.map([key, None], [1, 2])
    assert updates == [[0, -1, -1]] and not measured
    manager.map([None, key], [1, 2])
    manager.prepare_capture()
    manager.map([None, key], [1, 2])
    assert updates[1:] == [[-1, 0, 0], [], [-1, 0, 0]]
    manager.remove_adapter(key)
    assert manager.map([None, key], [1, 2]) == {} and manager.slots == [key]
    assert len(updates) == 5 and len(measured) == len(manager.layers), "it was written anew"
    manager.remove_adapter(key)
    manager.add_adapter("other", path)
    manager.activate("other", needed=())
    manager.map([None, "other"], [1, 2])
    assert len(updates) == 6


@pytest.mark.parametrize("drafts", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_whole_layers_say_what_their_parts_say(
    drafts: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random mixtures of base and adapters, in chunks, with prefix hits, and drafts or none."""
    llm = make_llm(max_num_batched_tokens=24, block_size=8, speculative_config=drafts)
    draw = random.Random(31)

    def mixture() -> tuple[list[list[int]], list[LoRARequest | None]]:
        shared = [draw.randrange(300, 330) for _ in range(16)]
        prompts = [
            shared[: 8 * draw.randrange(3)] + [draw.randrange(300, 310)] * 5 for _ in "12345"
        ]
        return prompts, draw.choices([None, PIRATE, JSON], k=5)

    def answers(prompts: list[list[int]], loras: list[LoRARequest | None]) -> list[list[int]]:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False, lora_request=loras)
        return [list(output.outputs[0].token_ids) for output in outputs]

    batches = [mixture() for _ in range(6)]
    whole = [answers(*batch) for batch in batches]
    assert llm.reset_prefix_cache()
    monkeypatch.setattr(LayerCall, "takes", lambda *_: False)
    assert [answers(*batch) for batch in batches] == whole


@pytest.mark.parametrize("step", [0, 3])
def test_an_interrupted_step_is_undone(step: int) -> None:
    """Ctrl-C at many lines of a step that copies adapters into slots, or decodes with them: what
    each request says in the end is what it says undisturbed, also later in the same slots."""
    llm = make_llm(max_loras=1, max_cpu_loras=2)
    expected = tokens_of(llm, BATCH)
    engine = llm.llm_engine

    def begin() -> list[Any]:
        for number in (1, 2):  # both must be copied in again
            engine.remove_lora(number)
        llm.reset_prefix_cache()
        outputs = [
            engine.submit(f"r{i}", PROMPT, PARAMS, lora_request=lora)
            for i, lora in enumerate(BATCH)
        ]
        for _ in range(step):
            engine.step()
        return outputs

    begin()
    with strike() as counted:
        engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    for at in range(1 + step, counted.num_lines, counted.num_lines // 16):
        outputs = begin()
        with strike(at) as strikes:
            engine.step()
        while engine.has_unfinished_requests():
            engine.step()
        found = [list(output.outputs[0].token_ids) for output in outputs]
        assert found == expected, strikes.place
        engine.core.scheduler.check_integrity()
