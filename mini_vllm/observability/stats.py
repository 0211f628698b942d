"""Totals of a run, collected step by step, and the short report made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput, SchedulerStats
from mini_vllm.outputs import RequestOutput
from mini_vllm.spec_decode.metrics import SpecDecodingStats


@dataclass
class EngineStats:
    """Counters of one run.

    All times are in seconds, all sizes in tokens, requests or shares of the KV pool.
    """

    num_steps: int = 0
    seconds: float = 0.0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_failed: int = 0
    batch_sizes: list[int] = field(default_factory=list)
    kv_usages: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0
    spec_decode: SpecDecodingStats | None = None
    """None without speculation."""

    def record_step(
        self,
        plan: SchedulerOutput,
        outputs: list[EngineCoreOutput],
        seconds: float,
        stats: SchedulerStats,
    ) -> None:
        """An observer of the engine's steps."""
        self.num_steps += 1
        self.seconds += seconds
        self.num_computed_tokens += plan.total_num_scheduled_tokens
        self.num_output_tokens += sum(len(output.new_token_ids) for output in outputs)
        self.num_preemptions += len(plan.preempted_req_ids)
        self.batch_sizes.append(len(plan.num_scheduled_tokens))
        self.kv_usages.append(stats.kv_cache_usage)
        if self.spec_decode is not None:
            for counts in stats.drafts.values():
                self.spec_decode.observe_draft(*counts)
        self.prefix_queries, self.prefix_hits = stats.prefix_cache_queries, stats.prefix_cache_hits

    def record_request(self, output: RequestOutput) -> None:
        """Count a finished prompt."""
        self.num_finished += 1
        self.num_failed += output.error is not None
        if output.metrics is None:
            return
        if output.metrics.time_to_first_token is not None:
            self.ttft.append(output.metrics.time_to_first_token)
        tpot = output.metrics.time_per_output_token(len(output.outputs[0].token_ids))
        if tpot is not None:
            self.tpot.append(tpot)

    def summary(self) -> dict[str, float]:
        """The report's figures by name; times in seconds. What was not measured is absent."""
        if not self.num_steps:
            return {}
        figures: dict[str, float] = {
            "requests": self.num_finished,
            "failed": self.num_failed,
            "steps": self.num_steps,
            "seconds": self.seconds,
            "output_tokens": self.num_output_tokens,
            "output_tokens_per_s": self.num_output_tokens / self.seconds,
            "computed_tokens": self.num_computed_tokens,
            "computed_tokens_per_s": self.num_computed_tokens / self.seconds,
            "batch_mean": sum(self.batch_sizes) / self.num_steps,
            "batch_max": max(self.batch_sizes),
            "prefix_hit_rate": self.prefix_hits / self.prefix_queries
            if self.prefix_queries
            else 0.0,
            "preemptions": self.num_preemptions,
            "kv_usage_max": max(self.kv_usages),
        }
        if (drafts := self.spec_decode) is not None:
            figures |= {
                "drafts": drafts.num_drafts,
                "draft_tokens": drafts.num_draft_tokens,
                "accepted_tokens": drafts.num_accepted_tokens,
                "mean_acceptance_length": drafts.mean_acceptance_length,
            }
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot)):
            if values:
                p50, p95 = np.percentile(values, (50, 95)).tolist()
                figures |= {f"{name}_p50": p50, f"{name}_p95": p95}
        return figures

    def report(self) -> str:
        """A few lines for people."""
        f = self.summary()
        if not f:
            return "nothing has run yet"
        lines = [
            f"{f['requests']:.0f} requests in {f['seconds']:.2f} s, {f['steps']:.0f} steps"
            + (f", {f['failed']:.0f} failed" if f["failed"] else ""),
            f"output      {f['output_tokens']:.0f} tokens, {f['output_tokens_per_s']:.1f} tokens/s",
            f"computed    {f['computed_tokens']:.0f} tokens, "
            f"{f['computed_tokens_per_s']:.1f} tokens/s",
            f"batch       {f['batch_mean']:.1f} requests a step on average, "
            f"{f['batch_max']:.0f} at most",
        ]
        for name in ("ttft", "tpot"):
            if f"{name}_p50" in f:
                p50, p95 = f[f"{name}_p50"] * 1e3, f[f"{name}_p95"] * 1e3
                lines.append(f"{name.upper():<12}{p50:.1f} ms median, {p95:.1f} ms p95")
        lines += [
            f"prefix      {f['prefix_hit_rate']:.1%} of looked-up tokens found in the cache",
            f"KV cache    {f['kv_usage_max']:.1%} used at most, {f['preemptions']:.0f} preemptions",
        ]
        if self.spec_decode is not None:
            lines.append(self.spec_decode.report())
        return "\n".join(lines)
