"""`gpu-report` without a GPU: the workload, the budget, merging, rendering, and what it imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.gpu import decode, smoke
from labkit.gpu import render as gpu_render
from labkit.gpu import report as gpu_report
from labkit.gpu import workload as end_to_end
from labkit.gpu.report import ReportError, Run
from labkit.gpu.workload import SHAPE, Workload

ROOT = Path(__file__).parents[3]
MACHINE = {
    "gpu": "NVIDIA Toy 9000", "capability": "9.9", "memory_gib": 8.0, "processors": 4,
    "cuda": "13.0", "python": "3.11.0", "torch": "2.13.0", "triton": "3.7.1",
    "transformers": "5.20.0",
}  # fmt: skip
TINY = {
    "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 64, "vocab_size": 10240,
}  # fmt: skip
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


# ---------------------------------------------------------------- the workload
def test_the_workload_is_nano_vllms() -> None:
    workload = end_to_end.nano_vllm()
    assert len(workload.prompts) == len(workload.output_lens) == 256
    assert (workload.input_tokens, workload.output_tokens) == (142_827, 133_966)
    lens = [len(prompt) for prompt in workload.prompts] + workload.output_lens
    assert min(lens) >= 100 and max(lens) <= 1024


def test_weights_of_the_model() -> None:
    """All matrices of the model; with its 65,536 norm weights Qwen3-0.6B has 596,049,920."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**(TINY | {"tie_word_embeddings": True}))  # type: ignore[arg-type]
    matrices = [p for p in Qwen3ForCausalLM(config).parameters() if p.dim() == 2]
    assert end_to_end.num_weights(TINY) == sum(p.numel() for p in matrices)
    assert end_to_end.num_weights(SHAPE) == 596_049_920 - 65_536


def test_least_work_by_hand() -> None:
    """Prompts of 3 and 5 tokens, 2 and 4 new ones: 3 steps, contexts of 4, and of 6, 7 and 8."""
    workload = Workload([[1] * 3, [1] * 5], [2, 4])
    weights = end_to_end.num_weights(TINY)
    least = 2 * (3 * weights + (4 + 6 + 7 + 8) * 2 * 16)
    assert end_to_end.least_decode_bytes(workload, TINY) == least
    matrices = weights - 32 * 10240
    pairs = (1 + 2 + 3) + (1 + 2 + 3 + 4 + 5)
    assert end_to_end.prefill_flops(workload, TINY) == 2 * matrices * 8 + pairs * 4 * 2 * 16


def test_shares_of_a_run() -> None:
    workload = end_to_end.nano_vllm()
    rates = {"bandwidth": end_to_end.least_decode_bytes(workload) / 4.0,
             "flops": end_to_end.prefill_flops(workload) / 0.5}  # fmt: skip
    share = end_to_end.shares(workload, 9.0, 1.0, rates)
    assert share["decode_floor_seconds"] == pytest.approx(4.0)
    assert share["decode_share"] == pytest.approx(0.5)
    assert share["prefill_share"] == pytest.approx(0.5)
    assert share["total_share"] == pytest.approx(0.5)


@pytest.mark.parametrize("engine", ["mini_vllm", "hf_continuous", "hf"])
def test_an_engine_on_a_tiny_model(engine: str) -> None:
    """The code that runs on the GPU, on this CPU: it counts what was asked for."""
    workload = Workload([[5, 6, 7], [8] * 9, [1, 2]], [4, 7, 1])
    result = end_to_end.measure(engine, 600.0, workload, TINY)
    assert result["output_tokens"] == 12 and result["whole"]
    assert result["seconds"] > 0 and result["start_seconds"] > 0


def test_transformers_stops_in_time() -> None:
    """Of the tokens it has made by then, those that were asked for count."""
    workload = Workload([[5, 6, 7], [8] * 9], [1, 1000])
    result = end_to_end.measure("hf", 0.05, workload, TINY)
    assert not result["whole"] and 2 <= result["output_tokens"] < 1001


# ---------------------------------------------------------------- the budget
class FakeTime:
    """A clock, and items that take as long as a script says."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.now, self.begun = seconds, 100.0, list[tuple[str, float]]()

    def clock(self) -> float:
        return self.now

    def run(self, part: str, name: str, limit: float) -> dict[str, Any]:
        self.begun.append((name, limit))
        self.now += min(self.seconds[name], limit)
        return {"saw": part} if self.seconds[name] <= limit else {"cut": f"after {limit} s"}


def test_a_part_ends_in_time_and_names_what_was_cut() -> None:
    time = FakeTime({"a": 30.0, "b": 90.0, "c": 5.0})
    results = gpu_report.run_part("tests", ["a", "b", "c"], time.run, 100.0, time.clock)
    assert time.begun == [("a", 100.0), ("b", 70.0)], "b had what a left"
    assert time.now == 200.0
    assert results["a"] == {"saw": "tests", "wall_seconds": 30.0}
    assert results["b"] == {"cut": "after 70.0 s", "wall_seconds": 70.0}
    assert results["c"] == {"cut": "not begun: the part's time was up"}
    assert [gpu_report.outcome(result) for result in results.values()] == ["done", "cut", "cut"]


def test_the_time_that_an_item_has_measured_is_kept() -> None:
    """The child's whole life, with imports and warm-up, is another time."""
    clock = iter([0.0, 1.0, 1.0, 31.5])
    run = gpu_report.run_part(
        "end-to-end", ["a"], lambda *_: {"seconds": 10.9}, 100.0, lambda: next(clock)
    )
    assert run["a"] == {"seconds": 10.9, "wall_seconds": 30.5}


def test_all_parts_end_within_eight_minutes() -> None:
    assert sum(gpu_report.PART_SECONDS.values()) + 30 <= 8 * 60
    assert gpu_report.PARTS[:3] == ("decode", "smoke", "kernels")


def test_only_steps_in_which_all_requests_decode_are_timed() -> None:
    steps = decode.Steps(
        decode.Step(at, requests, tokens)
        for at, requests, tokens in (
            (0.0, 3, 90), (0.5, 3, 3), (0.502, 3, 3), (0.505, 3, 3), (0.508, 2, 2), (0.6, 3, 40),
            (0.61, 3, 3),
        )
    )  # fmt: skip
    median, count = steps.decode_ms(3)
    assert (round(median, 3), count) == (2.5, 2)
    assert decode.Steps().decode_ms(3) == (0.0, 0)


def test_the_decode_part_counts_on_a_cpu() -> None:
    """The code that runs on the GPU, with a tiny model; late results are in it."""
    result = decode.measure("tiny", 1e9, "cpu", TINY, ((2, 5),), 6)
    (row,) = result["rows"]
    assert row["steps"] == 4 and row["ms"] > 0 and row["compiled"] == []
    assert row["floor_ms"] == pytest.approx(decode.least_step_bytes(TINY, 2, 8) / 1e6)
    assert "wrong" not in result and row["target_ms"] is None
    assert result["few_tokens_ms"] > 0


def test_a_compilation_inside_a_timed_run_is_seen() -> None:
    import triton

    with end_to_end.compilations() as found:
        assert triton.knobs.runtime.jit_post_compile_hook is not None
        triton.knobs.runtime.jit_post_compile_hook(repr="my_kernel", fn=None)
    assert found == ["my_kernel"]
    assert triton.knobs.runtime.jit_post_compile_hook is None


@pytest.mark.parametrize("name", ["results_in_time", "three_each"])
def test_a_feature_says_on_the_cpu_what_it_says_there(name: str) -> None:
    assert smoke.run(name, "cpu")["saw"].endswith(" tokens")


def test_an_item_in_a_process_of_its_own() -> None:
    """Too slow: cut. Unknown: wrong, with the error."""
    assert "ended after" in gpu_report.run_child("end-to-end", "mini_vllm", 0.5)["cut"]
    wrong = gpu_report.run_child("roofline", "no_such_kernel", 120)["wrong"]
    assert "code 1" in wrong and "no_such_kernel" in wrong


def test_items_of_each_part() -> None:
    assert "graphs_change_no_token" in gpu_report.item_names("tests")
    assert gpu_report.item_names("kernels") == gpu_report.item_names("roofline")
    assert "paged_decode" in gpu_report.item_names("kernels")
    assert gpu_report.chosen("end-to-end", ["hf", "ceilings"]) == ("ceilings", "hf")
    with pytest.raises(ReportError, match="roofline has no item hf; it has store_kv"):
        gpu_report.chosen("roofline", ["hf"])


# ---------------------------------------------------------------- merging
def a_run(part: str, items: dict[str, Any], **changes: Any) -> Run:
    return Run(part, MACHINE | changes, items, "2026-01-02 03:04 UTC", "abc123")


def test_parts_merge() -> None:
    first = gpu_report.merge({}, a_run("tests", {"x": {"saw": "1"}, "y": {"wrong": "2"}}))
    both = gpu_report.merge(first, a_run("roofline", {"rope": {"rows": []}}, torch="2.12.0"))
    again = gpu_report.merge(both, a_run("tests", {"x": {"saw": "3"}}))
    assert list(both["parts"]) == ["tests", "roofline"]
    assert both["parts"]["tests"] == first["parts"]["tests"]
    assert both["parts"]["roofline"]["rope"]["machine"]["torch"] == "2.12.0"
    assert set(again["parts"]["tests"]) == {"x"} and again["parts"]["tests"]["x"]["saw"] == "3"
    assert json.loads(json.dumps(again)) == again


def test_single_items_merge_into_their_part() -> None:
    first = gpu_report.merge({}, a_run("tests", {"x": {"saw": "1"}, "y": {"cut": "late"}}))
    mended = gpu_report.merge(first, a_run("tests", {"y": {"saw": "2"}}), only=True)
    assert mended["parts"]["tests"]["x"]["saw"] == "1"
    assert (
        mended["parts"]["tests"]["y"]["saw"] == "2" and "cut" not in mended["parts"]["tests"]["y"]
    )


def test_reports_of_two_gpus_do_not_mix() -> None:
    first = gpu_report.merge({}, a_run("tests", {}))
    with pytest.raises(ReportError, match="NVIDIA Toy 9000, this GPU is NVIDIA Other"):
        gpu_report.merge(first, a_run("tests", {}, gpu="NVIDIA Other"))
    with pytest.raises(ReportError, match="schema 0"):
        gpu_report.merge(first | {"schema": 0}, a_run("tests", {}))


def test_the_folder_of_a_gpu() -> None:
    assert gpu_report.slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"
    assert gpu_report.slug("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"


# ---------------------------------------------------------------- rendering
def timed(name: str, share: float, **ratio: float) -> dict[str, Any]:
    """A row as `labkit.kernels.measure.gpu_timing.time_large` makes it."""
    time = {"p20": 90.0, "median": 100.0, "p80": 130.0, "samples": 30, "noisy": True}
    return {
        "part": "timing", "name": name, "findings": [], "bytes": 10**8, "flops": 10**9,
        "bound": "memory", "floor_us": 100 * share, "times": dict.fromkeys(["yours", *ratio], time),
        "bytes_per_second": 1e12, "flops_per_second": 1e13, "share": share, "ratio": ratio,
        "ceilings": {"bandwidth": 2e12, "flops": 5e14},
    }  # fmt: skip


def document() -> dict[str, Any]:
    """Every part, with something wrong and something cut."""
    rates = {"bandwidth": 2e12, "flops": 5e14}
    ours = {"start_seconds": 9.0, "prefill_seconds": 1.0, "seconds": 21.0,
            "output_tokens": 133_966, "whole": True}  # fmt: skip
    hf = {"start_seconds": 5.0, "seconds": 100.0, "output_tokens": 50_000, "whole": False}
    row = {"requests": 256, "context": 160, "steps": 63, "ms": 4.0, "floor_ms": 1.9,
           "target_ms": 3.7, "met": False, "kernels_ms": 3.0, "calls": 13.06,
           "compiled": []}  # fmt: skip
    host = {"host_us": {"yours": 12.0, "torch": 31.0}}
    parts: dict[str, dict[str, Any]] = {
        "decode": {"0.6B": {"rows": [row], "few_tokens_ms": 12.34}, "8B": {"few_tokens_ms": 8.0}},
        "smoke": {"seeds": {"saw": "32 tokens"}},
        "tests": {"a_b": {"saw": "32 tokens"}, "c_d": {"wrong": "AssertionError: 1 | 2"}},
        "kernels": {
            "rope": {"cpu": "passed", "stages": [], "score": 1.0, "proof": ["rope_kernel"],
                     "cases": [["a", True, 0], ["b", True, 2]],
                     "sanitizer": {"status": "not run", "text": "compute-sanitizer is missing"}},
            "store_kv": {"cut": "ended after 300 s"},
        },
        "roofline": {"rope": {"rows": [timed("16,384 tokens", 0.87) | {"target": 0.8}]},
                     "mla_decode": {"rows": [timed("1 request", 0.15) | {"target": 0.2}]},
                     "paged_prefill": {"rows": [timed("4 requests", 0.5, torch=1.25)]},
                     "decode_inputs": {"rows": [timed("3 requests", 0.1, torch=0.2) | host]},
                     "silu_mul": {"cut": "not begun: the part's time was up"}},
        "end-to-end": {"ceilings": rates, "mini_vllm": ours, "hf": hf},
    }  # fmt: skip
    result: dict[str, Any] = {}
    for part, items in parts.items():
        result = gpu_report.merge(result, a_run(part, items))
    return result


def test_markdown_says_what_was_measured() -> None:
    text = gpu_render.markdown(document())
    assert text.startswith("# Measured on one NVIDIA Toy 9000\n")
    assert "1 of 2 hold." in text and "| c d | WRONG: AssertionError: 1 \\| 2 |" in text
    assert (
        "| 0.6B, 256 x 160 | 4.00 | 1.90 | 3.00 | 25% | 3.7: MISSED | 13, at most 10: MISSED | 63 |"
        in text
    )
    assert "| `rope` | passed | passed | 2/2 | rope_kernel | not run (compute-sanitizer is" in text
    assert "| `store_kv` | not run to its end: ended after 300 s | not run | not run |" in text
    noisy = "| 100.0 | 90.0 to 130.0 (noisy) | {} | 1,000 | 10.0 | memory | {} |"
    assert f"| `rope` | 16,384 tokens {noisy.format('87.0', '87% | 80%: met')}" in text
    assert "holds up all decodes): 0.6B 12.3 ms (MISSED), 8B 8.0 ms (met)." in text
    assert f"| `mla_decode` | 1 request {noisy.format('15.0', '15% | 20%: MISSED')}" in text
    assert f"| `paged_prefill` | 4 requests {noisy.format('50.0', '50% | ')}" in text
    assert "reaches 80% of its rate" in text, "1 / 1.25"
    assert "reaches 500% of its rate. The host starts this kernel in 12.0 µs, torch's in" in text
    assert "| `silu_mul` | not run to its end: not begun" in text
    assert "| mini_vllm | 133,966 | 21.0 | 6,379 |" in text
    assert "50,000 (a sample: it stopped when its time was up) | 100.0 | 500 |" in text
    assert "12.8 times the tokens per second of transformers." in text
    assert "decoding reaches **38%** of the bandwidth limit" in text.replace("\n", " ")
    assert "2026-01-02 03:04 UTC, commit abc123, torch 2.13.0, cuda 13.0" in text


def test_the_share_of_the_limit_is_that_of_the_figures() -> None:
    decode = end_to_end.least_decode_bytes(end_to_end.nano_vllm()) / 2e12 / 20.0
    assert round(decode, 2) == 0.38


def test_markdown_of_parts_that_never_ran() -> None:
    text = gpu_render.markdown(gpu_report.merge({}, a_run("tests", {"a": {"saw": "b"}})))
    assert text.count("\nNot run.\n") == 5 and "%" not in text


def test_items_of_other_runs_have_their_own_stamp() -> None:
    first = gpu_report.merge({}, a_run("tests", {"x": {"saw": "1"}, "y": {"cut": "late"}}))
    mended = gpu_report.merge(first, a_run("tests", {"y": {"saw": "2"}}, torch="2.12.0"), only=True)
    text = gpu_render.markdown(mended)
    assert "*x: 2026-01-02 03:04 UTC, commit abc123, torch 2.13.0" in text
    assert "*y: 2026-01-02 03:04 UTC, commit abc123, torch 2.12.0" in text


def test_render_draws_from_the_json_alone(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "report.json").write_text(json.dumps(document()))
    assert gpu_report.main(["--render", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == gpu_render.markdown(document())
    picture = (tmp_path / "report.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and len(picture) > 20_000
    assert "report.png" in capsys.readouterr().out
    assert gpu_report.main(["--render", str(tmp_path / "nowhere")]) == 1


def test_rates_in_the_picture() -> None:
    rates = dict(gpu_render.token_rates(document()["parts"]["end-to-end"]))
    assert list(rates) == ["mini_vllm", "transformers", "limit"]
    assert rates["limit"] > rates["mini_vllm"] > rates["transformers"] == 500.0
    assert dict(gpu_render.token_rates({})) == {}


def test_without_matplotlib_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = gpu_report.save(tmp_path, document())
    assert [file.name for file in written] == ["report.json", "report.md"]
    assert not (tmp_path / "report.png").exists()
    assert f"gpu-report --render {tmp_path}" in capsys.readouterr().out


# ---------------------------------------------------------------- the command
def fake_children(answers: dict[tuple[str, str], Any]) -> Callable[..., Any]:
    return lambda part, name, seconds: answers.get((part, name), {"saw": "fine"})


def test_the_command_writes_after_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    answers: dict[tuple[str, str], Any] = {("machine", ""): MACHINE}
    monkeypatch.setattr(gpu_report, "run_child", fake_children(answers))
    monkeypatch.setattr(gpu_report, "RESULTS", tmp_path)
    assert gpu_report.main(["--part", "tests"]) == 0
    file = tmp_path / "toy-9000" / "report.json"
    assert list(json.loads(file.read_text())["parts"]) == ["tests"]
    answers["tests", "schedules_change_no_token"] = {"cut": "ended after 3 s"}
    assert gpu_report.main(["--part", "tests", "--only", "schedules_change_no_token"]) == 1
    items = json.loads(file.read_text())["parts"]["tests"]
    assert len(items) == len(gpu_report.item_names("tests"))
    assert items["schedules_change_no_token"]["cut"] == "ended after 3 s"
    assert "0 done, 0 wrong, 1 cut" in capsys.readouterr().out


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "gpu-report", "--out", str(tmp_path / "report")],
        env=os.environ | NO_GPU, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "needs a CUDA device" in done.stderr and "nothing was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(
        gpu_report.importlib.util, "find_spec", lambda name: None if name == "triton" else name
    )
    assert gpu_report.main([]) == 1
    assert "has no triton" in capsys.readouterr().err


# ---------------------------------------------------------------- a bare checkout
BLOCKED = ("libcst", "jupytext", "watchfiles", "typer", "rich", "hypothesis", "pytest", "nbclient",
           "matplotlib", "pygments", "markdown_it", "cryptography", "xdist")  # fmt: skip
USE_ALL = """
import sys
from pathlib import Path
from labkit.gpu import checks as gpu_checks, decode, smoke
from labkit.gpu import render as gpu_render, report as gpu_report
from labkit.gpu import workload as end_to_end
from labkit.kernels.measure import gpu
from labkit.kernels.cases import large
from labkit.kernels.cases import SPECS
from labkit.kernels.check import Checker
import mini_vllm, mini_vllm.sample.sampler, mini_vllm.worker.cuda_graphs
for part in gpu_report.PARTS:
    assert gpu_report.item_names(part)
with Checker() as checker:
    file = gpu_report.engine_file(SPECS["silu_mul"].module)
    result = checker.check("silu_mul", file, seed=1, sample=1)
assert result.passed, result.findings
try:
    gpu_report.describe_machine()
except gpu_report.ReportError as error:
    print(error)
document = eval(sys.argv[1])
gpu_report.save(Path(sys.argv[2]), document)
loaded = set(sys.argv[3].split(",")) & set(sys.modules)
assert not loaded, loaded
"""


def test_it_runs_with_the_engines_packages_alone(tmp_path: Path) -> None:
    """Modules that raise stand in front of everything else that the course uses; children see
    them too."""
    blocked, out = tmp_path / "blocked", tmp_path / "out"
    blocked.mkdir()
    for name in BLOCKED:
        (blocked / f"{name}.py").write_text(f'raise ImportError("{name} is blocked by a test")')
    env = os.environ | NO_GPU | {"PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], env=env, cwd=ROOT, capture_output=True,
                              text=True, timeout=300)  # fmt: skip

    assert "is blocked" in run("-c", "import typer").stderr, "the blocking works"
    command = run("-m", "labkit", "gpu-report")
    assert command.returncode == 1 and "needs a CUDA device" in command.stderr, command.stderr
    everything = run("-c", USE_ALL, repr(document()), str(out), ",".join(BLOCKED))
    assert everything.returncode == 0, everything.stderr[-2000:]
    assert "needs a CUDA device" in everything.stdout
    assert (out / "report.md").exists()
