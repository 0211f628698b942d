"""A policy of your own: more requests served in time than by vLLM V1's, on one workload.

This one is made for *documents*: short questions, and now and then a prompt of more than a thousand
tokens. V1 serves in order of arrival, and a step takes as many tokens as the budget allows. So a
question waits behind documents that came before it, and while a document is computed every step is
long for everybody who makes tokens::

    V1         | D D D D D D | D D D D D q | d d |     D: a document's tokens   q: a question's
    shortest   | q D D | d D D | d D D | d D D | ...   d: the next token of its answer

Shortest first, in short steps: whoever misses the fewest tokens computes first, and documents fill
what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request

TOKENS_PER_STEP = 96


class Capstone(Scheduler):
    """V1's rules in another order: the request that misses the fewest tokens goes first.

    It keeps every promise of :class:`~mini_vllm.core.scheduler.Scheduler`. It does not promise that
    nobody is overtaken: while short requests keep coming, a long one waits.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
    ) -> None:
        super().__init__(self.limits(scheduler_config), cache_config, extensions, hash_root)

    @staticmethod
    def limits(config: SchedulerConfig) -> SchedulerConfig:
        """The limits to run with: those of ``config``, or tighter ones.

        A step of few tokens is short, so those who make tokens make them often. The price is
        more steps for a long prompt, and what every step costs comes on top of each.
        """
        # TODO 16.6
        raise NotImplementedError(
            "TODO 16.6: write Capstone.limits in labs/16-policies-and-capstone/capstone.py"
            " (phase 16, 02-mini-build.md#task-6)"
        )

    def schedule(self) -> SchedulerOutput:
        """Plan one step: as V1 does, with both lines in the order of missing tokens."""
        # TODO 16.6
        raise NotImplementedError(
            "TODO 16.6: write Capstone.schedule in labs/16-policies-and-capstone/capstone.py"
            " (phase 16, 02-mini-build.md#task-6)"
        )


def _num_missing(request: Request) -> int:
    """Tokens that are known but not computed."""
    return request.num_tokens - request.num_computed_tokens
