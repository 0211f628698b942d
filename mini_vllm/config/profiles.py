"""Differences between vLLM's scheduler in the release that the course is pinned to and in newer
ones.

A profile stands for a release: it is a table of rules that the scheduler reads. New options of
vLLM, such as ``watermark``, are options here, too, in every profile.

`make conformance ARGS="--profile NAME"` compares with the scheduler of that release on random
traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Profile = Literal["v0.22", "current"]


@dataclass(frozen=True)
class SchedulerRules:
    """The rules of a release. The defaults are those of the pinned release, 0.22.1."""

    unhashed_blocks_first: bool = False
    """Freed blocks without a hash go to the front of the free queue. No request can reuse their
    content, so they are allocated before any cached block is evicted."""
    lone_prefill_uncapped: bool = False
    """``long_prefill_token_threshold`` does not apply if there is only one request."""
    skipped_keep_their_queue: bool = False
    """A waiting request that cannot be scheduled goes back to the queue it came from. Only requests
    that have blocks while they wait are in a queue of their own, which is always first."""
    victim_moves_position: bool = False
    """When a preempted request before the current one leaves ``running``, the index of the current
    request is always lowered, not only if the victim is in the plan. So no request is skipped."""
    stop_ignores_min_tokens: bool = False
    """A stop token ends a request before ``min_tokens``, too, because sampling masks these
    tokens."""
    lookahead_at_admission: bool = False
    """With drafts that need KV slots, lookahead slots are allocated for a request at its admission,
    too, and not only once it is running."""
    first_decode_padded: bool = False
    """With drafts, a request that starts with one token in a step of decodes gets placeholder
    drafts, so that all requests have equally many rows; see :mod:`mini_vllm.core.padded_drafts`."""
    loads_leave_room: bool = False
    """Blocks for KV to be loaded are allocated only if enough stay free for the rest of all prompts
    in progress: a load cannot be preempted, so otherwise none of them might finish."""
    connector_hears_of_computed_blocks: bool = False
    """When a request ends, its connector gets only the blocks of computed tokens, and not those
    that were allocated ahead of them."""
    retention_interval: int | None = None
    """For layers with windows or states: one block is kept in the prefix cache for each interval of
    so many tokens, besides the places where a later request can begin; see
    :mod:`mini_vllm.core.retention`. None: every block; 0: none."""
    windows_outlast_late_tokens: bool = False
    """With asynchronous results, blocks before a window are freed when no token that is being
    computed reads them, and an admission counts the tokens of all plans in flight."""
    states_end_before_last_token: bool = False
    """The last state that is kept of a prompt ends before its last token. So the same prompt can
    begin there, because its last token is always computed again."""
    prompt_state_rests: bool = False
    """The state at the end of a prompt is no cache hit in a step in which its request still uses
    it, although it was computed before."""
    images_held_by_place: bool = False
    """If an image occurs several times in a request, it is kept until its last place is computed;
    see :mod:`mini_vllm.core.encoder_references`."""
    images_outlast_late_tokens: bool = False
    """With asynchronous results, tokens that are still being sampled do not count as computed when
    a request releases an image."""


PROFILES: dict[str, SchedulerRules] = {
    "v0.22": SchedulerRules(),
    "current": SchedulerRules(
        unhashed_blocks_first=True,
        lone_prefill_uncapped=True,
        skipped_keep_their_queue=True,
        victim_moves_position=True,
        stop_ignores_min_tokens=True,
        lookahead_at_admission=True,
        first_decode_padded=True,
        loads_leave_room=True,
        connector_hears_of_computed_blocks=True,
        retention_interval=0,
        windows_outlast_late_tokens=True,
        states_end_before_last_token=True,
        prompt_state_rests=True,
        images_held_by_place=True,
        images_outlast_late_tokens=True,
    ),
}
"""The rules of each profile."""

RELEASES: dict[str, str] = {"v0.22": "0.22.1", "current": "0.32.0"}
"""The release of vLLM that each profile is compared with."""
