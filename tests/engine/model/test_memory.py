"""What loading leaves in memory: one copy of the weights, and nothing that was freed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.kernels import native
from mini_vllm.model import loader
from mini_vllm.model.checkpoint import tensor_files
from mini_vllm.model.layers import Linear
from mini_vllm.model.memory import copy_in_pieces, drop_code, trim
from mini_vllm.quantization import int8

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it asks Linux")
MIB = 2**20
NUM_TENSORS, TENSOR_MIB = 6, 16


def resident_mib(kind: str) -> float:
    """MiB of this process in memory: "RssFile" pages of files, "RssAnon" all others."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A folder with a file of large tensors, and what they are."""
    numbers = torch.arange(TENSOR_MIB * MIB // 4, dtype=torch.float32)
    tensors = {f"{index}.weight": numbers + index for index in range(NUM_TENSORS)}
    folder = tmp_path_factory.mktemp("large")
    save_file(tensors, folder / "model.safetensors")
    return folder, tensors


def test_a_mapped_file_takes_memory_for_one_tensor(
    weights: tuple[Path, dict[str, Tensor]],
) -> None:
    folder, tensors = weights
    (file,) = tensor_files(folder)
    before, most = resident_mib("RssFile"), 0.0
    with file.open() as opened:
        for name, wanted in tensors.items():
            assert torch.equal(opened.get_tensor(name), wanted)
            assert torch.equal(opened.get_slice(name)[:], wanted)
            most = max(most, resident_mib("RssFile") - before)
        assert torch.equal(opened.get_tensor("0.weight"), tensors["0.weight"])  # let go of: again
    assert TENSOR_MIB - 1 < most < 2.5 * TENSOR_MIB


def test_load_weights_keeps_no_second_copy(
    weights: tuple[Path, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tensors = weights
    ours = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    before, found = resident_mib("RssFile"), []
    copy = loader.copy_weight

    def copy_and_look(*args: Any) -> None:
        copy(*args)
        found.append(resident_mib("RssFile") - before)

    monkeypatch.setattr(loader, "weight_targets", lambda model: ours)
    monkeypatch.setattr(loader, "copy_weight", copy_and_look)
    model: Any = type("Model", (), {"config": type("C", (), {"tie_word_embeddings": False})})
    loader.load_weights(model, folder)
    assert all(torch.equal(ours[name], tensors[name]) for name in tensors)
    assert len(found) == NUM_TENSORS and max(found) < 2.5 * TENSOR_MIB


def test_a_large_tensor_is_copied_in_pieces(weights: tuple[Path, dict[str, Tensor]]) -> None:
    (file,) = tensor_files(weights[0])
    copy = torch.ones(TENSOR_MIB * MIB // 4)
    with file.open() as opened:
        tensor = opened.get_tensor("1.weight")
        before = resident_mib("RssFile")
        copy_in_pieces(copy, tensor)
        assert resident_mib("RssFile") - before < TENSOR_MIB / 2
    assert torch.equal(copy, weights[1]["1.weight"])
    for small in (torch.tensor(3.0), torch.rand(3, 0), torch.rand(2, 3)):
        copy_in_pieces(copy := torch.empty_like(small), small)
        assert torch.equal(copy, small)


def test_code_that_only_started_torch_is_let_go_of() -> None:
    """It runs again as before: what is missing comes back from the files."""
    before = resident_mib("RssFile")
    drop_code.__wrapped__()
    assert before - resident_mib("RssFile") > 20
    assert torch.ones(3).sum() == 3


def small_tensors() -> Iterator[Tensor]:
    """Each below the size from which glibc gives a tensor pages of its own."""
    while True:
        yield torch.ones(15_000)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library")
def test_what_was_freed_goes_back() -> None:
    trim()
    made = [tensor for tensor, _ in zip(small_tensors(), range(1_000), strict=False)]
    kept = made[::50]  # the pages between them are no end of the heap
    del made
    before = resident_mib("RssAnon")
    trim()
    assert before - resident_mib("RssAnon") > 30
    assert len(kept) == 20


# ---------------------------------------------------------------- rounding while loading
def test_rows_are_rounded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Linear(64, 96, bias=False)
    layer.quant_method = method = int8.Int8OnlineLinearMethod()
    method.create_weights(layer)
    torch.manual_seed(0)
    weight = torch.randn(96, 64)
    layer.weight.data.copy_(weight)
    rounded, scale = int8.quantize_per_token(weight)
    held: list[Tensor] = []
    monkeypatch.setattr(int8, "MAX_ROWS", 40)
    monkeypatch.setattr(int8, "hold_int8", lambda layer, *parts: held.extend(parts))
    method.process_weights_after_loading(layer)
    assert torch.equal(held[0], rounded) and torch.equal(held[1], scale)


@pytest.mark.skipif(native.library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("columns", [2, 4, 64])
def test_packing_leaves_the_weight_as_it_is(columns: int) -> None:
    weight = torch.arange(32 * columns).remainder(255).sub(127).to(torch.int8).view(32, columns)
    before = weight.clone()
    blocks = native.pack_int8(weight)
    assert torch.equal(weight, before)
    assert torch.equal(native.unpack_int8(blocks, columns), before)
