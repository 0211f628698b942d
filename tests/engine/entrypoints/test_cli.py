"""The command line, in process: output, exit codes, errors without tracebacks."""

from __future__ import annotations

import io
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from mini_vllm.config.options import complaint, join_dotted, with_dashes, without_defaults
from mini_vllm.config.vllm_names import DEFAULTS
from mini_vllm.entrypoints.cli import ELSEWHERE, build_parser, main
from mini_vllm.entrypoints.cli_options import engine_options_of
from mini_vllm.kernels import native

SMALL = ["--num-gpu-blocks", "64", "--max-model-len", "256", "--dtype", "float32"]
SAMPLING = ["--temperature", "0", "--max-tokens", "6"]


def test_generate_prints_the_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "The sun", *SMALL, *SAMPLING]) == 0
    streamed = capsys.readouterr().out.strip()
    assert main(["generate", "The sun", "A cat", *SMALL, *SAMPLING]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- 'The sun'\n" + streamed)


def test_generate_json_and_timeline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    timeline = tmp_path / "steps.jsonl"
    arguments = ["generate", "The sun", "A cat", "--json", "--report", "--timeline", str(timeline)]
    assert main([*arguments, *SMALL, *SAMPLING, "--ignore-eos"]) == 0
    captured = capsys.readouterr()
    outputs = [json.loads(line) for line in captured.out.splitlines()]
    assert [output["prompt"] for output in outputs] == ["The sun", "A cat"]
    assert all(len(output["outputs"][0]["token_ids"]) == 6 for output in outputs)
    assert "2 requests in" in captured.err
    steps = [json.loads(line) for line in timeline.read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(6))
    assert steps[0]["new_block_ids"] == {"0": [1], "1": [2]}
    assert [step["added"] for step in steps] == [{"0": 2, "1": 2}, {}, {}, {}, {}, {}]
    assert ["config" in step for step in steps] == [True] + [False] * 5
    assert steps[0]["config"]["block_size"] == 16 and steps[0]["config"]["scheduler"] == "Scheduler"
    assert steps[-1]["finished"] == [
        ["0", "FINISHED_LENGTH_CAPPED", "length"],
        ["1", "FINISHED_LENGTH_CAPPED", "length"],
    ]


def test_generate_reads_prompts_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The sun\n\nA cat\n"))
    assert main(["generate", *SMALL, *SAMPLING]) == 0
    assert capsys.readouterr().out.count("---") == 2


def test_a_failed_prompt_gives_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "The sun", "", *SMALL, *SAMPLING]) == 1
    assert "error: the prompt is empty" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x", "--top-p", "3"], "top_p is 3.0"),
        (["generate", "x", "--model", "/no/such/folder"], "/no/such/folder"),
        (["generate", "x", "--block-size", "0"], "block_size is 0"),
        (["generate", "", *SMALL], "the prompt is empty"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mini_vllm generate: ")
    assert message in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_ctrl_c_gives_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mini_vllm.engine.llm_engine.LLMEngine.step", interrupted)
    assert main(["generate", "x", *SMALL]) == 130
    assert "all requests were aborted" in capsys.readouterr().err


def test_chat_keeps_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 1 + 1?\nAnd 2 + 2?\n"))
    assert main(["chat", "--system", "Be brief.", *SMALL, *SAMPLING]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) >= 1


def test_info_and_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json", *SMALL]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["kv_cache_tokens"] == 63 * 16
    sizes = ["--num-prompts", "3", "--input-len", "5", "--output-len", "4"]
    assert main(["bench", "--json", *sizes, *SMALL]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["output_tokens"] == 12
    assert figures["wall_output_tokens_per_s"] > 0


def test_throughput_as_vllm_spells_and_writes_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", "throughput", "--dataset-name", "random", "--random-input-len", "5"]
    words += ["--random-output-len", "4", "--num-prompts", "3", *SMALL, "--output-json"]
    assert main([*words, str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["num_requests"], figures["total_num_tokens"]) == (3, 27)
    assert figures["tokens_per_second"] == pytest.approx(27 / figures["elapsed_time"])
    assert main([*words, str(tmp_path / "nowhere" / "figures.json")]) == 2
    assert "figures.json; name a file in a folder that exists" in capsys.readouterr().err


def test_break_even_of_a_shape_and_of_a_model_that_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--prefill-rate", "20000", "--fixed-ms", "10", "--input-len", "2000"]
    assert main(["break-even", "Llama-3.1-8B", "--link", "10 GbE", "NVMe", "12", *given]) == 0
    out = capsys.readouterr().out
    assert "131,072 bytes of KV a token; 20,000 tokens/s computed\n" in out
    rows = [line.split() for line in out.splitlines() if " ms  " in line]
    assert [row[-1] for row in rows] == ["never", "356", "256"]
    assert "at 2.6 GB a second or less, a transfer takes longer" in out
    small = ["--link", "1", "1e-9", "--input-len", "32", "--fixed-ms", "0", *SMALL]
    assert main(["break-even", "--json", *small]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kv_bytes_per_token"] == 4096 and figures["prefill_tokens_per_s"] > 0
    assert figures["compute_seconds"] * figures["prefill_tokens_per_s"] == pytest.approx(32)
    assert [row["break_even_tokens"] for row in figures["links"]] == [0, None]
    assert main(["break-even", "--json", *small, "--kv-cache-dtype", "int8_per_token_head"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_bytes_per_token"] < 4096 / 3


def test_demo_shows_what_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for event in ("gets a chunk of", "in the prefix cache", "is preempted", "comes back"):
        assert event in out
    assert "preemptions" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("generate x --device foo", "device is 'foo'; it must be 'auto', 'cpu', 'cuda' or"),
        ("generate x --device meta", "device is 'meta'; it must be 'auto', 'cpu', 'cuda' or"),
        (
            "generate x --max-num-seqs 1000000000 --max-num-batched-tokens 1g",
            "max_num_seqs is 1000000000, which takes",
        ),
        ("generate x --num-gpu-blocks 1000000000", "num_gpu_blocks is 1000000000, which takes"),
        ("generate x --num-cpu-blocks 1000000000", "num_cpu_blocks is 1000000000, which takes"),
        ("generate x --num-threads 1000000000", "num_threads is 1000000000; it must be at most"),
        ("generate x --temperature 1e39", "temperature is 1e+39; it must be finite"),
        (
            "generate x --timeline /no/such/folder/x",
            "timeline is '/no/such/folder/x', which cannot",
        ),
        ("generate x --timeline /", "timeline is '/', a folder"),
        ("generate", "there is no prompt: none is given, and stdin is empty"),
        ("bench --num-prompts 0", "--num-prompts: it is 0; it must be at least 1"),
        ("bench --num-prompts -3", "--num-prompts: it is -3; it must be at least 1"),
        ("bench --output-len 0", "--output-len: it is 0; it must be at least 1"),
        ("break-even Llama-3.1-8B", "its speed cannot be measured here; give the tokens a second"),
        (
            "break-even Llama-3.1-8B --prefill-rate 9 --dtype float32",
            "with KV in bfloat16; leave out dtype",
        ),
        ("break-even --input-len 0", "--input-len is 0; it must be at least 1"),
        ("break-even --input-len 9999", "your prompt contains 9999 input tokens"),
        ("break-even --link fast", "--link: it is 'fast'; give GB a second, or one of '10 GbE'"),
        ("break-even --link 0", "--link: it is '0'; give GB a second, or one of"),
        ("break-even --prefill-rate nan", "it is 'nan'; it must be a number, 0 or more"),
        ("break-even --prefill-rate 0", "it is '0'; it must be above 0"),
        ("break-even --fixed-ms -1", "it is '-1'; it must be a number, 0 or more"),
        ("bench --num-prompts 1000000000000", "1000000000000 prompts of 128 + 64 tokens take"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_exit_code_2(
    arguments: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n  \n"))
    try:
        code = main(arguments.split())
    except SystemExit as exit:  # argparse
        code = exit.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert words in captured.err and "Traceback" not in captured.err


def test_a_long_refused_prompt_is_not_printed_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("word " * 200_000 + "\nhi\n"))
    assert main(["generate", *SMALL, *SAMPLING]) == 1
    captured = capsys.readouterr()
    assert "maximum context length" in captured.out and len(captured.out) < 2000
    monkeypatch.setattr("sys.stdin", io.StringIO("word " * 200_000))
    assert main(["generate", *SMALL, *SAMPLING]) == 2
    assert "word " * 50 not in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_space)
    target = tmp_path / "timeline.jsonl"
    assert main(["generate", "x", "--timeline", str(target), *SMALL, *SAMPLING]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_bench_writes_a_trace_that_a_profiler_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of so many tokens is not computed by calls that hold a whole layer, nor, if MKL is as
    fast, by products of our own: a trace shows what PyTorch does."""
    monkeypatch.setattr(native, "has_narrow_mkl", lambda: False)
    trace = tmp_path / "trace.json"
    words = ["bench", "--num-prompts", "2", "--input-len", "140", "--output-len", "3"]
    assert main([*words, "--profile", str(trace), *SMALL]) == 0
    assert "output tokens/s" in capsys.readouterr().out
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    products = [e for e in events if e.get("name") in ("aten::mm", "aten::linear", "aten::addmm")]
    assert products and all(event["dur"] >= 0 for event in products)


@pytest.mark.parametrize("name", ["", "nowhere/trace.json"])
def test_a_trace_that_cannot_be_written_is_refused(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["bench", "--num-prompts", "2", "--input-len", "8", "--output-len", "2"]
    assert main([*words, "--profile", str(tmp_path / name), *SMALL]) != 0
    assert "name a file in a folder that exists" in capsys.readouterr().err


def test_options_that_take_several_values() -> None:
    """Each of the kind that its field holds."""
    sites = build_parser().parse_args(["serve", "--allowed-media-domains", "127.0.0.1", "a.org"])
    assert sites.allowed_media_domains == ["127.0.0.1", "a.org"]
    named = build_parser().parse_args(["serve", "--logits-processors", "a:B", "c:D"])
    assert named.logits_processors == ["a:B", "c:D"]


def test_short_names_of_parallel_sizes() -> None:
    args = build_parser().parse_args(["serve", "storyteller", "-tp", "2", "-pp=3", "-dp", "4"])
    options = engine_options_of(args)
    sizes = [options[f"{kind}_parallel_size"] for kind in ("tensor", "pipeline", "data")]
    assert sizes == [2, 3, 4]


def test_a_command_that_was_written_for_vllm() -> None:
    """What changes nothing is taken and dropped; underscores and vLLM's other names are known."""
    words = "serve --trust-remote-code storyteller --swap-space 4 --disable-log-requests --nnodes 1"
    words += " --no-enable-log-requests --max_num_seqs=4 --num-gpu-blocks-override 64"
    words += " --ignore-patterns a b --scheduling-policy priority --no-enable-auto-tool-choice"
    words += " --chat-template-content-format auto"
    words += " --runner generate --max-logprobs 20 --enable-sleep-mode"
    parser = build_parser()
    args = parser.parse_args(without_defaults(with_dashes(words.split()), parser))
    assert (args.model, args.max_num_seqs, args.num_gpu_blocks) == ("storyteller", 4, 64)
    assert args.policy == "priority"
    assert with_dashes(["generate", "--", "--a_b"]) == ["generate", "--", "--a_b"]
    given = {"max_num_seqs": 4, "num_gpu_blocks": 64, "policy": "priority", "max_logprobs": 20}
    given |= {"runner": "generate"}
    assert engine_options_of(args) == given and not hasattr(args, "no_effect")


def test_the_server_starts_by_its_module_as_many_guides_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "mini_vllm.entrypoints.openai.api_server"
    monkeypatch.setattr(sys, "argv", [module, "--model", "nothing-of-the-kind", "--port", "99999"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(module, run_name="__main__")
    assert "mini_vllm serve: --port is 99999" in capsys.readouterr().err


@pytest.mark.parametrize("words", ELSEWHERE)
def test_a_command_of_vllms_is_refused_by_its_name(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words.split(), "--model", "storyteller"])
    assert f"{words} is vLLM's, and not supported: {ELSEWHERE[words]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (
            "--all2all-backend=pplx",
            "is vLLM's, and not supported: rows are sent with torch.distributed",
        ),
        ("--api-server-count=2", "--api-server-count is vLLM's, and not supported: one front end"),
        ("--max-lora-rangs", "--max-lora-rangs; did you mean --max-lora-rank?"),
        ("--max-modle-len=8", "--max-modle-len=8; did you mean --max-model-len?"),
        ("--zzz", "unrecognized arguments: --zzz\n"),
        ("--data-parallel-size-local", "is vLLM's, and not supported: replicas are made by"),
        ("--weight-transfer-config", "is vLLM's, and not supported: make a new engine"),
        ("--scheduler-cls", "use --scheduler path/to/file.py:ClassName"),
        ("-O3", "-O3 is vLLM's, and not supported: use compile_model=True"),
        ("--moe-backend=triton", "is vLLM's, and not supported: there is one product of experts"),
        ("--logprobs-mode=raw_logits", "logprobs_mode is 'raw_logits'; it must be 'raw_logprobs'"),
        ("--task=generate", "--task is vLLM's, and not supported: use runner='pooling', with"),
        (
            "--guided-decoding-backend",
            'use --structured-outputs-config \'{"backend": "xgrammar"}\'',
        ),
        ("--disable-frontend-multiprocessing", "the engine has a process of its own; leave it out"),
        ("--max-seq-len=5", "--max-seq-len was vLLM's: use --max-model-len"),
        ("--speculative-model=m", "was vLLM's: use --speculative-config '{\"method\":"),
    ],
)
def test_an_option_of_vllms_is_refused_by_its_name(
    option: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["info", option])
    assert says in capsys.readouterr().err


def _unknown(*words: str) -> list[str]:
    """What `serve` does not know of a command line; its model is taken as such."""
    parser = build_parser("serve")
    line = ["serve", "--port", "0", *words, "storyteller-draft"]
    args, unknown = parser.parse_known_args(without_defaults(line, parser))
    assert args.model == "storyteller-draft"
    return unknown


@pytest.mark.parametrize("name", DEFAULTS)
def test_vllms_default_of_an_option_that_is_not_here_changes_nothing(name: str) -> None:
    option = "--" + name.replace("_", "-")
    for value in DEFAULTS[name]:
        assert _unknown(*([option] if value is True else [option, str(value)])) == []
        assert value is True or _unknown(f"{option}={value}") == []


@pytest.mark.parametrize("words", [
    "--no-enable-log-outputs", "--no-tokens-only", "--log-config-file None", "--kernel-config {}",
    "--moe-backend auto", "--node-rank 0", "-O2", "-dcp 1", "--no-headless", "--ssl-ciphers=None",
])  # fmt: skip
def test_what_asks_for_nothing_changes_nothing(words: str) -> None:
    assert _unknown(*words.split()) == []


@pytest.mark.parametrize("words", [
    "--enable-log-outputs", "--no-enable-log-deltas", "--dp-supervisor-probe-interval-s=4",
    "--moe-backend=triton", "-O3", "--nnodes=2", "--headless", "--disable-fastapi-docs",
])  # fmt: skip
def test_what_asks_for_something_is_left_to_be_refused(words: str) -> None:
    assert _unknown(words) == [words]
    assert "is vLLM's, and not supported: " in complaint([words])


@pytest.mark.parametrize("command", ["serve", "chat", "info"])
def test_two_models_are_one_too_many(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "storyteller-draft", "--model", "/elsewhere"])
    says = "MODEL is 'storyteller-draft' and --model is '/elsewhere'; give one of the two"
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--limit-mm-per-prompt image=2",
            """'image=2' is not JSON: .*write it like '{"image": 2}'""",
        ),
        ("--limit-mm-per-prompt a:1,b=x", """write it like '{"a": 1, "b": "x"}'"""),
        ("--hf-overrides {", """'{' is not JSON: .*write it like '{"key": "value"}'"""),
        ("--speculative-config ngram", """'ngram' is not JSON: .*write it like '{"key":"""),
        ("--allowed-origins *", r"""'\*' is not JSON: .*write it like '\["\*"\]'"""),
        ("--profiler-config /tmp", "'/tmp' is not JSON: .*write it like"),
        ("--max-model-len 1.5K", "'1.5K' is not a whole number; write it like 4096, 4k for 4,000"),
        ("--max-num-seqs many", "'many' is not a whole number; write it like 4096"),
        ("--enable-chunked-prefill false", "a switch takes no value: write --NAME, or --no-NAME"),
        ("--uvicorn-log-level loud", "invalid choice: 'loud'"),
    ],
)
def test_a_value_that_cannot_be_read_is_named_with_one_that_can(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "storyteller", *words.split()])
    said = capsys.readouterr().err
    assert re.search(says.replace("{", r"\{"), said), said


def test_numbers_may_have_units_and_json_keys_dots_as_vllms_may() -> None:
    words = "serve m --max-model-len 1k --max-num-batched-tokens 2K --kv-cache-memory-bytes 1.5g"
    args = build_parser().parse_args(words.split())
    assert (args.max_model_len, args.max_num_batched_tokens) == (1000, 2048)
    assert args.kv_cache_memory_bytes == 1_500_000_000
    dotted = ["serve", "--a.method", "ngram", "--seed", "1", "--a.b.c-d=[1]", "--", "--x.y"]
    whole = ["serve", "--seed", "1", "--a", '{"method": "ngram", "b": {"c_d": [1]}}']
    assert join_dotted(dotted) == [*whole, "--", "--x.y"]
    words = "serve m -q fp8 --speculative-config.method ngram"
    words += " --speculative-config.num-speculative-tokens 3"
    args = build_parser().parse_args(join_dotted(words.split()))
    assert args.quantization == "fp8"
    assert args.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}
