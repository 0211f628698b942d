"""An operator's start: what it says, which limits it takes, and advice that helps when it fails."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine import startup
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.entrypoints import info
from mini_vllm.executor import worker
from mini_vllm.model.progress import Lines, weights_progress
from mini_vllm.worker import kv_cache

MODEL = Path(info.__file__).parents[1] / "bundled" / "storyteller"
BLOCK = 32768
"""Bytes of a block of 16 tokens of the bundled model."""


def start(**options: Any) -> LLM:
    return LLM("storyteller", **options)


def length_of(**options: Any) -> int:
    llm = start(**options)
    found = llm.config.scheduler.max_model_len
    assert llm.engine.core.limits.max_model_len == found
    assert llm.engine.input_processor.max_model_len == found
    llm.shutdown()
    return found


# ----------------------------------------------------------------- a length that was not given


def test_the_models_length_is_the_default_if_the_pool_holds_it() -> None:
    assert length_of() == 2048
    assert length_of(num_gpu_blocks=129) == 2048


@pytest.mark.parametrize(
    "options",
    [
        {"num_gpu_blocks": 20},
        {"kv_cache_memory_bytes": 20 * BLOCK},
        {"kv_cache_memory_bytes": 20 * BLOCK, "max_model_len": -1},
        {"kv_cache_memory_bytes": 20 * BLOCK, "max_model_len": "auto"},
        {"kv_cache_memory_bytes": 20 * BLOCK, "max_model_len": None},
    ],
)
def test_else_it_is_the_longest_that_fits(options: dict[str, Any]) -> None:
    assert length_of(**options) == 19 * 16


def test_a_request_of_the_longest_length_runs() -> None:
    llm = start(num_gpu_blocks=6)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    output = llm.generate(["Once upon a time"], params, use_tqdm=False)[0]
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 5 * 16
    assert output.outputs[0].finish_reason == "length" and output.error is None
    llm.shutdown()


def test_a_length_that_was_given_is_kept_or_refused() -> None:
    assert length_of(max_model_len=64, num_gpu_blocks=20) == 64
    with pytest.raises(ValueError, match="one request of max_model_len=2048 needs"):
        start(max_model_len=2048, kv_cache_memory_bytes=20 * BLOCK)


def test_without_chunked_prefill_a_step_holds_the_longest_prompt(tmp_path: Path) -> None:
    folder = copy_of_the_model(tmp_path, max_position_embeddings=4096)
    limits = make_engine_config(folder, enable_chunked_prefill=False).scheduler
    assert (limits.max_model_len, limits.max_num_batched_tokens) == (4096, 4096)
    options: dict[str, Any] = {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}
    with pytest.raises(ValueError, match="it must be at least max_model_len=4096"):
        make_engine_config(folder, **options)


def test_info_tells_the_length_that_fits() -> None:
    figures = info.describe("storyteller", kv_cache_memory_bytes=20 * BLOCK)
    assert (figures["max_model_len"], figures["longest_model_len"]) == (304, 2048)


# ----------------------------------------------------------------- what the start says


def test_limits_are_said_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mini_vllm"):
        start(num_gpu_blocks=20, max_num_seqs=4).shutdown()
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "loading storyteller on cpu" in text
    assert re.search(r"weights: \d.* loaded in", text)
    assert "KV cache: 19 blocks of 16 tokens" in text
    assert (
        "max_model_len is 304 in place of 2048, because the KV cache holds no more; to change "
        "that, set num_gpu_blocks to at least 129" in text
    )
    assert re.search(
        r"storyteller is ready after .* s: max_model_len=304 of 2048 positions, 19 KV blocks of 16 "
        r"tokens \(304 tokens\), max_num_batched_tokens=2048, max_num_seqs=4",
        text,
    )


SCRIPT = "from mini_vllm import LLM; LLM('storyteller', num_gpu_blocks=20{}); print('done')"


def stderr_of(more: str = "", **environment: str) -> str:
    around = {k: v for k, v in os.environ.items() if k != "VLLM_LOGGING_LEVEL"} | environment
    code = SCRIPT.format(more)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=around, timeout=300
    )
    assert done.stdout == "done\n", done.stderr
    return done.stderr


def test_a_script_sees_its_start_and_may_ask_for_quiet() -> None:
    said = stderr_of()
    assert "loading storyteller" in said and "is ready after" in said and "weights: " in said
    assert stderr_of(VLLM_LOGGING_LEVEL="WARNING") == ""
    assert "weights: " not in stderr_of(", use_tqdm_on_load=False")


def test_an_application_with_a_log_of_its_own_gets_each_line_once() -> None:
    code = "import logging; logging.basicConfig(level=20, format='APP %(message)s'); "
    done = subprocess.run(
        [sys.executable, "-c", code + SCRIPT.format("")],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "VLLM_LOGGING_LEVEL"},
        timeout=300,
    )
    ready = [line for line in done.stderr.splitlines() if "is ready after" in line]
    assert len(ready) == 1 and ready[0].startswith("APP ")


def test_weights_are_counted_by_percent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_vllm.model.progress.SECONDS", 0.0)
    monkeypatch.setattr("mini_vllm.model.progress.LEAST_BYTES", 0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(20)))
    with caplog.at_level(logging.INFO, "mini_vllm"), weights_progress(model, True):
        for weight in model.parameters():
            weight.data.copy_(torch.zeros(8, 8))
    percents = [int(n) for n in re.findall(r"weights: (\d+) %", caplog.text)]
    assert percents == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_a_terminal_shows_a_bar(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("mini_vllm.model.progress.LEAST_BYTES", 0)
    model = torch.nn.Linear(8, 8, bias=False)
    with caplog.at_level(logging.INFO, "mini_vllm"), weights_progress(model, True):
        model.weight.data.copy_(torch.zeros(8, 8))
    assert "weights:" in (bar := capsys.readouterr().err) and "/256" in bar


def test_lines_come_no_faster_than_a_person_reads(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(100)
    with caplog.at_level(logging.INFO, "mini_vllm"):
        for _ in range(100):
            lines.update(1)
    assert "%" not in caplog.text


# ----------------------------------------------------------------- advice that helps

NUMBER = re.compile(r"(?:(?:set|lower) (\w+) to|(it) must be) at (least|most) (\d+)")
ADVISED: list[dict[str, Any]] = [
    {"kv_cache_memory_bytes": 20 * BLOCK, "max_model_len": 2048},
    {"kv_cache_memory_bytes": 1},
    {"kv_cache_memory_bytes": 2 * BLOCK, "max_model_len": 17, "block_size": 16},
    {"max_model_len": 2049},
    {"num_gpu_blocks": 1},
    {
        "kv_cache_memory_bytes": 40 * BLOCK,
        "max_model_len": 1024,
        "speculative_config": {
            "method": "draft_model",
            "model": "storyteller-draft",
            "num_speculative_tokens": 2,
        },
    },
]


def pieces_of_advice(message: str) -> list[dict[str, Any]]:
    """The settings that an error offers; "it" is what the error begins with."""
    subject = message.split()[0]
    return [
        {subject if "it" in (set_, must) else set_: int(number)}
        for set_, must, _, number in NUMBER.findall(message)
    ]


@pytest.mark.parametrize("options", ADVISED, ids=lambda options: ",".join(map(str, options)))
def test_the_advice_of_an_error_lets_the_engine_start(options: dict[str, Any]) -> None:
    """Each way that an error offers is gone, and the engine starts. It says no more than that: a
    number that is one off would fail here."""
    with pytest.raises(ValueError) as raised:
        start(**options)
    advice = pieces_of_advice(str(raised.value))
    assert advice, str(raised.value)
    for one in advice:
        assert set(one) <= set(options) | {"kv_cache_memory_bytes", "max_model_len"}
        start(**(options | one)).shutdown()


@pytest.mark.parametrize("name", ["num_gpu_blocks", "num_cpu_blocks"])
def test_the_most_that_memory_holds_is_named(name: str) -> None:
    """Half of it is taken: what is free changes while a test runs."""
    with pytest.raises(ValueError) as raised:
        start(**{"num_gpu_blocks": 20, name: 10**9})
    (most,) = pieces_of_advice(str(raised.value))
    assert most.keys() == {name} and most[name] > 1000
    start(**{"num_gpu_blocks": 20, name: most[name] // 2}).shutdown()


@pytest.mark.parametrize("utilization", [0.9, 0.1])
def test_on_a_cpu_the_advice_is_not_a_share_of_it(
    utilization: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most half of what is free is taken there, so a larger share would change nothing."""
    monkeypatch.setattr(kv_cache, "available_memory", lambda *_: 20 * BLOCK)
    with pytest.raises(ValueError, match="lower max_model_len to at most 304, or set kv") as raised:
        start(max_model_len=2048, gpu_memory_utilization=utilization)
    assert "gpu_memory_utilization" not in str(raised.value)
    for one in pieces_of_advice(str(raised.value)):
        start(**({"max_model_len": 2048} | one)).shutdown()


def test_on_a_gpu_the_share_that_suffices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GiB, of which 30 are free: a share of 0.7 leaves 6, and 16 are needed."""
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (30 * gib, 80 * gib))
    config = make_engine_config("storyteller", gpu_memory_utilization=0.7)
    device = torch.device("cuda")
    said = kv_cache.how_to_hold(config, device, gib, 16)
    assert said == "set gpu_memory_utilization to at least 0.83"
    assert (
        kv_cache.available_memory(device, 0.83)
        >= 16 * gib
        > kv_cache.available_memory(device, 0.82)
    )
    assert "a device with more memory" in kv_cache.how_to_hold(config, device, gib, 31)


def test_vllms_variable_sizes_the_pool_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", str(20 * BLOCK / 2**30))
    assert length_of() == 304
    assert length_of(kv_cache_memory_bytes=10 * BLOCK) == 144, "the argument goes first"
    for bad in ("many", "0", "-1", "nan"):
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", bad)
        with pytest.raises(
            ValueError, match=r"VLLM_CPU_KVCACHE_SPACE is .*a number of GiB above 0"
        ):
            start()


def test_each_worker_gets_the_bytes_that_were_given() -> None:
    config = make_engine_config(
        "storyteller", kv_cache_memory_bytes=20 * BLOCK, tensor_parallel_size=2
    )
    spec = worker.load_model(MODEL).kv_cache_spec()
    assert kv_cache.choose_num_blocks(config, spec, torch.device("cpu")) == 20


# ----------------------------------------------------------------- refused before weights load


def copy_of_the_model(tmp_path: Path, **changes: Any) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_model_len": 4096}, {}, "max_model_len is 4096; the model has 2048 positions; lower it"),
    ({"tensor_parallel_size": 3}, {}, "tensor_parallel_size is 3; it must divide"),
    ({"pipeline_parallel_size": 5}, {}, "pipeline_parallel_size is 5; the model has 4 layers"),
    ({"quantization": "nf4"}, {}, "quantization is 'nf4'"),
    ({}, {"quantization_config": {"quant_method": "bitsandbytes"}}, "quant_method is"),
    ({}, {"dtype": "float8"}, "dtype"),
    ({}, {"architectures": ["MambaForCausalLM"]}, "is not supported; supported are"),
    ({"logits_processors": ["nowhere:Class"]}, {}, "cannot be imported"),
    ({"kv_transfer_config": {"kv_connector": "No", "kv_role": "kv_both"}}, {}, "kv_connector is"),
    (
        {"speculative_config": {"method": "eagle", "model": "storyteller-draft",
                                "num_speculative_tokens": 2}},
        {},
        "the EAGLE head in .* has hidden_size",
    ),
    (
        {"speculative_config": {"method": "medusa", "model": "storyteller-medusa",
                                "num_speculative_tokens": 9}},
        {},
        "num_speculative_tokens is 9",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes", "message"), REFUSED, ids=lambda value: str(value)[:40]
)
def test_what_config_json_decides_is_refused_before_weights_load(
    options: dict[str, Any],
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `LLM`, by what `serve` calls before it starts a process, and by `info`."""
    folder = copy_of_the_model(tmp_path, **changes)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights are loaded, or workers are made")

    monkeypatch.setattr(worker, "load_model", never)
    monkeypatch.setattr("mini_vllm.engine.core.make_executor", never)
    begin = time.monotonic()
    for ask in (LLM, make_engine_config, info.describe):
        with pytest.raises(ValueError, match=message):
            ask(folder, **options)
    assert time.monotonic() - begin < 15.0


def test_a_configuration_from_elsewhere_is_checked_by_the_engine_itself() -> None:
    config = make_engine_config("storyteller", max_model_len=64)
    assert startup.with_blocks(config, 3).scheduler.max_model_len == 64, "it was given"
