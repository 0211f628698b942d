"""Show how much of the weights is loaded."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from mini_vllm.hub import in_units

logger = logging.getLogger(__name__)

PERCENT = 10
SECONDS = 2.0
"""A new line is logged after this much more is loaded, but not before this much time."""
LEAST_BYTES = 1 << 30
"""Less is loaded within seconds, and to watch every operation makes that longer."""


class CountCopies(TorchFunctionMode):
    """Reports the bytes that each `copy_` inside the `with` block writes.

    This works with every loader, also a learner's own: all call `parameter.copy_(tensor)`.
    """

    def __init__(self, copied: Any) -> None:
        super().__init__()
        self.copied = copied

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.copy_:
            self.copied(args[0].nbytes)
        return result


class Lines:
    """Progress as lines of the log, if stderr is a file. It has the interface of tqdm."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.said = total, 0, 0
        self.last = time.monotonic()

    def update(self, num_bytes: int) -> None:
        self.done += num_bytes
        percent = 100 * self.done // max(self.total, 1)
        now = time.monotonic()
        if percent >= self.said + PERCENT and now >= self.last + SECONDS:
            self.said, self.last = percent, now
            logger.info("weights: %d %% of %s", min(percent, 100), in_units(self.total))

    def close(self) -> None:
        """Nothing to do: a bar would end its line here."""


@contextmanager
def weights_progress(model: nn.Module, shown: bool) -> Iterator[None]:
    """Show a bar on a terminal, or lines elsewhere, while the `with` block fills the parameters."""
    if not (shown and logger.isEnabledFor(logging.INFO)):
        yield
        return
    started, total = time.monotonic(), sum(weight.nbytes for weight in model.parameters())
    if total < LEAST_BYTES:
        yield
    else:
        with _counted(total):
            yield
    logger.info("weights: %s loaded in %.1f s", in_units(total), time.monotonic() - started)


@contextmanager
def _counted(total: int) -> Iterator[None]:
    progress: Any = Lines(total)
    if sys.stderr.isatty():
        progress = tqdm(total=total, desc="weights", unit="B", unit_scale=True, leave=False)
    try:
        with CountCopies(progress.update):
            yield
    finally:
        progress.close()
