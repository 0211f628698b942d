"""Who is let in, what is counted, what a load is, and what a streamed call adds up to."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from labkit.inside.serving.turns import named


def admit(
    unfinished: Sequence[int], max_reqs: int | None, max_tokens: int | None, asked: Sequence[Any]
) -> list[str]:
    """What is said to requests `[how many, tokens]`, while prompts of these sizes are there; a
    third entry says which sizes are there afterwards."""
    from mini_vllm.engine.admission import Admission

    known = {str(i): SimpleNamespace(num_prompt_tokens=size) for i, size in enumerate(unfinished)}
    admission, answers = Admission(known, max_reqs, max_tokens), []
    for count, tokens, *later in asked:
        try:
            admission.check(count, tokens)
            answers.append("in")
        except Exception as error:
            answers.append(named(error))
        for sizes in later:
            known.clear()
            known |= {str(i): SimpleNamespace(num_prompt_tokens=n) for i, n in enumerate(sizes)}
    return answers


def life(outputs: Sequence[dict[str, Any]], reason: str | None, ends: float) -> dict[str, Any]:
    """What iteration statistics make of one request that arrived at 100.0 with 7 prompt tokens.

    An output has `tokens`, `stamp` (the engine's clock), `now` (ours), and may have `times`
    (queued, scheduled) and `preempted`.
    """
    from mini_vllm.core.scheduler_output import EngineCoreOutput, RequestTimes
    from mini_vllm.observability.metrics import IterationStats, RequestStats

    request, steps = RequestStats(100.0, 7, 1, 16), []
    for said in outputs:
        iteration = IterationStats()
        times = said.get("times")
        output = EngineCoreOutput(
            "r", [5] * said["tokens"], num_preemptions=said.get("preempted", 0),
            times=None if times is None else RequestTimes(*times),
        )  # fmt: skip
        iteration.update_from_output(output, request, said["stamp"], said["now"])
        steps.append(
            {
                "prompt": iteration.num_prompt_tokens, "tokens": iteration.num_generation_tokens,
                "preempted": iteration.num_preempted, "ttfts": rounded(iteration.ttfts),
                "itls": rounded(iteration.itls),
            }
        )  # fmt: skip
    if reason is None:
        return {"steps": steps}
    last = IterationStats()
    last.update_from_finished(request, reason, ends)
    (done,) = last.finished
    names = ("e2e_latency", "queued_time", "prefill_time", "decode_time", "inference_time")
    times_seen = {name: rounded([getattr(done, name)])[0] for name in names}
    times_seen["tpot"] = rounded([done.mean_time_per_output_token])[0]
    return {"steps": steps, "reason": done.finish_reason, **times_seen}


def rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 6) for value in values]


def parse_pieces(pieces: Sequence[str]) -> dict[str, Any]:
    """What a streamed answer's deltas add up to, in which order each call's parts came, and how
    much of the content (`late`) came only when nothing more could come."""
    from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser

    parser = HermesToolParser()
    content, deltas = "", []
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        news = parser.extract_streaming(piece)
        deltas.append(sorted(news))
        content += news.get("content", "")
        for change in news.get("tool_calls", []):
            call = calls.setdefault(change["index"], {"names": [], "arguments": "", "ids": 0})
            function = change["function"]
            if "name" in function:
                call["names"].append(function["name"])
                call["ids"] += 1 if str(change.get("id", "")).startswith("chatcmpl-tool-") else 0
            elif not call["names"]:
                call["names"].append("arguments before a name")
            call["arguments"] += function.get("arguments", "")
    late = parser.finish().get("content", "")
    return {"content": content + late, "late": late, "calls": calls, "deltas": deltas}


def load_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """When the requests of a load are sent."""
    import numpy as np

    from mini_vllm.entrypoints.load import arrival_times

    times = arrival_times(count, rate, burstiness, np.random.default_rng(seed))
    return [float(time) for time in times]


def good(results: Sequence[Any], slos: dict[str, float], duration: float) -> float:
    """Goodput of requests `[ttft, latency, tokens]`."""
    from mini_vllm.entrypoints.load import RequestResult, goodput

    seen = [RequestResult(1, ttft=t, latency=e, output_tokens=n) for t, e, n in results]
    return round(goodput(seen, slos, duration), 9)
