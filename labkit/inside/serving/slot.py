"""What was said and is unread: outputs that merge, and the slot they wait in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from labkit.inside.serving.turns import SPINS, Stuck, named, run, turns


def make_output(said: dict[str, Any]) -> Any:
    """A RequestOutput from `{"parts": [...], "finished": ...}`; a part has the fields it names:
    index, text, ids, end, stop, logprob, and `logprobs` (one number a token)."""
    from mini_vllm.errors import RequestFailure
    from mini_vllm.outputs import CompletionOutput, Logprob, RequestOutput

    parts = []
    for part in said.get("parts", []):
        numbers = part.get("logprobs")
        ids = list(part.get("ids", []))
        entries = None if numbers is None else [{7: Logprob(number)} for number in numbers]
        parts.append(
            CompletionOutput(
                part.get("index", 0), part.get("text", ""), ids, part.get("logprob"), entries,
                part.get("end"), part.get("stop"),
            )
        )  # fmt: skip
    output = RequestOutput("r", None, [1, 2], outputs=parts, finished=said.get("finished", False))
    output.num_cached_tokens = said.get("cached", 0)
    output.error = said.get("error")
    output.failure = RequestFailure(said["failure"]) if "failure" in said else None
    output.kv_transfer_params, output.prompt_logprobs = said.get("kv"), said.get("prompt")
    return output


def tell_output(output: Any) -> dict[str, Any]:
    """What there is to see of a RequestOutput."""
    parts = []
    for part in output.outputs:
        numbers = part.logprobs
        # Logprobs of no token say no more than none: a merge of the two may keep either.
        numbers = [entry[7].logprob for entry in numbers] if numbers else None
        parts.append(
            {
                "index": part.index, "text": part.text, "ids": list(part.token_ids),
                "logprob": part.cumulative_logprob, "logprobs": numbers,
                "end": part.finish_reason, "stop": part.stop_reason,
            }
        )  # fmt: skip
    failure = {} if output.failure is None else {"failure": output.failure.message}
    return {
        "parts": parts, "finished": output.finished, "cached": output.num_cached_tokens,
        "error": output.error, "kv": output.kv_transfer_params, "prompt": output.prompt_logprobs,
        **failure,
    }  # fmt: skip


def merge(aggregate: bool, outputs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first output, after the others were added to it."""
    first, *later = map(make_output, outputs)
    for output in later:
        first.add(output, aggregate)
    return tell_output(first)


class Bell(asyncio.Event):
    """An event that notices when it is asked for ever and it is always set."""

    spins = 0

    async def wait(self) -> Any:
        self.spins = self.spins + 1 if self.is_set() else 0
        if self.spins > SPINS:
            raise Stuck("the reader asks again and again: the event is set and the slot is empty")
        return await super().wait()


def collect(kind: str, script: Sequence[Any]) -> list[Any]:
    """Do to a collector what a script says; what each step showed.

    Steps: `["put", output]`, `["fail", text]`, `["look"]` (take what is there), `["read"]` (wait
    for an output), `["begin"]` (begin to wait), `["end"]` (what came of that).
    """
    from mini_vllm.engine.collector import RequestOutputCollector
    from mini_vllm.sampling_params import RequestOutputKind

    async def go() -> list[Any]:
        collector = RequestOutputCollector(RequestOutputKind[kind])
        collector.ready = Bell()
        seen: list[Any] = []
        reader: Any = None
        for step in script:
            what = step[0]
            if what == "put":
                collector.put(make_output(step[1]))
            elif what == "fail":
                collector.put(ValueError(step[1]))
            elif what == "look":
                try:
                    found = collector.get_nowait()
                    seen.append(None if found is None else tell_output(found))
                except Exception as error:
                    seen.append(named(error))
            else:
                if what != "end":
                    reader = asyncio.ensure_future(collector.get())
                await turns(5)
                if what != "begin":
                    seen.append(await what_came(reader))
        return seen

    return list(run(go()))


async def what_came(task: asyncio.Future[Any]) -> Any:
    """The output that a reader got, its error, or that it still waits."""
    await turns(5)
    if not task.done():
        task.cancel()
        await turns(5)
        return "waits"
    try:
        return tell_output(task.result())
    except Exception as error:
        return named(error)
