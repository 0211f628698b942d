"""The load generator: arrivals, what counts as a token and as a failure, goodput."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.entrypoints import bench_plots, bench_serve, bench_words
from mini_vllm.entrypoints import load as load_module
from mini_vllm.entrypoints.bench_serve import Load, run_load
from mini_vllm.entrypoints.bench_target import draft_figures
from mini_vllm.entrypoints.load import (
    RequestResult,
    StreamReader,
    arrival_times,
    goodput,
    ramp_up_times,
    summarize,
)


@pytest.mark.parametrize(("burstiness", "slack"), [(0.25, 0.042), (1.0, 0.03), (4.0, 0.03)])
def test_gaps_have_the_mean_and_the_spread_that_were_asked_for(
    burstiness: float, slack: float
) -> None:
    times = arrival_times(10_000, 5.0, burstiness, np.random.default_rng(0))
    gaps = np.diff([0.0, *times])
    assert times[-1] == pytest.approx(10_000 / 5.0)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=2 * slack)
    assert times == sorted(times)


def test_a_metronome_and_a_burst() -> None:
    rng = np.random.default_rng(0)
    assert arrival_times(4, 2.0, math.inf, rng) == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert arrival_times(3, math.inf, 1.0, rng) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("strategy", "rates"), [("linear", [2.0, 5.0, 8.0]), ("exponential", [2.0, 4.0, 8.0])]
)
def test_a_rate_that_grows(strategy: str, rates: list[float]) -> None:
    """By equal steps, or by equal factors, a request; a metronome shows the gaps as they are."""
    rng = np.random.default_rng(0)
    times, found = ramp_up_times(3, strategy, 2, 8, math.inf, rng)
    assert found == pytest.approx(rates)
    assert times == pytest.approx(np.cumsum([1 / rate for rate in rates]))
    many, _ = ramp_up_times(20_000, strategy, 5, 5, 4.0, rng)
    gaps = np.diff([0.0, *many])
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("bounds", [("linear", 0, 4), ("linear", 4, 2), ("steps", 1, 2)])
def test_what_is_no_ramp(bounds: tuple[str, float, float]) -> None:
    with pytest.raises(ValueError, match="ramp-up from"):
        ramp_up_times(3, *bounds, 1.0, np.random.default_rng(0))


def events(*bodies: object, done: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_bytes_may_be_cut_anywhere(size: int) -> None:
    result = RequestResult(3)
    reader = StreamReader(result)
    data = events(chunk("a"), chunk("é\n\n"), USAGE)
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size], now=1.0 + start)
    reader.end()
    assert result.success and result.text == "aé\n\n" and result.output_tokens == 5
    assert len(result.itl) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_other_servers_write_events_their_way(size: int) -> None:
    """Two characters end a line, nothing stands behind a colon, or a comment is sent."""
    result = RequestResult(3)
    reader = StreamReader(result)
    data = events(chunk("a"), {"error": None, **chunk("b")}, USAGE)
    data = b": ping\n\n" + data.replace(b"data: ", b"event: x\ndata:")
    data = data.replace(b"\n", b"\r\n")
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size], now=1.0 + start)
    reader.end()
    assert result.success and (result.text, result.output_tokens) == ("ab", 5)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (events(chunk("a"), done=False), "without [DONE]"),
        (events(chunk("a"), {"error": {"message": "no"}}), "no"),
        (events(chunk("a"), {"error": "overloaded"}), "overloaded"),
        (events(USAGE), "no token"),
    ],
)
def test_what_is_a_failure(data: bytes, part: str) -> None:
    result = RequestResult(3)
    reader = StreamReader(result)
    reader.feed(data, 1.0)
    reader.end()
    assert not result.success and part in result.error


def test_goodput_asks_for_all_objectives() -> None:
    fast = RequestResult(1, ttft=0.1, latency=0.2, output_tokens=11)
    slow = RequestResult(1, ttft=0.1, latency=2.1, output_tokens=11)
    one = RequestResult(1, ttft=0.1, latency=0.1, output_tokens=1)
    slos = {"ttft": 150.0, "tpot": 100.0}
    assert goodput([fast, slow, one], slos, duration=2.0) == 1.0


def test_failures_are_in_no_percentile() -> None:
    good = RequestResult(2, ttft=0.5, latency=1.0, output_tokens=3, itl=[0.25, 0.25])
    bad = RequestResult(2, error="500")
    figures = summarize([good, bad], 2.0, [99.0], {})
    assert (figures["completed"], figures["failed"]) == (1, 1)
    assert figures["median_ttft_ms"] == figures["p99_ttft_ms"] == 500.0
    assert figures["mean_tpot_ms"] == 250.0 and figures["request_goodput"] is None


class Clock:
    """A clock that stands still until a test sets it forward, and counts how often it is read."""

    now, looks = 0.0, 0

    def perf_counter(self) -> float:
        self.looks += 1
        return self.now

    async def until_seen(self, write: Callable[[], None], seconds: float) -> None:
        """After so many seconds write something, and let it be read in the same moment."""
        self.now += seconds
        looks = self.looks
        write()
        while self.looks == looks:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("most", [0, 1000], ids=["read at once", "read afterwards"])
def test_tokens_come_from_usage_and_times_from_chunks(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A server of known timing: the first chunk after 100 ms, then two tokens every 20 ms."""
    clock = Clock()
    monkeypatch.setattr(load_module, "time", clock)
    monkeypatch.setattr(bench_serve, "READ_AFTERWARDS", most)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        for text, seconds in [("a", 0.1), *[("bc", 0.02)] * 10]:
            event = events(chunk(text), done=False)
            await clock.until_seen(partial(writer.write, event), seconds)
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 21}}
        writer.write(events(usage))
        await writer.drain()
        writer.close()

    async def go() -> RequestResult:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            load = Load(f"http://127.0.0.1:{port}/v1/completions", [{"prompt": [1]}], [1])
            (result,), _ = await run_load(load)
        return result

    result = asyncio.run(go())
    assert result.success and not result.pieces, result.error
    figures = summarize([result], 1.0, [99.0], {})
    assert figures["mean_ttft_ms"] == pytest.approx(100)
    assert figures["mean_tpot_ms"] == pytest.approx(10), "two tokens a chunk: half of their gap"
    assert figures["median_itl_ms"] == pytest.approx(20)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_serve.add_bench_serve_options(parser)
    return parser.parse_args(["--model", "m", "--num-prompts", "2", *words])


def make_load(args: argparse.Namespace) -> tuple[Load, str]:
    return bench_serve._make_load(args, bench_serve._target(args))


def test_vllms_options_go_into_every_request() -> None:
    words = ["--top-p", "0.5", "--top-k", "3", "--served-model-name", "other", "--tokenizer", "x"]
    args = options(*words)
    load, model = make_load(args)
    assert model == "other" and len(load.bodies) == 2
    for body in load.bodies:
        assert (body["model"], body["top_p"], body["top_k"]) == ("other", 0.5, 3)
        assert "min_p" not in body and "temperature" not in body


def test_only_the_metrics_asked_for_are_shown() -> None:
    shown = bench_words.metrics(options("--percentile-metrics", "ttft,e2el").percentile_metrics)
    figures: dict[str, Any] = dict.fromkeys(
        ("completed", "failed", "duration", "request_throughput", "output_throughput",
         "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"), 1,
    )  # fmt: skip
    figures["request_goodput"] = None
    for name in shown:
        figures |= {f"{kind}_{name}_ms": 1.0 for kind in ("mean", "median", "p99")}
    text = bench_serve.report(figures, [99.0], shown)
    assert "TTFT" in text and "E2EL" in text and "TPOT" not in text
    with pytest.raises(ValueError, match="--percentile-metrics has 'speed'"):
        bench_words.metrics("ttft,speed")


def test_results_are_appended_and_labelled(tmp_path: Path) -> None:
    args = options("--result-dir", str(tmp_path), "--result-filename", "r", "--append-result")
    for number in range(2):
        bench_serve._save(args, tmp_path / "r", {"number": number})
    assert (tmp_path / "r").read_text() == '{"number": 0}\n{"number": 1}\n'
    with pytest.raises(ValueError, match="--metadata has 'x'; it must be KEY=VALUE"):
        make_load(options("--metadata", "x"))


UPSTREAM = """
append-result asr-max-audio-len-sec asr-min-audio-len-sec backend base-url blazedit-max-distance
blazedit-min-distance burstiness custom-output-len dataset-name dataset-path disable-shuffle
disable-tqdm enable-multimodal-chat endpoint extra-body frequency-penalty goodput header hf-name
hf-output-len hf-split hf-subset host ignore-eos input-len insecure label logprobs lora-assignment
lora-modules max-concurrency metadata metric-percentiles min-p model no-oversample no-reranker
no-stream num-prompts num-warmups output-len percentile-metrics plot-dataset-stats plot-timeline
port prefix-repetition-num-prefixes prefix-repetition-output-len prefix-repetition-prefix-len
prefix-repetition-suffix-len presence-penalty profile ramp-up-end-rps ramp-up-start-rps
ramp-up-strategy random-batch-size random-input-len random-mm-base-items-per-request
random-mm-bucket-config random-mm-limit-mm-per-prompt random-mm-num-mm-items-range-ratio
random-output-len random-prefix-len random-range-ratio ready-check-timeout-sec repetition-penalty
request-id-prefix request-rate result-dir result-filename save-detailed save-result seed
served-model-name sharegpt-output-len skip-chat-template skip-tokenizer-init sonnet-input-len
sonnet-output-len sonnet-prefix-len spec-bench-category spec-bench-output-len speed-bench-category
speed-bench-dataset-subset speed-bench-output-len temperature timeline-itl-thresholds tokenizer
tokenizer-mode top-k top-p trust-remote-code use-beam-search
"""
"""Options of `vllm bench serve` at the pin: benchmarks/serve.py and benchmarks/datasets."""


def test_every_option_of_vllm_is_known() -> None:
    """It does what it says, is dropped with a reason, or is refused by its name."""
    parser = argparse.ArgumentParser()
    bench_serve.add_bench_serve_options(parser)
    known = {word for action in parser._actions for word in action.option_strings}
    assert not {f"--{name}" for name in UPSTREAM.split()} - known


def test_refusals_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        (["--no-stream"], "--no-stream is not supported; "),
        (["--sonnet-input-len", "3"], "--sonnet-input-len is not supported; "),
        (["--use-beam-search"], "--use-beam-search is not supported; "),
        (["--dataset-name", "sonnet"], "'sonnet' is not supported; it must be one of random,"),
        (["--extra-body", "[1]"], "'[1]' is no JSON object, such as '{\"min_p\": 0.1}'"),
    ):
        with pytest.raises(SystemExit):
            options(*words)
        assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--goodput", "ttft:soon"], ["--goodput", "tft:100"], ["--goodput", "ttft"],
        ["--goodput", "ttft:nan"], ["--metric-percentiles", "99,101"],
        ["--metric-percentiles", "most"], ["--max-concurrency", "0"], ["--num-warmups", "-1"],
        ["--vocab-size", "0"], ["--input-len", "0"], ["--random-output-len", "-1"],
        ["--seed", "-1"], ["--base-url", "127.0.0.1:8000"], ["--plot", "picture.xyz"],
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_before_anything_is_sent(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_serve, "drive", lambda load: pytest.fail("it was sent"))
    with pytest.raises(ValueError, match=f"^{words[0]} (has|is) "):
        bench_serve.run_bench_serve(options(*words))


def test_a_file_that_cannot_be_written_is_known_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found out when all had been measured."""
    monkeypatch.setattr(bench_serve, "drive", lambda load: pytest.fail("it was sent"))
    taken = tmp_path / "file"
    taken.write_text("mine")
    for words in (
        ["--plot", str(taken / "p.png")],
        ["--save-result", "--result-dir", str(taken)],
        ["--append-result", "--result-filename", str(tmp_path)],
    ):
        with pytest.raises(ValueError, match=r"(could not|cannot) be written"):
            bench_serve.run_bench_serve(options(*words))
    assert taken.read_text() == "mine"


def test_where_the_server_is() -> None:
    for words, want in (
        (["--host", "::1"], "http://[::1]:8000"),
        (["--base-url", "https://a/b/"], "https://a/b"),
    ):
        assert bench_serve._base_url(options(*words)) == want


def test_a_server_that_refuses_is_not_called_silent() -> None:
    class Locked(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401, "no key")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        args = options("--ready-check-timeout-sec", "60", "--port", str(server.server_port))
        args.model = None
        with pytest.raises(
            ValueError, match="/v1/models answers 401 no key; set OPENAI_API_KEY"
        ) as error:
            make_load(args)
        assert "is it running" not in str(error.value)
        server.shutdown()


def test_a_chat_of_random_tokens_is_as_long_as_it_was_asked_to_be() -> None:
    """In a server that reads two tokens for each that was drawn; without one, words are sent."""

    class Tokenizer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/tokenize":
                answer: dict[str, Any] = {"tokens": [7] * 2 * len(asked["prompt"])}
            else:
                answer = {"prompt": "x" * len(asked["tokens"])}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    words = ["--backend", "openai-chat", "--random-input-len", "5", "--port"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Tokenizer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load, _ = make_load(options(*words, str(server.server_port)))
        server.shutdown()
    assert [body["messages"][0]["content"] for body in load.bodies] == ["xxxxx"] * 2
    load, _ = make_load(options(*words, str(server.server_port)))  # which is gone
    assert load.bodies[0]["messages"][0]["content"].startswith("word")


def test_vllms_name_of_the_backend() -> None:
    load, _ = make_load(options("--backend", "vllm", "--logprobs", "2"))
    assert load.url.endswith("/v1/completions")
    assert load.bodies[0]["logprobs"] == 2 and isinstance(load.bodies[0]["prompt"], list)


def test_adapters_take_turns() -> None:
    words = ["--num-prompts", "5", "--lora-modules", "a", "b"]
    load, model = make_load(options(*words, "--lora-assignment", "round-robin"))
    assert [body["model"] for body in load.bodies] == ["a", "b", "a", "b", "a"]
    assert model == "m"
    load, _ = make_load(options(*words, "--num-prompts", "64"))
    assert {body["model"] for body in load.bodies} == {"a", "b"}


def test_a_ramp_up_is_written_down() -> None:
    words = ["--num-prompts", "9", "--burstiness", "inf"]
    ramp = ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "2", "--ramp-up-end-rps", "4"]
    args = options(*words, *ramp)
    load, _ = make_load(args)
    assert load.rates is not None and (load.rates[0], load.rates[-1]) == (2.0, 4.0)
    figures = bench_serve._ramp_up(args, load, datetime.datetime(2026, 1, 1))
    assert [event["rps"] for event in figures["rps_change_events"]] == [2, 3, 4]
    name = bench_serve._result_path(args, {"request_rate": "inf", "model_id": "a/m", "date": "d"})
    assert str(name) == "openai-ramp-up-linear-2qps-4qps-m-d.json"
    for less in (ramp[:2], ramp[2:], [*ramp, "--request-rate", "3"]):
        with pytest.raises(ValueError, match=r"--ramp-up-strategy|--request-rate is fixed"):
            make_load(options(*words, *less))


def test_prompts_share_prefixes() -> None:
    words = ["--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2"]
    words += ["--prefix-repetition-prefix-len", "8", "--prefix-repetition-suffix-len", "3"]
    load, _ = make_load(options(*words, "--num-prompts", "7", "--output-len", "5"))
    prompts = [tuple(body["prompt"]) for body in load.bodies]
    assert len(set(prompts)) == 6 and len({prompt[:8] for prompt in prompts}) == 2
    assert load.prompt_lens == [11] * 6 and {body["max_tokens"] for body in load.bodies} == {5}
    load, _ = make_load(options("--random-prefix-len", "4", "--input-len", "6"))
    assert len({tuple(body["prompt"][:4]) for body in load.bodies}) == 1
    assert load.prompt_lens == [10, 10]


def test_prompts_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "One", "output_tokens": 3}\n\n{"prompt": "Two"}\n')
    words = ["--dataset-name", "custom", "--dataset-path", str(file), "--disable-shuffle"]
    load, _ = make_load(options(*words, "--num-prompts", "3", "--logprobs", "2"))
    assert [body["prompt"] for body in load.bodies] == ["One", "Two", "One"]
    assert {body["max_tokens"] for body in load.bodies} == {256}
    assert {body["logprobs"] for body in load.bodies} == {2} and "ignore_eos" not in load.bodies[0]
    load, _ = make_load(options(*words, "--num-prompts", "3", "--no-oversample"))
    assert len(load.bodies) == 2
    with pytest.raises(ValueError, match=r"p\.jsonl:3 is not"):
        make_load(options(*words, "--custom-output-len", "-1"))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"p\.jsonl is no UTF-8 text"):
        make_load(options(*words))


def talk(prompt: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]
    return {"id": prompt, "conversations": turns}


def test_conversations_from_a_file(tmp_path: Path) -> None:
    """Those that upstream's rules leave out are left out; lengths are those of the tokenizer."""
    five, file = "One two three four five.", tmp_path / "talks.json"
    alone = {"conversations": [{"value": five}]}
    talks = [talk("No", five), talk(five, "No"), talk(five * 400, five), {"items": []}, alone]
    file.write_text(json.dumps([*talks, talk(five, five), talk(five + " Six.", five)]))
    words = ["--dataset-name", "sharegpt", "--dataset-path", str(file), "--num-prompts", "3"]
    words += ["--tokenizer", "storyteller"]
    load, _ = make_load(options(*words, "--disable-shuffle"))
    prompts = [body["prompt"] for body in load.bodies]
    assert prompts[:2] == [five, five + " Six."] and len(prompts) == 3 and prompts[2] in prompts[:2]
    count = load.prompt_lens[0]
    assert 4 <= count < load.prompt_lens[1] and {b["max_tokens"] for b in load.bodies} == {count}
    assert "ignore_eos" not in load.bodies[0]
    load, _ = make_load(options(*words, "--sharegpt-output-len", "2", "--no-oversample"))
    assert {b["max_tokens"] for b in load.bodies} == {2}, (
        "a length that is given is never too short"
    )
    assert len(load.bodies) == 3, "so the short answer counts, too"


def test_what_is_no_conversation(tmp_path: Path) -> None:
    file = tmp_path / "talks.json"
    words = ["--dataset-name", "sharegpt", "--tokenizer", "storyteller"]
    with pytest.raises(ValueError, match="--dataset-name sharegpt reads a file"):
        make_load(options(*words))
    words += ["--dataset-path", str(file)]
    for text in ("{", "3", '["conversations"]', '[{"conversations": [{}, {}]}]'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"talks\.json is not in ShareGPT's format"):
            make_load(options(*words))
    file.write_text(json.dumps([talk("No", "No")]))
    with pytest.raises(ValueError, match="no conversation that fits: prompt and answer of at"):
        make_load(options(*words))
    file.write_text(json.dumps([talk("One two three four", "One two three four")]))
    with pytest.raises(ValueError, match="conversations are counted in tokens: model 'none' is"):
        make_load(options(*words, "--tokenizer", "none"))


def counters(drafts: int, tokens: int, accepted: int, first: int, second: int) -> str:
    lines = [f'vllm:spec_decode_num_drafts_total{{engine="{e}"}} {drafts / 2}' for e in range(2)]
    lines += [f"vllm:spec_decode_num_draft_tokens_total {tokens}"]
    lines += [f"vllm:spec_decode_num_accepted_tokens_total {accepted}"]
    per_pos = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    for position, count in enumerate((first, second)):
        lines += [f'{per_pos}{{position="{position}"}} {count}', f"{per_pos[:-6]}_created 1e9"]
    return "\n".join(lines) + "\n"


def test_how_well_drafts_were_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    target = bench_serve._target(options())
    answers = [counters(10, 20, 5, 4, 1), counters(20, 40, 20, 14, 6), "no metrics {", ""]
    monkeypatch.setattr(target, "ask", lambda path: answers.pop(0).encode())
    before, after, odd, none = (target.draft_counts() for _ in range(4))
    assert draft_figures(before, after) == {
        "spec_decode_acceptance_rate": 75.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 10,
        "spec_decode_draft_tokens": 20,
        "spec_decode_accepted_tokens": 15,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.5],
    }
    assert draft_figures(before, before) == draft_figures(odd, none) == {}


def test_lengths_spread_apart() -> None:
    spread = '{"input": 0.5, "output": 0}'
    words = ["--num-prompts", "50", "--input-len", "100", "--output-len", "7"]
    load, _ = make_load(options(*words, "--random-range-ratio", spread))
    assert min(load.prompt_lens) < 70 and max(load.prompt_lens) > 130
    assert {body["max_tokens"] for body in load.bodies} == {7}
    for wrong in ("1", "-0.1", '{"input": 0.5}', "wide"):
        with pytest.raises(ValueError, match="--random-range-ratio is"):
            make_load(options("--random-range-ratio", wrong))


def test_pictures_of_a_run(tmp_path: Path) -> None:
    good = RequestResult(
        4, start_time=5.0, ttft=0.5, latency=0.62, output_tokens=3, itl=[0.01, 0.1]
    )
    page = tmp_path / "t.html"
    bench_plots.write_timeline([good, RequestResult(4, error="500")], (0.025, 0.05), page)
    text = page.read_text()
    assert text.count("<rect") == 3 and "request 0: 4 + 3 tokens; gap 100.0 ms" in text
    colors = [text.count(f'fill="{color}"') for color in bench_plots.COLORS]
    assert colors == [1, 1, 0, 1]
    bench_plots.plot_dataset([good], tmp_path / "d.png")
    bench_plots.plot_latencies([good], tmp_path / "l.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("d.png", "l.png"))
    with pytest.raises(ValueError, match="--timeline-itl-thresholds is '50,25'"):
        bench_words.thresholds("50,25")


def test_the_fullest_second() -> None:
    early = RequestResult(1, start_time=3.0, ttft=0.2, latency=0.4, itl=[0.1, 0.1])
    late = RequestResult(1, start_time=3.9, ttft=0.2, latency=1.3, itl=[1.1])
    figures = summarize([early, late], 2.0, [99.0], {})
    assert figures["max_output_tokens_per_s"] == 3.0 and figures["max_concurrent_requests"] == 2
