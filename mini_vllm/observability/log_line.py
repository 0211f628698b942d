"""How a service does, in one line of the log.

Source: vllm/v1/metrics/loggers.py#L99-L265 (LoggingStatLogger) @ v0.22.1
"""

from __future__ import annotations

import logging
import time

from mini_vllm.core.scheduler_output import SchedulerStats
from mini_vllm.observability.metrics import IterationStats
from mini_vllm.observability.several import together

logger = logging.getLogger(__name__)


class LogLine:
    """A recorder that keeps what happened since it was asked last."""

    def __init__(self) -> None:
        self.latest = {0: SchedulerStats(0, 0, 0.0, 0, 0)}
        """Of each engine, by its number."""
        self._start_anew()

    def _start_anew(self) -> None:
        self.since = time.monotonic()
        self.num_prompt_tokens = self.num_generation_tokens = 0

    def record(self, stats: SchedulerStats | None, iteration: IterationStats) -> None:
        if stats is not None:
            self.latest[stats.engine] = stats
        self.num_prompt_tokens += iteration.num_prompt_tokens
        self.num_generation_tokens += iteration.num_generation_tokens

    def text(self) -> str:
        """Tokens a second since the last line, and the gauges of the last step."""
        seconds = max(time.monotonic() - self.since, 1e-9)
        now = together(list(self.latest.values()))
        rate = now.prefix_cache_hits / max(now.prefix_cache_queries, 1)
        return (
            f"prompt throughput {self.num_prompt_tokens / seconds:.1f} tokens/s, "
            f"generation throughput {self.num_generation_tokens / seconds:.1f} tokens/s, "
            f"running {now.num_running_reqs}, waiting {now.num_waiting_reqs}, "
            f"KV cache usage {now.kv_cache_usage:.1%}, prefix cache hit rate {rate:.1%}"
        )

    def log(self) -> None:
        logger.info(self.text())
        self._start_anew()
