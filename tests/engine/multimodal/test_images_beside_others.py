"""Images beside other features: options of one request, memory, adapters, KV from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from seeing import picture, prompt, save, words

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.executor import worker
from mini_vllm.lora.request import LoRARequest
from mini_vllm.worker.images import encoder_cache_bytes
from mini_vllm.worker.kv_cache import bytes_per_block
from tests.engine.lora.adapters import write_adapter

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LARGE = prompt(words(1, 3), picture(1, 64, 64), words(2, 2))
SMALL_KWARGS = {"size": {"shortest_edge": 64, "longest_edge": 1024}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("seeing"))


def load(folder: Path, **options: Any) -> LLM:
    usual = {"num_gpu_blocks": 64, "block_size": 4, "max_model_len": 128, "dtype": "float32"}
    return LLM(folder, skip_tokenizer_init=True, **(usual | options))


def answer(llm: LLM, request: Any, **more: Any) -> list[int]:
    (output,) = llm.generate([request], GREEDY, use_tqdm=False, **more)
    assert output.error is None, output.error
    return list(output.outputs[0].token_ids)


def num_encoded(llm: LLM) -> int:
    images = llm.engine.core.model_runner.images
    assert images is not None
    return images.num_encoded


# ------------------------------------------------------------------ options of a request


def test_a_requests_own_options(folder: Path) -> None:
    """A smaller picture of the same picture is another picture, and its name says so."""
    llm = load(folder)
    smaller = LARGE | {"mm_processor_kwargs": SMALL_KWARGS}
    outputs = llm.generate([LARGE, smaller, LARGE, smaller], GREEDY, use_tqdm=False)
    assert [len(output.prompt_token_ids) for output in outputs] == [71, 23, 71, 23]
    assert num_encoded(llm) == 2
    of_engine = load(folder, mm_processor_kwargs=SMALL_KWARGS)
    assert outputs[1].outputs[0].token_ids == answer(of_engine, LARGE)
    images = llm.engine.input_processor.images
    assert images is not None and images.num_processed == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_pixel": 9}, "mm_processor_kwargs has 'max_pixel'; the keys of this model's image"),
        ({"patch_size": 8}, r"patch_size of the image processor is 8 \(mm_\w+\); it must be 4"),
        (
            {"max_pixels": -1},
            r"cannot be processed: .* see mm_processor_kwargs, {'max_pixels': -1}",
        ),
        ([1], "mm_processor_kwargs is .*; it must be a mapping"),
        ({"size": {"shortest_edge": 64, "longest_edge": 65536}}, "max_num_encoder_input_tokens is"),
    ],
)
def test_options_that_cannot_be(folder: Path, options: Any, message: str) -> None:
    llm = load(folder, max_model_len=512, num_gpu_blocks=256, max_num_batched_tokens=64)
    big = prompt(words(1, 3), picture(1, 160, 96))
    good, bad = llm.generate(
        [LARGE, big | {"mm_processor_kwargs": options}], GREEDY, use_tqdm=False
    )
    assert good.error is None and bad.error is not None
    with pytest.raises(AssertionError, match=message):
        assert not bad.error, bad.error


def test_a_text_model_refuses_options_of_images() -> None:
    llm = LLM("storyteller", num_gpu_blocks=32)
    with pytest.raises(ValueError, match="brings mm_processor_kwargs; the model takes text only"):
        llm.generate([{"prompt": "a", "mm_processor_kwargs": {"max_pixels": 9}}], use_tqdm=False)


# ------------------------------------------------------------------ memory


def test_the_encoder_cache_has_its_memory_before_the_kv_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(folder)
    answer(llm, LARGE)
    model = llm.engine.core.model
    (rows,) = llm.engine.core.model_runner.encoder_cache.values()
    assert rows.nbytes == encoder_cache_bytes(model, len(rows), torch.device("cpu"))

    there = 4 * 2**20
    monkeypatch.setattr(worker, "available_memory", lambda *_: there)
    sizes = {"num_gpu_blocks": None, "max_num_seqs": 4096}
    found = load(folder, encoder_cache_size=4096, **sizes).engine.core
    taken = encoder_cache_bytes(model, 4096, torch.device("cpu"))
    block = bytes_per_block(model.kv_cache_spec(), 4)
    assert found.config.cache.num_gpu_blocks == (there - taken) // block
    with pytest.raises(ValueError, match=r"encoder_cache_size is 16384 .* take 6 MiB.*lower it"):
        load(folder, encoder_cache_size=16384, **sizes)


# ------------------------------------------------------------------ adapters


def adapter_for(folder: Path, seed: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Random A and B for the decoder's projections under PEFT's names, and their products."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(folder / "model.safetensors")
    tensors, products = {}, {}
    for name, weight in weights.items():
        if not name.startswith("model.language_model.layers.") or "_proj.weight" not in name:
            continue
        a = torch.randn(4, weight.shape[1], generator=generator) * 0.3
        b = torch.randn(weight.shape[0], 4, generator=generator) * 0.3
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        products[name] = b @ a
    return tensors, products


def test_an_adapter_on_a_model_that_sees(folder: Path, tmp_path: Path) -> None:
    """As if its product had been added to the weights; the encoder has no adapter."""
    tensors, products = adapter_for(folder, 3)
    targets = sorted({name.split(".")[-3] for name in tensors})
    path = write_adapter(tmp_path / "a", tensors, r=4, lora_alpha=4, target_modules=targets)
    merged = tmp_path / "merged"
    merged.mkdir()
    for file in folder.iterdir():
        if file.name != "model.safetensors":
            (merged / file.name).symlink_to(file)
    weights = load_file(folder / "model.safetensors")
    changed = {name: weight + products.get(name, 0) for name, weight in weights.items()}
    save_file(changed, merged / "model.safetensors", {"format": "pt"})

    llm = load(folder, enable_lora=True, max_loras=1, max_lora_rank=4)
    adapter = LoRARequest("a", 1, path)
    expected = answer(load(merged), LARGE)
    plain = answer(llm, LARGE)
    assert answer(llm, LARGE, lora_request=adapter) == expected != plain
    outputs = llm.generate([LARGE, LARGE], GREEDY, lora_request=[None, adapter], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [plain, expected]
    assert num_encoded(llm) == 1, "the encoder knows no adapters: both see the same picture"


# ------------------------------------------------------------------ KV from elsewhere


def store(tmp_path: Path) -> dict[str, Any]:
    return {
        "kv_transfer_config": {
            "kv_connector": "SharedStorageConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
        }
    }


def test_kv_of_pictures_comes_from_a_store(folder: Path, tmp_path: Path) -> None:
    """What was computed elsewhere needs no encoder here; another picture finds nothing."""
    begin, end = words(1, 3), words(2, 9)
    seen = prompt(begin, picture(1, 64, 64), end)
    other = prompt(begin, picture(2, 64, 64), end)
    truth = [answer(load(folder), request) for request in (seen, other)]
    first, second = (load(folder, **store(tmp_path)) for _ in range(2))
    assert answer(first, seen) == truth[0] and num_encoded(first) == 1
    assert answer(second, seen) == truth[0] and num_encoded(second) == 0
    assert answer(second, other) == truth[1] and num_encoded(second) == 1


def test_a_store_that_ends_inside_a_picture(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the picture is computed here, so it is encoded here, whole."""
    seen = prompt(words(1, 3), picture(1, 64, 64), words(2, 9))
    truth = answer(load(folder), seen)
    first = load(folder, **store(tmp_path))
    scheduler = first.engine.core.scheduler
    requests, add_request = [], scheduler.add_request
    monkeypatch.setattr(
        scheduler, "add_request", lambda request: (requests.append(request), add_request(request))
    )
    assert answer(first, seen) == truth
    behind = [name.hex() for name in requests[0].block_hashes[8:]]  # 32 tokens: half of it
    files = [file for file in tmp_path.rglob("*.kv") if file.stem in behind]
    assert len(files) > 5
    for file in files:
        file.unlink()
    second = load(folder, **store(tmp_path))
    assert answer(second, seen) == truth and num_encoded(second) == 1


def test_the_encoder_cache_is_empty_again(folder: Path) -> None:
    llm = load(folder)
    answer(llm, LARGE)
    manager = llm.engine.core.scheduler.encoder_cache_manager
    assert isinstance(manager, EncoderCacheManager) and not any(manager.cached.values())
