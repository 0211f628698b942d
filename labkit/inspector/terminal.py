"""The same grid in the terminal: a window of steps around one of them, a letter a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from labkit.inspector.packing import difference_of
from labkit.inspector.pool import EVICT, HIT, NEW, RELEASE, PoolHistory, build_pool
from labkit.inspector.recording import Run
from labkit.inspector.rows import Row, Rows, build_rows

SHOWN = {
    "p": ("P", "bold blue"), "r": ("R", "bold yellow"), "d": ("d", "green"), "s": ("-", "green"),
    "w": ("·", "dim"), "q": (":", "yellow"), "o": ("o", "magenta"), "a": ("x", "bold"),
    ".": (" ", ""),
}  # fmt: skip
LEGEND = (
    "P prefill  R computes again  d decode  0-9 decode, drafts accepted  - no tokens  "
    "· waiting  : waiting again  ▼ preempted  ■ finished  x aborted"
)
BARS = " ▁▂▃▄▅▆▇█"
GUTTER = 14


def show(runs: Sequence[Run], step: int | None = None, console: Console | None = None) -> None:
    """Print the runs, one below the other; by default the first difference, else the beginning."""
    console = console or Console(highlight=False)
    found = difference_of(*runs) if len(runs) == 2 else None
    if step is None and found:
        step = found.step
    for run in runs:
        _show_run(console, run, step)
    if found:
        said = f"First difference: step {found.step}, {', '.join(found.fields)}"
        console.print(said, style="bold")
    elif len(runs) == 2:
        console.print(f"No difference: {len(runs[0].lines)} steps.")
    console.print(Text(LEGEND, style="dim"))


def _show_run(console: Console, run: Run, step: int | None) -> None:
    rows = build_rows(run)
    pool = build_pool(run, rows)
    width = max(console.width - GUTTER, 10)
    at = min(step or 0, rows.steps - 1)
    first = max(0, min(at - width // 2, rows.steps - width)) if step is not None else 0
    window = range(first, min(first + width, rows.steps))
    title = f"{run.name}: steps {window[0]} to {window[-1]} of {rows.steps}"
    console.print(Text(title, style="bold"))
    grid = [_cursor(at, window), _budget(run, window), *_grid(rows, window)]
    for line in [*grid, _fill(run, pool, window)]:
        console.print(line, no_wrap=True, crop=True)
    console.print(Text(_sentence(run, rows, at)))
    console.print(Text(_blocks(run, pool, at)))
    if images := _images(run, at):
        console.print(Text(images))
    if run.error:
        console.print(Text(f"The run ended after step {rows.steps - 1}: {run.error}", style="red"))
    console.print()


def _cursor(at: int, window: range) -> Text:
    """The scale of steps: a number every ten, and a mark above the one that is described below."""
    cells = [" "] * len(window)
    for index, step in enumerate(window):
        label = str(step)
        if step % 10 == 0 and index + len(label) <= len(cells):
            cells[index : index + len(label)] = label
    text = Text(f"{'step':>{GUTTER - 2}}  ", style="dim") + Text("".join(cells), style="dim")
    text.stylize("bold reverse", GUTTER + at - window[0], GUTTER + at - window[0] + 1)
    return text


def _budget(run: Run, window: range) -> Text:
    used = [sum(run.lines[step]["scheduled"].values()) for step in window]
    limit = run.config.get("max_num_batched_tokens") or max(used)
    return _bars(f"of {limit} tokens", used, limit, "blue")


def _fill(run: Run, pool: PoolHistory, window: range) -> Text:
    size = pool.size - 1
    used = [size - run.lines[step]["free_blocks"] for step in window]
    return _bars(f"of {size} blocks", used, size, "cyan")


def _bars(name: str, values: Sequence[int], most: int, style: str) -> Text:
    """One character a value; whatever is not zero shows."""
    heights = [min(math.ceil(8 * value / max(most, 1)), 8) for value in values]
    return Text(f"{name[: GUTTER - 2]:>{GUTTER - 2}}  ", style="dim") + Text(
        "".join(BARS[max(height, 0)] for height in heights), style=style
    )


def _grid(rows: Rows, window: range) -> Iterator[Text]:
    """The requests that are there in the window."""
    for row in rows.rows:
        if row.first <= window[-1] and row.first + len(row.letters) > window[0]:
            name = row.id if len(row.id) <= GUTTER - 2 else "…" + row.id[-(GUTTER - 3) :]
            text = Text(f"{name:>{GUTTER - 2}}  ")
            for step in window:
                text.append(*_cell(row, step))
            yield text


def _cell(row: Row, step: int) -> tuple[str, str]:
    if step in row.preempted:
        return "▼", "bold red"
    last = step == row.first + len(row.letters) - 1
    letter = row.letter_at(step)
    if last and row.end is not None and letter != "a":
        return "■", SHOWN[letter][1]
    if step in row.drafts:
        return str(min(row.drafts[step][1], 9)), SHOWN[letter][1]
    return SHOWN[letter]


def _sentence(run: Run, rows: Rows, step: int) -> str:
    """The described step in words."""
    line = run.lines[step]
    parts = [_said(row, letter, tokens, step) for row, letter, tokens in rows.scheduled(step)]
    parts += [f"{request_id} preempted" for request_id in line["preempted"]]
    parts += [f"{entry[0]} finished ({entry[2]})" for entry in line["finished"]]
    total = sum(line["scheduled"].values())
    unit = "token" if total == 1 else "tokens"
    waiting = f"; waiting: {', '.join(line['waiting'])}" if line["waiting"] else ""
    return f"step {step}: {total} {unit}: {', '.join(parts) or 'nothing'}{waiting}"


def _said(row: Row, letter: str, tokens: int, step: int) -> str:
    before = row.before[step - row.first]
    verb = {"p": "prefill", "r": "again", "d": "decode"}[letter]
    drafts, accepted = row.drafts.get(step, (0, 0))
    after = max(before, 0) + tokens - (drafts - accepted)
    judged = f", {accepted} of {drafts} drafts accepted" if drafts else ""
    return f"{row.id} {verb} {tokens} ({'?' if before < 0 else before}→{after}{judged})"


def _images(run: Run, step: int) -> str:
    """What the encoder did in the described step; empty if nothing."""
    line = run.lines[step]
    said = [
        f"{request_id} encodes image {', '.join(map(str, places))}"
        for request_id, places in line.get("encode", {}).items()
    ]
    if forgotten := line.get("forgotten"):
        said.append(f"{len(forgotten)} let go by its cache")
    return f"encoder: {'; '.join(said)}" if said else ""


def _blocks(run: Run, pool: PoolHistory, step: int) -> str:
    """What happened to the blocks in the described step."""
    if pool.lost_at is not None and step >= pool.lost_at:
        return f"blocks: not determined by the recording; free: {run.lines[step]['free_blocks']}"
    names = {
        NEW: "given out",
        EVICT: "given out (evicts)",
        HIT: "found in the cache",
        RELEASE: "let go",
    }
    said = []
    for what, name in names.items():
        blocks = [block for letter, block, _ in pool.steps[step] if letter == what]
        if blocks:
            said.append(f"{name} {', '.join(map(str, blocks))}")
    return f"blocks: {'; '.join(said) or 'no change'}; free: {run.lines[step]['free_blocks']}"
