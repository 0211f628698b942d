"""Run code that is not trusted on a stack of its own: a walk up its callers comes to an end
before the frames that know where answers are written, and under which name.

A thread has such a stack. It is started before the code is loaded, and is handed one call at a
time; what it sees of the others is nothing.
"""

from __future__ import annotations

import _thread
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any

FORBIDDEN = frozenset(
    {"gc.get_objects", "gc.get_referrers", "sys._current_frames", "sys._current_exceptions",
     "sys.monitoring.register_callback", "sys.addaudithook"}
)  # fmt: skip
"""Audit events of what finds the frames of another thread, or is called on its stack."""
ALL_THREADS = ("_settraceallthreads", "_setprofileallthreads")
"""Of `sys`, since Python 3.12: they trace this thread, too. To trace one's own is no harm."""
INTERPRETER = ("Py", "_Py")
"""How names of its own functions begin; some have another thread call something."""


def start() -> Callable[..., Any]:
    """A thread for calls; returns the function that has it do one and gives back its result.

    Garbage is looked for while a call runs, and not between calls: finalizers run on the stack of
    the call that finds it.
    """
    begin, rest = gc.enable, gc.disable
    rest()
    go, done = _thread.allocate_lock(), _thread.allocate_lock()
    go.acquire()
    done.acquire()
    desk: list[Any] = []

    def work() -> None:
        while True:
            go.acquire()
            function, arguments = desk.pop()
            try:
                desk.append(function(*arguments))
            finally:  # had it raised, the other side would wait for ever; so it finds no answer
                function = arguments = None
                done.release()

    def apart(function: Callable[..., Any], *arguments: Any) -> Any:
        """`function` must not raise."""
        desk.append((function, arguments))
        begin()
        go.release()
        done.acquire()
        rest()
        return desk.pop()

    _thread.start_new_thread(work, ())
    # A request to show the stack shall reach that thread: only the one that runs can walk its own
    # without finding frames half made.
    if hasattr(signal, "SIGUSR1"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    return apart


def hide() -> None:
    """In a sandbox, before the learner's code is loaded: an import of a module of labkit gives
    another copy than the one that runs, and no code may ask for all objects or frames."""
    forbidden, own, refusal = FORBIDDEN, INTERPRETER, RuntimeError

    def hook(event: str, told: Any) -> None:
        inside = event == "ctypes.dlsym" and f"{told[1]}".startswith(own)
        if event in forbidden or inside:
            raise refusal(f"{event} is not for code that is graded")

    for name in filter(vars(sys).__contains__, ALL_THREADS):
        delattr(sys, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "labkit"]:
        del sys.modules[name]
    sys.addaudithook(hook)
