"""What ``LLM(disable_log_stats=False)`` counts: what a server would, under the same names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerStats
from mini_vllm.observability.log_line import LogLine
from mini_vllm.observability.metrics import PrometheusRecorder, RequestStats, ServiceStats
from mini_vllm.observability.reader import Metric, get_metrics_snapshot


class LogStats:
    """Figures of an engine in this process."""

    def __init__(self, config: EngineConfig) -> None:
        self.service = ServiceStats()
        self.recorder = PrometheusRecorder.of(config, str(config.model.model))
        self.line = LogLine()
        self.service.recorders += [self.recorder, self.line]

    def requests_added(self, requests: Sequence[EngineCoreRequest]) -> None:
        siblings: list[RequestStats] = []
        for request in requests:
            self.service.request_added(request, len(requests), siblings)

    def requests_forgotten(self, request_ids: Iterable[str]) -> None:
        """They were never queued after all."""
        for request_id in request_ids:
            self.service.requests.pop(request_id, None)

    def step_done(self, outputs: Iterable[EngineCoreOutput], stats: SchedulerStats) -> None:
        now = time.monotonic()
        for output in outputs:
            self.service.output_arrived(output, now)
        self.service.step_done(stats)

    def snapshot(self, stats: SchedulerStats) -> list[Metric]:
        """All figures, with the gauges of this moment."""
        self.service.step_done(stats)
        return get_metrics_snapshot(self.recorder.registry)
