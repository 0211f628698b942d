"""The maps in upstream_notes: complete, in order, and true about `mini_vllm`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.citations.scan import Citation, scan_text
from labkit.citations.symbols import SourceFile

ROOT = Path(__file__).parents[3]
NOTES = ROOT / "upstream_notes"
MAPS = sorted(set(NOTES.glob("*/**/*.md")) - set(NOTES.glob("drift/*")))
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)*)`")


def rows(note: Path) -> list[list[str]]:
    """Cells of the map's rows: region, what happens, phases, counterpart."""
    lines = [line for line in note.read_text("utf-8").splitlines() if line.startswith("| [`")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_there_is_a_map_for_every_file_that_the_phases_read() -> None:
    expected = {
        *("request", "engine/core", "worker/gpu_model_runner", "core/kv_cache_utils"),
        "worker/gpu_input_batch",
        *("core/block_pool", "core/single_type_kv_cache_manager", "core/kv_cache_manager"),
        *(f"core/sched/{name}" for name in ("scheduler", "request_queue", "output", "utils")),
        *("core/sched/interface", "core/sched/async_scheduler"),
        *("sample/sampler", "sample/ops/topk_topp_sampler", "sample/logits_processor/builtin"),
        *("engine/detokenizer", "cudagraph_dispatcher", "structured_output/__init__"),
    }
    beyond_v1 = {
        *("compilation/cuda_graph", "compilation/passes/fusion/qk_norm_rope_fusion"),
        *("config/vllm", "ir/ops/layernorm", "model_executor/layers/layernorm"),
        *("model_executor/layers/activation", "model_executor/layers/rotary_embedding/base"),
        *(f"model_executor/models/{name}" for name in ("llama", "qwen3", "utils")),
        "model_executor/model_loader/default_loader",
        *("lora/model_manager", "lora/worker_manager"),
    }
    found = {note.relative_to(NOTES).with_suffix("").as_posix() for note in MAPS}
    assert {f"v1/{name}" for name in expected} | beyond_v1 <= found


@pytest.mark.parametrize("note", MAPS, ids=lambda note: note.stem)
def test_every_row_cites_the_mapped_file(note: Path) -> None:
    path = f"vllm/{note.relative_to(NOTES).with_suffix('.py').as_posix()}"
    assert path in note.read_text("utf-8").splitlines()[0], "the title names the file"
    assert rows(note)
    for row in rows(note):
        assert len(row) == 4, f"{note.name}: {row} must have four cells"
        [citation] = scan_text(row[0], note.name)
        assert isinstance(citation, Citation)
        assert citation.path == path
        assert citation.region in row[0] or str(citation.first) in row[0].split("]")[0]
        assert re.fullmatch(r"none|\d\d(, \d\d)*", row[2]), f"{note.name}: phases {row[2]!r}"


@pytest.mark.parametrize("note", MAPS, ids=lambda note: note.stem)
def test_counterparts_exist_in_the_engine(note: Path) -> None:
    """The last column speaks of names; each is defined in a file on the `Beside it` line."""
    [beside] = re.findall(r"^Beside it: (.+)$", note.read_text("utf-8"), re.MULTILINE)
    files = [ROOT / path for path in re.findall(r"`([^`]+)`", beside)]
    sources = [SourceFile(file.name, file.read_text("utf-8")) for file in files]
    for row in rows(note):
        for name in NAME.findall(row[3]):
            assert any(source.resolve(name) for source in sources), (
                f"{note.name}: {name} is not in {beside}"
            )


def test_the_index_lists_every_map() -> None:
    index = (NOTES / "README.md").read_text("utf-8")
    for note in MAPS:
        assert f"]({note.relative_to(NOTES).as_posix()})" in index
