"""A policy of your own: more requests served in time than by vLLM V1's, on one workload.

This one is made for *documents*: short questions, and now and then a prompt of more than a thousand
tokens. V1 serves in order of arrival, and a step takes as many tokens as the budget allows. So a
question waits behind documents that came before it, and while a document is computed every step is
long for all requests that make tokens::

    V1     | D D D D D D | D D D D D q | d d |     D: a document's tokens   q: a question's
                                                   d: the next token of an answer

``limits`` says how much a step may take, ``schedule`` which requests come first in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request


class Capstone(Scheduler):
    """V1's rules, with limits and an order of its own.

    It keeps every promise of :class:`~mini_vllm.core.scheduler.Scheduler`. It does not promise that
    no request is overtaken.
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
        """The limits to run with: those of ``config``, or tighter ones. Nothing else changes.

        Without chunked prefill a prompt must fit into one step, so the budget stays as it is.
        """
        if not config.enable_chunked_prefill:
            return config
        # A step of few tokens is short, so decoding requests get their tokens often. The price is
        # more steps for a long prompt, each with the fixed cost of a step.
        enough = max(96, config.max_num_seqs)  # a token for each request
        budget = min(config.max_num_batched_tokens, enough)
        return replace(config, max_num_batched_tokens=budget)

    def schedule(self) -> SchedulerOutput:
        """Plan one step: as V1 does, with ``running`` and ``waiting`` in an order of its own."""
        # Shortest first: the request that lacks the fewest tokens computes first, and documents
        # fill what is left. So a long request waits while short ones keep coming.
        self.running.sort(key=_num_missing)
        in_order = sorted(self.waiting, key=_num_missing)
        self.waiting.remove_requests(in_order)
        for request in in_order:
            self.waiting.add_request(request)
        return super().schedule()


def _num_missing(request: Request) -> int:
    """Tokens that are known but not computed."""
    return request.num_tokens - request.num_computed_tokens
