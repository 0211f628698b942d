"""Which known mistake a learner has probably made."""

from __future__ import annotations

from labkit.judge.mistakes import deed_of
from labkit.judge.public import Test as Judged


def fault(message: str, error: str = "KernelFault") -> Judged:
    return Judged("n", "n", "n", "07.4", "failed", detail={"error": error, "message": message})


def test_a_kernel_that_reads_too_far_is_not_one_that_writes_too_far() -> None:
    """Numbers and lines are the learner's; what was done to which tensor is the mistake's."""
    reads = "norm: program (2, 0, 0) reads 1 element behind the end of x (3, 80)"
    more = "norm: program (0, 1) reads 48 elements behind the end of x (5, 96) (and 47 more)"
    writes = "norm: program (2, 0, 0) writes 1 element behind the end of output (3, 80)"
    assert deed_of(fault(reads)) == "norm: program reads behind the end of x"
    assert deed_of(fault(f"{more}\n  fused.py:41: x = tl.load(x_at)")) == deed_of(fault(reads))
    assert deed_of(fault(writes)) != deed_of(fault(reads))
    assert deed_of(fault("x is 3", "ValueError")) == ""
