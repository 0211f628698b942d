"""Runs tests and golden traces on vLLM's Python files, with some of them edited.

    python -m labkit.maintain.child < runs.json

Each line of standard input is one run, and is answered by one line. The packages that vLLM needs
are imported once; each run is a fork that imports vLLM anew, and each test is a fork of that. So no
test sees what another has done, and no edit is seen late. vLLM's compiled code is not needed.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.inside.timeouts import Patience

QUIET = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",  # it warns that its compiled code is not there
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS; nothing of its libraries runs in a fork
}
NEEDED = (
    "torch", "transformers", "pydantic", "openai", "openai_harmony", "fastapi", "aiohttp",
    "xgrammar", "llguidance", "outlines_core", "PIL.Image", "msgspec", "zmq", "numpy", "cbor2",
    "blake3", "regex", "einops", "networkx", "requests", "psutil", "partial_json_parser",
    "prometheus_client", "torch._inductor.compile_fx", "torch._inductor.select_algorithm",
    "transformers.modeling_utils", "transformers.models.auto.configuration_auto",
)  # fmt: skip
TEST_SECONDS = 60
Outcome = dict[str, Any]


class Edited(importlib.machinery.SourceFileLoader):
    """Compiles its file each time: a .pyc may be older than an edit of the same second."""

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Finder(MetaPathFinder):
    """Finds edited files of a tree in the place of its own.

    Args:
        tree: the folder that holds vllm/.
        edits: path below it -> the file that stands in for it.
    """

    def __init__(self, tree: Path, edits: Mapping[str, str]) -> None:
        self.tree, self.edits = tree, edits

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        stem = fullname.replace(".", "/")
        for name, package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if name in self.edits:
                file = self.edits[name]
                return importlib.util.spec_from_file_location(
                    fullname,
                    file,
                    loader=Edited(fullname, file),
                    submodule_search_locations=[str(self.tree / stem)] if package else None,
                )
        return None


def main() -> None:
    """Answer the runs of standard input until it ends."""
    replies = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        os.environ.update(QUIET)
        for name in NEEDED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        for text in sys.stdin:
            print(json.dumps(forked(carry_out, json.loads(text), 600)), file=replies, flush=True)


def carry_out(run: Mapping[str, Any]) -> list[Outcome]:
    """One run: some functions of a file, or golden traces, on the tree with its edits.

    `run` has "tree" and "edits"; and "file" with "calls" ([name, seed or None] each; None: all
    functions that are called test_...), or "traces" ([kind, seed] each).
    """
    tree = Path(run["tree"])
    sys.dont_write_bytecode = False  # of the tree's own files: half of the time of their import
    sys.path.insert(0, str(tree))
    sys.meta_path.insert(0, Finder(tree, run["edits"]))
    if "traces" in run:
        return forked(lockstep, run["traces"], 300)
    try:
        module = load(Path(run["file"]))
    except Exception as error:
        return [{"name": "import", "passed": False, "said": said(error, run["file"])}]
    calls = run["calls"]
    if calls is None:
        calls = [[name, None] for name in vars(module) if name.startswith("test_")]
    return [
        forked(lambda one: call(module, *one), [name, seed], TEST_SECONDS) for name, seed in calls
    ]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        path.stem, path, loader=Edited(path.stem, str(path))
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module: ModuleType, name: str, seed: int | None) -> Outcome:
    """Call one function; with a seed it is given a random generator."""
    arguments = () if seed is None else (random.Random(seed),)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(module, name)(*arguments)
    except Exception as error:
        return {"name": name, "passed": False, "said": said(error, str(module.__file__))}
    return {"name": name, "passed": True, "said": ""}


def said(error: BaseException, file: str) -> str:
    """The error, and the line of the test at which it came."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f"{Path(file).name}:{lines[-1]}: " if lines else ""
    kind = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
    return f"{where}{kind}{error}".strip().rstrip(":")


def lockstep(traces: Sequence[Sequence[Any]]) -> list[Outcome]:
    """Replay golden traces on vLLM's scheduler; it must decide as recorded."""
    from labkit.trace import golden
    from labkit.trace.diff import first_difference, render
    from labkit.trace.vllm_oracle import answer

    outcomes = []
    for kind, number in traces:
        recorded = golden.load(kind)[number]
        found = json.loads(json.dumps(answer(json.dumps(recorded.trace.to_dict()))))
        lines = found["lines"] + ([{"error": found["error"]}] if "error" in found else [])
        difference = first_difference(lines, recorded.lines)
        text = render(difference, "yours", "vLLM") if difference else ""
        name = f"{kind}-{number}"
        outcomes.append({"name": name, "passed": not difference, "said": text})
    return outcomes


def forked(function: Callable[[Any], Any], argument: Any, seconds: int) -> Any:
    """What a function answers in a fork of this process; a fork that dies or does not end is a test
    that fails."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        signal.setitimer(signal.ITIMER_PROF, 2 * seconds)  # should its parent be ended
        try:
            data = json.dumps(function(argument)).encode()
        except BaseException as error:
            traceback.print_exc()
            data = json.dumps(ended(argument, f"{type(error).__name__}: {error}")).encode()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(write)
    patience = Patience(seconds, pid)
    ready: list[int] = []
    while not ready and patience.left > 0:
        with patience.turn() as most:
            ready, _, _ = select.select([read], [], [], most)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read() if ready else b""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if data:
        return json.loads(data)
    late = patience.left <= 0 or code == -signal.SIGPROF
    text = f"no end within {patience.told()}" if late else f"the process died ({code})"
    return ended(argument, text)


def ended(argument: Any, text: str) -> Any:
    """The outcome of a fork that gave no answer: of one test, or of a whole run."""
    if isinstance(argument, list) and argument and isinstance(argument[0], str):
        return {"name": argument[0], "passed": False, "said": text}
    return [{"name": "run", "passed": False, "said": text}]


if __name__ == "__main__":
    main()
