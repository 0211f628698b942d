"""The child's side of `labkit.process.worker`: read a request, run its scenario, write the answer.

Answers go to a private copy of stdout; what the learner's code prints goes to stderr and cannot be
taken for an answer. What the learner wrote runs in another thread than this
(`labkit.inside.own_stack`) and gets one step at a time, so that no walk up its callers reaches the
pipe, the name of the request, or the steps that are still to come. In a sandbox this side is out of
`sys.modules`, too, and no code may ask for all objects or all frames.

All of that makes it harder, and not impossible, to write observations by other means than by being
observed: this is one process. Therefore the parent trusts none of it. Whatever runs here only gets
to choose its own observations, and no list that was written down before fits the next questions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from labkit.inside import own_stack, steps, unchanged

PROGRAM = "labkit.inside.basic:run_program"
WATCH = "labkit.inside.unchanged:watch"
REPLACED = "labkit.inside.unchanged:replaced"
"""Asked before a submission is imported, with the arguments of `unchanged.Watch`, and afterwards:
the first name that means something else by now."""
TYPE, TUPLE, TEXT, LENGTH = type, tuple, str, len
"""The builtins by names of our own: a learner's code may give theirs to something else."""
Call = Callable[..., tuple[str, Any]]
"""Calls a function on the learner's stack."""


def main() -> None:
    """Serve requests until stdin ends.

    Once the learner's code is loaded, this thread calls nothing that such code can replace: no
    function of a module that it can import, no builtin by its name, no method of its objects.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    do, read = own_stack.start(), json.JSONDecoder().scan_once  # type: ignore[attr-defined]
    watch = None
    for raw in requests:
        request, _ = read(raw.decode(), 0)
        if request["scenario"] == WATCH:
            watch = unchanged.Watch(**request["args"], folders=sys.path[:2])
        for kind, text in serve(request["scenario"], request["args"], do, watch):
            line = f'{{"id": "{request["id"]}", "{kind}": {text}}}'
            answers.write(line.replace("\n", " ").encode("ascii", "replace") + b"\n")
            answers.flush()


def serve(
    scenario: str, args: dict[str, Any], do: Call, watch: unchanged.Watch | None = None
) -> Iterator[tuple[str, str]]:
    """The answers to one request, as (kind, JSON): any number of items, then an end or an error."""
    if scenario == PROGRAM:
        if watch:
            watch.allow(args["steps"])
            do(steps.find_names, watch.names_in(args["steps"]))
        answer = run_program(args["steps"], do)
        if watch:
            do(watch.told)  # what is given back before it is asked for has been seen
        yield answer
        return
    if scenario == WATCH:
        yield "end", "null"
        return
    if scenario == REPLACED:
        yield exact(do(watch.told)) if watch else ("end", '""')
        return
    kind, text = exact(do(steps.begin, scenario, args))
    while kind == "item" or kind == "begun":
        if kind == "item":
            yield kind, text
        kind, text = exact(do(steps.advance))
    yield kind, text


def run_program(program: list[dict[str, Any]], do: Call) -> tuple[str, str]:
    """Do a program's steps, one after the other; its observations."""
    seen: list[str] = []
    first = True
    for step in program:
        kind, text = exact(do(steps.one_step, step, first))
        first = False
        if kind == "error":
            return kind, text
        if kind != "done":
            seen.append(text)
        if kind == "raised":
            break
    return "end", "[" + ",".join(seen) + "]"


def exact(answer: tuple[str, Any]) -> tuple[str, str]:
    """An answer as `steps` gives it. What else lies there has methods that must not run here.

    Raises:
        ConnectionError: something else lay there, and this process ends.
    """
    fits = TYPE(answer) is TUPLE and LENGTH(answer) == 2
    if fits and TYPE(answer[0]) is TEXT and TYPE(answer[1]) is TEXT:
        return answer
    raise ConnectionError("an answer that no step has given")


if __name__ == "__main__":
    main()
