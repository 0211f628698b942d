"""From how many rows on a weight is unpacked: measured once a machine, and kept."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mini_vllm.kernels import native, unpacked
from mini_vllm.kernels.native_matrix import Matrix

INT4, INT8 = Matrix.GROUPS_OF_4_BITS, Matrix.GROUPS_OF_8_BITS
FILE = "cpu-0-torch0-int4-float32-1-1.txt"


class Clock:
    """Seconds that pass only where a product says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rivals_of(clock: Clock, crossing: float, waits: list[float] | None = None) -> Callable:
    """Two products that take as long from `crossing` rows on; `waits` come on top, one a call."""
    late = iter(waits or [])

    def product(seconds: Callable[[int], float]) -> Callable[[Tensor], None]:
        def run(x: Tensor) -> None:
            clock.now += seconds(len(x)) + next(late, 0)

        return run

    ours, floats = lambda rows: 2e-5 * rows, lambda rows: 1e-5 * (rows + crossing)
    return lambda kind: (product(ours), product(floats))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the answer is kept; no process has asked yet, and no variable answers."""
    monkeypatch.delenv(unpacked.VARIABLE, raising=False)
    monkeypatch.setattr(unpacked, "kept_file", lambda *names: tmp_path / FILE)
    unpacked.least_rows.cache_clear()
    yield tmp_path / FILE
    unpacked.least_rows.cache_clear()


def answers(monkeypatch: pytest.MonkeyPatch, *found: float) -> list[float]:
    """Let measurements find this, one after the other; returns what is left of them."""
    left = list(found)
    monkeypatch.setattr(unpacked, "measure", lambda *names: left.pop(0))
    return left


def ask(rows: int = 256, kind: int = INT4) -> bool:
    """What a new process is told: it remembers nothing."""
    unpacked.least_rows.cache_clear()
    return unpacked.is_faster(kind, rows, torch.float32)


@pytest.mark.parametrize(
    ("crossing", "wanted"),
    [(0, 128), (127, 128), (129, 192), (300, 384), (1000, 1024), (1025, math.inf)],
)
def test_the_least_rows_are_those_from_which_it_takes_less_time(
    crossing: float, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(unpacked, "rivals", rivals_of(clock, crossing))
    assert unpacked.measure(INT4, torch.float32, clock) == wanted
    assert 0 < clock.now < 2 * unpacked.SECONDS


def test_the_best_turn_counts_beside_a_busy_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops each product but for one turn of either, not the same one."""
    clock, busy = Clock(), [0.01, 0.0, 0.0, 0.01, 0.02, 0.03]
    monkeypatch.setattr(unpacked, "rivals", rivals_of(clock, 300, busy * 3))
    assert unpacked.measure(INT4, torch.float32, clock) == 384


def test_a_slow_machine_tries_no_longer_than_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = Clock(), []

    def slow(name: str) -> Callable[[Tensor], None]:
        def run(x: Tensor) -> None:
            calls.append(name)
            clock.now += 1

        return run

    monkeypatch.setattr(unpacked, "rivals", lambda kind: (slow("ours"), slow("floats")))
    unpacked.measure(INT4, torch.float32, clock)
    assert calls == ["floats", "ours"] * 2 * 3


def test_another_process_reads_what_was_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = answers(monkeypatch, 256, 1024)
    assert [ask(255), ask(256), ask(2048)] == [False, True, True]
    assert left == [1024] and kept.read_text() == "256"
    kept.unlink()
    answers(monkeypatch, math.inf)
    assert not ask(10**9) and kept.read_text() == "never"
    assert not ask(10**9)


def test_a_process_measures_once_for_a_form_a_dtype_and_threads(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    monkeypatch.setattr(unpacked, "kept_file", lambda *of: names.append(of) or kept)
    answers(monkeypatch, 256)
    for _ in range(2):
        unpacked.is_faster(INT4, 300, torch.float32)
        unpacked.is_faster(INT8, 300, torch.float32)
        unpacked.is_faster(INT8, 300, torch.bfloat16)
    forms = [(form, dtype) for form, dtype, _ in names]
    assert forms == [("int4", torch.float32), ("int8", torch.float32), ("int8", torch.bfloat16)]


def test_few_rows_and_other_weights_never_measure(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch)
    assert not ask(unpacked.TRIED[0] - 1)
    for kind in (Matrix.FLOAT32, Matrix.BFLOAT16, Matrix.INT8):
        assert not ask(10**6, kind)
    assert not kept.exists()


@pytest.mark.parametrize("text", [b"", b"25", b"256 512", b"\xff\x00", b"-256", b"1e3"])
def test_a_damaged_file_is_measured_again(
    text: bytes, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write_bytes(text)
    answers(monkeypatch, 256)
    assert ask() and kept.read_text() == "256"
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_a_folder_that_cannot_be_written_fails_no_request(
    error: type[OSError],
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(**options: object) -> None:
        raise error("no room")

    answers(monkeypatch, 256)
    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)
    assert ask() and unpacked.is_faster(INT4, 300, torch.float32)
    assert not kept.exists() and caplog.text.count("cannot be kept") == 1


def test_what_lies_in_the_place_of_the_file_fails_no_request(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.mkdir()
    answers(monkeypatch, 256)
    assert ask()
    assert list(kept.parent.iterdir()) == [kept]


def test_of_two_at_once_the_first_is_right_for_both(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*names: object) -> float:
        unpacked.keep(kept, 192)  # another process is done while this one measures
        return 768

    monkeypatch.setattr(unpacked, "measure", measure)
    assert ask(192) and kept.read_text() == "192"


KEEP = """
import sys
from pathlib import Path
from mini_vllm.kernels import unpacked
print("ready", flush=True)
sys.stdin.readline()
print(unpacked.keep(Path(sys.argv[1]), int(sys.argv[2])))
"""


def test_processes_that_keep_at_once_agree(tmp_path: Path) -> None:
    path, wanted = tmp_path / FILE, ("128", "384", "1024")
    command = [sys.executable, "-c", KEEP, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, rows], **pipes) for rows in wanted]
    assert [process.stdout.readline() for process in started] == ["ready\n"] * 3
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = {process.communicate(timeout=60)[0].strip() for process in started}
    assert told == {path.read_text()} and told < set(wanted)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("wish", "rows"), [("512", 512), ("1", 1), ("never", math.inf)])
def test_the_variable_says_it_without_a_measurement(
    wish: str, rows: float, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch)
    kept.write_text("256")
    monkeypatch.setenv(unpacked.VARIABLE, wish)
    for number in (1, 256, 511, 512, 10**6):
        assert ask(number) == (number >= rows)


@pytest.mark.parametrize("wish", ["many", "0", "-1", "2.5"])
def test_a_variable_that_is_not_understood_says_what_it_may_be(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(unpacked.VARIABLE, wish)
    with pytest.raises(ValueError, match=rf"is '{wish}'; it must be a number of rows, at least 1"):
        unpacked.pinned()


needs_compiler = pytest.mark.skipif(
    not native.can_read(torch.float32, "cpu"), reason="there is no compiler"
)


@needs_compiler
def test_the_file_lies_beside_the_library_and_names_what_it_depends_on() -> None:
    path = unpacked.kept_file("int8", torch.bfloat16, (4, 3))
    assert path.parent == native.cache_folder() and path.with_name(path.name[:20] + ".so").is_file()
    assert path.name.endswith(f"-torch{torch.__version__}-int8-bfloat16-4-3.txt")


@needs_compiler
@pytest.mark.parametrize("kind", [INT4, INT8])
def test_both_products_of_a_measurement_are_the_same_product(kind: int) -> None:
    """And it leaves the random numbers of requests alone."""
    state = torch.get_rng_state()
    ours, floats = unpacked.rivals(kind)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(40, unpacked.COLUMNS, dtype=dtype)
        torch.testing.assert_close(ours(x), floats(x), rtol=1e-4, atol=0)
    assert unpacked.measure(kind, torch.float32) in (*unpacked.TRIED, math.inf)
    assert torch.equal(torch.get_rng_state(), state)
    assert os.environ[unpacked.VARIABLE] == "512"  # so no other test measures
