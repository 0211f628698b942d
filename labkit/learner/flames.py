"""`make profile`: where a run's time goes, as one page with two flame graphs.

The host's graph is of Python functions: a timer of the system looks at the stack every few
milliseconds of processor time, so hot functions are seen often and nothing is slowed down much. The
device's graph is of torch's profiler: operations, and below them the kernels of a GPU. On a CPU the
device is the CPU, and the operations are its work.

    python -m labkit.learner.flames page.html      profiles the engine with what is in place
    ... page.html --script FILE                    profiles a script: the report of a hunt, say

`--save FOLDER` keeps the figures, too: the host's stacks, and one step for
:func:`mini_vllm.observability.bottleneck.classify_step`. Phase 19 holds such a recording.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from html import escape
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from labkit.course.files import write_text
from mini_vllm.observability.bottleneck import Stacks, which_to_mend

INTERVAL = 0.002
"""Seconds of processor time between two looks at the stack."""
DEEPEST = 60
PROMPTS = ("Once upon a time", "The little fox", "In the winter", "A story about a bear")
ENGINE = str(Path(__file__).parents[2])
NARROWEST = 0.002
"""Share of a graph's width below which a frame is left out."""
COUNTER = "labkit/inside/cost.py:"
"""Frames of what counts operations: time in them belongs to what is counted."""
ENOUGH = 1.0
"""Seconds of processor time for which a run is looked at: up to 500 looks."""


# ---------------------------------------------------------------- looking


@contextmanager
def sampled(found: Counter[tuple[str, ...]]) -> Iterator[None]:
    """Add up the stacks of what runs inside, in seconds of processor time.

    Raises:
        ValueError: outside of the main thread, which alone hears the timer.
    """

    last, is_looking = time.process_time(), False

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last, is_looking
        if is_looking:
            return  # it rang while the stack was read: that time is the profiler's
        is_looking = True
        # A system may ring at its own ticks only, which lie further apart than INTERVAL.
        now = time.process_time()
        found[stack_of(frame)] += now - last  # type: ignore[assignment]
        last, is_looking = time.process_time(), False

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def seen_enough(run: Callable[[], object]) -> Counter[tuple[str, ...]]:
    """The stacks of a run, in seconds: it runs again and again until enough was seen."""
    found: Counter[tuple[str, ...]] = Counter()
    end = time.process_time() + ENOUGH
    with sampled(found):  # one timer for all runs: a single one may be over before it rings
        while time.process_time() < end:
            run()
    return found


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """The functions of a stack, the outermost first, as `file.py:function`."""
    names: list[str] = []
    while frame is not None and len(names) < DEEPEST:
        names.append(name_of(frame))
        frame = frame.f_back
    return tuple(reversed(names))


def name_of(frame: FrameType) -> str:
    """`file.py:function`. The `__init__` that a dataclass makes has no file and says that it was
    made in one; it is named by its class."""
    code = frame.f_code
    if code.co_filename == "<string>" and code.co_name == "__init__":
        made = type(frame.f_locals.get(code.co_varnames[0]))
        file = getattr(sys.modules.get(made.__module__), "__file__", None) or made.__module__
        return f"{place(file)}:{made.__qualname__}.__init__"
    return f"{place(code.co_filename)}:{code.co_qualname}"


@cache
def place(file: str) -> str:
    """A file of this repository by its path in it, of a package by its path in that, others by
    their last two names."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    if file.startswith(ENGINE):
        return file[len(ENGINE) + 1 :]
    return "/".join(parts[-2:])


def device_stacks(events: Sequence[Any]) -> dict[tuple[str, ...], float]:
    """Seconds by stack of what torch's profiler has recorded: operations with time of their own,
    and under each the kernels that it started."""
    found: Counter[tuple[str, ...]] = Counter()
    has_kernels = any(getattr(event, "kernels", ()) for event in events)
    for event in events:
        names: list[str] = [event.name]
        parent = event.cpu_parent
        while parent is not None and len(names) < DEEPEST:
            names.append(parent.name)
            parent = parent.cpu_parent
        stack = tuple(reversed(names))
        if kernels := getattr(event, "kernels", ()):
            for kernel in kernels:
                found[(*stack, kernel.name)] += kernel.duration / 1e6
        elif not has_kernels:
            found[stack] += event.self_cpu_time_total / 1e6  # type: ignore[assignment]
    return dict(found)


def profile_engine(tokens: int) -> tuple[Stacks, Stacks]:
    """The bundled model answers four prompts, for each graph anew: neither profiler sees the
    other."""
    from torch.profiler import profile

    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller", num_gpu_blocks=512)
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)

    def run() -> None:
        llm.generate(list(PROMPTS), params, use_tqdm=False)

    run()  # compiles, and fills caches
    host = seen_enough(run)
    with profile() as recording:
        run()
    llm.shutdown()
    return dict(host), device_stacks(recording.events() or [])


def profile_script(file: Path) -> Counter[tuple[str, ...]]:
    """The host's stacks of a script, from the script's own first frame on.

    A first run is not looked at: it imports and compiles. Then it runs again and again until
    enough was seen. What it prints is left out.

    Raises:
        OSError: the script cannot be read. Whatever the script raises goes on, too.
    """
    path = str(file.resolve())

    def run() -> None:
        runpy.run_path(path, run_name="__main__")

    with redirect_stdout(StringIO()):
        run()
        found = seen_enough(run)
    return own_frames(found, f"{place(path)}:")


def own_frames(stacks: Stacks, script: str) -> Counter[tuple[str, ...]]:
    """Stacks from the script's first frame on, without the frames that count operations."""
    found: Counter[tuple[str, ...]] = Counter()
    for stack, seconds in stacks.items():
        begin = next((i for i, name in enumerate(stack) if name.startswith(script)), len(stack))
        if own := tuple(name for name in stack[begin:] if not name.startswith(COUNTER)):
            found[own] += seconds  # type: ignore[assignment]
    return found


# ---------------------------------------------------------------- the page


@dataclass
class Frame:
    """A function in a graph, with what it calls."""

    name: str
    seconds: float = 0.0
    calls: dict[str, Frame] = field(default_factory=dict)


def tree(stacks: Stacks) -> Frame:
    """Stacks laid over each other."""
    root = Frame("all")
    for stack, seconds in stacks.items():
        here = root
        here.seconds += seconds
        for name in stack:
            here = here.calls.setdefault(name, Frame(name))
            here.seconds += seconds
    return root


def boxes(root: Frame) -> Iterator[str]:
    """The graph's frames as HTML, each as wide as its share of the time and below its caller."""

    def draw(frame: Frame, left: float, depth: int) -> Iterator[str]:
        share = frame.seconds / root.seconds
        if share < NARROWEST:
            return
        label = escape(frame.name)
        colour = 20 + sum(map(ord, frame.name)) % 40
        title = f"{label} {frame.seconds * 1e3:.1f} ms, {share:.1%}"
        yield (
            f'<i style="left:{100 * left:.3f}%;width:{100 * share:.3f}%;top:{18 * depth}px;'
            f'background:hsl({colour} 80% 75%)" title="{title}">{label.rpartition(":")[2]}</i>'
        )
        for called in sorted(frame.calls.values(), key=lambda one: -one.seconds):
            yield from draw(called, left, depth + 1)
            left += called.seconds / root.seconds

    yield from draw(root, 0.0, 0)


def depth_of(frame: Frame) -> int:
    """Rows that a graph needs."""
    return 1 + max((depth_of(one) for one in frame.calls.values()), default=0)


STYLE = """
body { font: 14px system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5em }
.graph { position: relative; overflow: hidden; border: 1px solid #ccc }
.graph i { position: absolute; height: 17px; overflow: hidden; font: 11px/17px monospace;
  white-space: nowrap; text-indent: 2px; border-right: 1px solid #fff; box-sizing: border-box }
table { border-collapse: collapse } td, th { text-align: left; padding: 2px 12px 2px 0 }
td:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums }
"""


def side(title: str, stacks: Stacks) -> str:
    """A graph, and below it the functions that are worth a look."""
    if not stacks:
        return f"<section><h2>{escape(title)}</h2><p>nothing was seen</p></section>"
    root = tree(stacks)
    rows = "".join(
        f"<tr><td>{escape(one.name)}</td><td>{one.own:.1%}</td><td>{one.whole:.1%}</td>"
        f"<td>{min(one.factor, 999):.2f}</td></tr>"
        for one in which_to_mend(stacks)[:12]
    )
    return (
        f"<section><h2>{escape(title)}: {root.seconds * 1e3:.0f} ms</h2>"
        f'<div class="graph" style="height:{18 * depth_of(root)}px">{"".join(boxes(root))}</div>'
        "<table><tr><th>most time of its own<th>own<th>with its calls<th>faster at most, if free"
        f"</tr>{rows}</table></section>"
    )


def page(title: str, host: Stacks, device: Stacks) -> str:
    """One HTML file that needs nothing else."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>"
        "<p>A frame is as wide as its share of the time, and stands below its caller; hold the "
        "pointer over one for its figures. The times are of two runs, each slowed down by its "
        "profiler: compare shares, not milliseconds. On a CPU torch sees its own operations; the "
        'engine\'s C++ functions stand on the left.</p><div class="two">'
        f"{side('Host: Python functions', host)}{side('Device: operations and kernels', device)}"
        "</div></html>\n"
    )


def main(
    argv: Sequence[str], profile: Callable[[int], tuple[Stacks, Stacks]] = profile_engine
) -> int:
    """Profile the engine and write the page."""
    parser = argparse.ArgumentParser(
        prog="labkit profile", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", type=Path, help="the page to write")
    parser.add_argument("--title", default="Where the time goes")
    parser.add_argument("--tokens", type=int, default=100, help="of each answer (100)")
    parser.add_argument("--save", type=Path, help="a folder for the figures as files")
    parser.add_argument("--script", type=Path, help="profile this one, the host's side alone")
    options = parser.parse_args(argv)
    if not hasattr(signal, "setitimer"):
        print(
            "profile needs a timer of the system, which Windows has not; use WSL", file=sys.stderr
        )
        return 2
    host, device = (
        (profile_script(options.script), {}) if options.script else profile(options.tokens)
    )
    write_text(options.out, page(options.title, host, device))
    for one in which_to_mend(host)[:5]:
        print(f"{one.own:>6.1%} own, {one.whole:>6.1%} with its calls   {one.name}")
    print(f"wrote {options.out}; open it in a browser")
    if options.save:
        from labkit.learner.step_profile import save_figures

        save_figures(options.save, host)
    if shutil.which("py-spy"):
        command = (
            f"py-spy record -o native.svg --native -- {sys.executable} -m labkit.learner.flames"
        )
        print(f"py-spy is installed; it sees C functions, too: {command} page.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
