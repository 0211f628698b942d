"""Code that Python accepts and that is hardly ever meant, told beside a test that has failed."""

from __future__ import annotations

import textwrap

import pytest

from labkit.course import source
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.judge.slips import Slip, of_function

HOLE = "TODO 00.1: write f in labs/00-toy/fifo.py (phase 00, A toy)"
FIRST_ROUND = "`return` in line 4 ends the loop of line 2 in its first round"


def found_in(text: str, name: str) -> list[Slip]:
    text = textwrap.dedent(text).strip()
    return of_function(text, name, source.functions(text)[name].node)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("for x in xs:\n    mine += [x]\n    return mine", FIRST_ROUND),
        ("for x in xs:\n    return [x]", ""),
        ("for x in xs:\n    mine += [x]\n    return mine\nraise IndexError", ""),
        ("for x in xs:\n    if x:\n        continue\n    return [x]", ""),
        ("for x in xs:\n    if x:\n        return [x]", ""),
        ("return xs\nprint(xs)", "line 3 is never reached: it stands behind the `return` of line"),
        (f"return []\nraise NotImplementedError('{HOLE}')", ""),
        ("n = 0\nn =+ 1\nreturn [n]", "line 3 sets n anew; `n += …` adds to it"),
        ("mine = +mine\nreturn mine", ""),  # of a Counter: those above zero
        ("xs[1:]", "line 2 computes a value that nothing keeps: is a `return` meant?"),
        ("xs == []\nreturn xs", "line 2 compares and drops the answer"),
        ("xs.reverse\nreturn xs", "names `reverse` and does not call it: are its `()` missing?"),
        ("ValueError('no')\nreturn xs", "makes a `ValueError` and does not raise it"),
        ("return ValueError('no')", "returns `ValueError`: is a `raise` meant?"),
        ("t.contiguous()\nreturn xs", "`contiguous` in line 2 returns a changed copy"),
        ("xs.append(1)\nreturn xs", "line 2 changes `xs`, which is the caller's"),
        ("ys = xs\nys += [1]\nreturn ys", "line 3 changes `xs`, which is the caller's"),
        ("ys = list(xs)\nys += [1]\nreturn ys", ""),
        ("xs = list(xs)\nxs[0] = 1\nreturn xs", ""),
        ("mine.append(1)\nreturn mine", ""),
        ("return [2 ^ xs[0]]", "`2 ^ xs[0]` in line 2 is an exclusive or; a power is written"),
        ("return [xs[0] ^ xs[1], 2**3]", ""),
        ("t = t / 2\nreturn xs", "line 2 gives the name `t` to something that nothing reads"),
        ("for x in mine:\n    x = 2 * x\nreturn mine", "gives the name `x` to something"),
        ("for x in mine:\n    t = t + x\nreturn mine", ""),
        ("n = 0\nfor x in mine:\n    if n:\n        return xs\n    n = 1\nreturn mine", ""),
        ("unused = 1\nreturn xs", ""),
    ],
)
def test_a_slip_is_named_with_its_line(body: str, said: str) -> None:
    text = "def f(xs: Sequence[int], t: Tensor, mine: list[int]) -> list[int]:\n"
    slips = found_in(text + textwrap.indent(body, "    "), "f")
    assert [said in slip.said for slip in slips] == ([True] if said else []), slips


@pytest.mark.parametrize(
    ("body", "is_slip"),
    [
        ("t /= 2\nreturn t", True),
        ("t[0] = 1\nreturn t", True),
        ("t.add_(1)\nreturn t", True),
        ("t = t.clone()\nt[0] = 1\nreturn t", False),
        ("return t.sort()", False),
    ],
)
def test_a_tensor_is_the_callers_where_another_is_returned(body: str, is_slip: bool) -> None:
    head = "def f(t: Tensor) -> {}:\n"
    inside = textwrap.indent(body, "    ")
    assert bool(found_in(head.format("Tensor") + inside, "f")) == is_slip
    assert not found_in(head.format("None") + inside, "f"), "it is there to be changed"


@pytest.mark.parametrize("called", ["torch.sum", "sum", "np.sqrt", "math.exp"])
def test_a_kernel_knows_what_triton_has(called: str) -> None:
    text = f"def k(x_ptr):\n    x = tl.load(x_ptr)\n    tl.store(x_ptr, {called}(x))\n"
    (slip,) = found_in(f"@triton.jit\n{text}", "k")
    assert f"line 4 calls `{called}`, which no kernel knows" in slip.said
    assert not found_in(text, "k"), "outside of a kernel it is right"


QUEUE = """
class Queue:
    def __init__(self) -> None:
        self.items: deque[int] = deque()

    def keep(self, gone: set[int]) -> None:
        self.items = {}
"""


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("[i for i in self.items if i not in gone]", "list"),
        ("sorted(self.items)", "list"),
        ("deque(i for i in self.items if i not in gone)", ""),
        ("self.without(gone)", ""),
    ],
)
def test_an_attribute_of_another_type_is_reported_where_it_is_set(made: str, kind: str) -> None:
    """The next method fails with "'list' object has no attribute 'popleft'", in a sound line."""
    slips = found_in(QUEUE.format(made), "Queue.keep")
    said = f"line 6 makes a {kind} of `self.items`, which is a deque in `__init__`"
    assert [said in slip.said and slip.elsewhere for slip in slips] == ([True] if kind else [])


def test_no_right_solution_has_a_slip() -> None:
    """Neither the engine nor the other right solutions of the corpus."""
    for phase in Course(ROOT).ready:
        files = [phase.reference_file(module) for module in phase.modules]
        files += (ROOT / "tests/corpora/alternatives" / phase.slug).rglob("*.py")
        for file in files:
            text = file.read_text(encoding="utf-8")
            for name, function in source.functions(text).items():
                if any(name in phase.holes(module) for module in phase.modules):
                    assert of_function(text, name, function.node) == [], (file, name)
