"""A small course to read, with an upstream of its own: for the reader's tests."""

from __future__ import annotations

import textwrap
from pathlib import Path

from labkit.citations.symbols import Upstream
from labkit.course.manifest import Course
from labkit.course.root import PIN
from labkit.course.skeleton import skeleton

QUEUE = "vllm/v1/core/queue.py"
BLOB = f"https://github.com/vllm-project/vllm/blob/{PIN}/{QUEUE}"
UPSTREAM = (
    '"""A queue with <tags> & entities."""\n\n\n'
    "class Queue:\n"
    + "".join(
        f"    def step_{n}(self) -> int:\n"
        f'        """Step {n}."""\n'
        f"        return self.size + {n}\n\n"
        for n in range(60)
    )
    + "    async def close(self) -> None:\n        self.step_1()\n"
)
MODULE = '''
"""What the learner writes."""

from __future__ import annotations


class Queue:
    """First in, first out."""

    def push(self, item: int) -> int:
        """Append `item`."""
        return item + 1
'''
MANIFEST = """
slug = "03-queue"
title = "The <queue>"
question = "Who is next?"
status = "ready"
hours = 1.5
modules = ["toy.queue"]

[[exercises]]
id = "03.1"
title = "Push"
module = "toy.queue"
functions = ["Queue.push"]
points = 5
read = "02-mini-build.md#task-1-push"
"""


def line_of(needle: str) -> int:
    return UPSTREAM[: UPSTREAM.index(needle)].count("\n") + 1


def cite(symbol: str, first: int, last: int) -> str:
    return f"[`{symbol}`]({BLOB}#L{first}-L{last})"


STEP_3, STEP_40, CLOSE = line_of("def step_3("), line_of("def step_40("), line_of("async def close")
GUIDE = f"""
# The queue

Read {cite("Queue.step_3", STEP_3, STEP_3 + 2)} first, then [the dive](01-deep-dive.md#inside-it).

> **Invariants.** Nothing is lost.

> [!WARNING]
> Careful.

```mermaid
flowchart LR
  A[client] -->|push| B[(queue)]
  B --> A
```

```mermaid
gantt
  title Not drawn here
```

```python
x = "<not a tag>"
```

<details><summary>Answer</summary>

Forty-two.

</details>
"""
DIVE = f"""
# The dive

## Inside it

The body of {cite("Queue.step_40", STEP_40 + 2, STEP_40 + 2)}, and a use:
{cite("Queue.step_1", CLOSE + 1, CLOSE + 1)}. The class: {cite("Queue", 4, 9)}.

## Inside it

Again. See [the engine](../../toy/queue.py) and [vLLM](https://docs.vllm.ai/).

## Third

| a | b |
|---|---|
| {cite("Queue.close", CLOSE, CLOSE + 1)} | `snake_case_name` |
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return path


def make_reading_course(root: Path) -> Course:
    """A checkout with one phase, one note, and a fresh skeleton."""
    phase = root / "phases" / "03-queue"
    write(phase / "phase.toml", MANIFEST)
    write(phase / "hints.toml", '["03.1"]\nhints = ["a", "b", "c", "d"]\n')
    write(phase / "00-guide.md", GUIDE)
    write(phase / "01-deep-dive.md", DIVE)
    write(phase / "02-mini-build.md", "# Build\n\n## Task 1: push\n\nWrite `Queue.push`.\n")
    write(phase / "03-labs.md", "# Labs\n\nSee `01-deep-dive.md`, `upstream_notes/queue.md`.\n")
    write(root / "toy" / "queue.py", MODULE)
    note = f"# Queue\n\nSee {cite('Queue', 4, 9)} and [phase](../phases/03-queue/00-guide.md).\n"
    write(root / "upstream_notes" / "queue.md", note)
    course = Course(root)
    one = course.phase("03")
    write(one.lab_file("toy.queue"), skeleton(one, "toy.queue"))
    return course


def make_upstream(root: Path) -> Upstream:
    write(root / QUEUE, UPSTREAM)
    return Upstream(root)
