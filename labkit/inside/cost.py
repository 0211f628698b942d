"""What a call costs, in counted operations: the same on any machine, and in each run.

A docstring that promises a cost ("only used tokens are touched") is judged by these, in hidden and
in public tests. A test compares a call with the same call on larger inputs, or with a multiple of
what has to be read and written at the least; it never asks for the reference's number, since other
right ways count a little more or less.

    p = Program()                            # a public test calls `elements` itself
    top_p = p.name("mini_vllm.sample.logits_processors:apply_top_p")
    p.see(p.call("labkit.inside.cost:elements", top_p, logits, limits))
    assert subject.run(p)[0] < 4 * rows * vocabulary

Each function calls another one with what follows it, and returns a count in place of its result:
use `steps` for loops of Python, `elements` for tensors, `peak_bytes` for lists and NumPy's arrays,
`waits` for how often the host asks the device. What is counted is one thread's work, so a call that
starts another one raises RuntimeError.
"""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

FREE = ("empty", "new_empty", "set_", "_unsafe_view", "_reshape_alias")
"""How the names of operators begin that touch no element, besides views."""
POINTS_INTO = {
    "index",
    "index_put_",
    "_index_put_impl_",
    "index_select",
    "index_add_",
    "index_copy_",
    "index_fill_",
    "gather",
    "scatter_",
    "scatter_add_",
    "take",
    "embedding",
}
"""Operators that touch only a part of their first tensor."""
SORTS = {"sort", "argsort", "msort", "_unique2"}
"""Operators that touch each element once for every doubling of their length."""
ASKS = {
    *("item", "tolist", "cpu", "numpy", "nonzero"),
    *("__bool__", "__int__", "__float__", "__index__"),
}
"""Methods of a tensor whose answer the host needs before it can go on."""
FEW = 8
"""`topk` is a sort if it keeps more than one in so many."""


@contextmanager
def _alone() -> Iterator[None]:
    """
    Raises:
        RuntimeError: a thread was started meanwhile, whose work is not counted.
    """
    started: list[str] = []
    usual = threading.gettrace()
    threading.settrace(lambda frame, event, argument: started.append(event))  # in each new thread
    try:
        yield
    finally:
        threading.settrace(usual)  # type: ignore[arg-type]
    if started:
        raise RuntimeError("a thread was started, whose work is not counted; do it in this one")


def steps(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """Instructions of Python that a call runs, in whatever frames.

    Every turn of a loop counts, and every call of a C function as one, however long that works:
    hashing a long text costs no more than hashing a short one.

    Raises:
        RuntimeError: the function has called `sys.settrace`, so that nothing is counted.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    usual = sys.gettrace()
    with _alone():
        sys.settrace(trace)
        try:
            function(*args, **kwargs)
            is_on = sys.gettrace() == trace
        finally:
            sys.settrace(usual)
    if not is_on:
        raise RuntimeError("sys.settrace was called, so no step is counted; leave it alone")
    return count


def peak_bytes(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """The most memory of Python and NumPy that a call had in use at one time, beyond what there was
    before it. Copies of lists and arrays show here; a tensor's memory does not."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        function(*args, **kwargs)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def elements(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """Elements of tensors that a call reads or writes, summed over PyTorch's operators.

    An operator costs its largest tensor, argument or result. A view costs nothing; a gather, or an
    `index_put_`, costs what it moves, not the tensor that it points into. A sort of n elements
    costs n log2(n), while `topk` costs n if it keeps few.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    count = 0

    class Counter(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # else torch imports its compiler, which takes seconds

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal count
            results = func(*args, **(kwargs or {}))
            count += _touched(func, (*args, *(kwargs or {}).values()), results)
            return results

    with _alone(), Counter():
        function(*args, **kwargs)
    return count


def _touched(operator: Any, args: tuple[Any, ...], results: Any) -> int:
    """Elements that one call of an operator touches."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    name = operator.overloadpacket.__name__
    aliases = [value.alias_info for value in operator._schema.returns if value.alias_info]
    if name.startswith(FREE) or any(not alias.is_write for alias in aliases):
        return 0
    read = args[1:] if name in POINTS_INTO else args
    made = () if aliases else results  # what aliases an argument is that argument
    sizes = [leaf.numel() for leaf in tree_leaves((read, made)) if isinstance(leaf, Tensor)]
    touched = max(sizes, default=0)
    sorts = name in SORTS or (name == "topk" and args[1] * FEW > args[0].shape[-1:].numel())
    return touched * args[0].shape[-1:].numel().bit_length() if sorts else touched


def waits(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
    """How often a call needs a tensor's numbers on the host. On a GPU each of these waits until all
    that was launched before has run, and meanwhile nothing new is launched."""
    from torch.overrides import TorchFunctionMode

    count = 0

    class Counter(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal count
            count += getattr(func, "__name__", "") in ASKS
            return func(*args, **(kwargs or {}))

    with _alone(), Counter():
        function(*args, **kwargs)
    return count
