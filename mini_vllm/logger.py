"""The engine's log on stderr: the progress of a start, and warnings.

As in vLLM, ``VLLM_LOGGING_LEVEL`` (default INFO; WARNING for warnings only) sets the level, and
``VLLM_CONFIGURE_LOGGING=0`` leaves logging to the application. If the root logger has a handler,
records go only there.

Source: vllm/logger.py#L218-L268 (_configure_vllm_root_logger) @ v0.22.1
"""

from __future__ import annotations

import logging
import os
import sys

FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current `sys.stderr`, which a notebook or a test may have replaced."""

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
    """Log warnings only, unless a level is set. For commands with their own output."""
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        logging.getLogger("mini_vllm").setLevel(logging.WARNING)


def configure() -> None:
    """Let the package's loggers write to stderr. Called once, when the package is imported.

    Raises:
        ValueError: for an unknown level.
    """
    if os.environ.get("VLLM_CONFIGURE_LOGGING", "1") == "0":
        return
    level = os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper()
    if level not in LEVELS:
        raise ValueError(f"VLLM_LOGGING_LEVEL is {level!r}; it must be one of {', '.join(LEVELS)}")
    package = logging.getLogger("mini_vllm")
    package.setLevel(level)
    package.addHandler(_Stderr())
