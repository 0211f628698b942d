"""What the engine says of itself on stderr: how a start goes, and what is odd.

As in vLLM, ``VLLM_LOGGING_LEVEL`` (default INFO; WARNING is quiet) says how much, and
``VLLM_CONFIGURE_LOGGING=0`` leaves all to the application. One that has a handler of its own at the
root logger gets the records there, and they are not written twice.

Source: vllm/logger.py#L218-L268 (_configure_vllm_root_logger) @ v0.22.1
"""

from __future__ import annotations

import logging
import os
import sys

FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what `sys.stderr` is at the time: a notebook or a test may have replaced it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(FORMAT, "%m-%d %H:%M:%S"))

    @property
    def stream(self) -> object:
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:
            super().emit(record)


def be_quiet() -> None:
    """For a command whose own output says enough: warnings only, unless a level was asked for."""
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        logging.getLogger("mini_vllm").setLevel(logging.WARNING)


def configure() -> None:
    """Have the package's loggers write to stderr; called once, when the package is imported.

    Raises:
        ValueError: for a level that there is not.
    """
    if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0":
        return
    level = os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper()
    if level not in LEVELS:
        raise ValueError(f"VLLM_LOGGING_LEVEL is {level!r}; it must be one of {', '.join(LEVELS)}")
    package = logging.getLogger("mini_vllm")
    package.setLevel(level)
    package.addHandler(_Stderr())
