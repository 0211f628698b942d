"""What vLLM's scheduler decides otherwise today than in the release the course is pinned to.

A profile is a release, written down as a table of rules. The one scheduler reads the table.
What upstream made an option, such as ``watermark``, is an option here, too, under any profile.

`make conformance ARGS="--profile NAME"` replays random traces beside the scheduler of that release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Profile = Literal["v0.22", "current"]


@dataclass(frozen=True)
class SchedulerRules:
    """What a release decides, field by field. The defaults are those of the pin, 0.22.1."""

    unhashed_blocks_first: bool = False
    """Freed blocks that no hash finds go to the front of the free queue: they hold nothing that
    a request could use again, so they are given out before any cached block is forgotten."""
    lone_prefill_uncapped: bool = False
    """``long_prefill_token_threshold`` does not hold for the only request: it starves no other."""
    skipped_keep_their_queue: bool = False
    """A request whose turn came in vain goes back to the queue it came from. Only requests that
    hold blocks while they wait have a queue of their own, which always comes first."""
    victim_moves_position: bool = False
    """When a victim that stands before the request in hand leaves ``running``, the position moves
    down with it in any case, not only if the victim is in the plan: no request is passed over."""
    stop_ignores_min_tokens: bool = False
    """A stop token ends a request below ``min_tokens``, too: sampling has masked those tokens."""
    lookahead_at_admission: bool = False
    """With drafts that need KV slots, an admission asks for those of the next step, too, and not
    the running requests alone."""
    first_decode_padded: bool = False
    """With drafts, a request that begins with one token beside decoding ones gets placeholders for
    drafts, so that all of them have as many rows; see :mod:`mini_vllm.core.padded_drafts`."""
    loads_leave_room: bool = False
    """Blocks for KV that is to be loaded are taken only if enough stay free for the rest of all
    prompts under way: a load cannot be preempted, and none of them could end beside it."""
    connector_hears_of_computed_blocks: bool = False
    """When a request ends, its connector gets the blocks of computed tokens, and not those
    that were allocated ahead of them."""
    retention_interval: int | None = None
    """Every how many tokens blocks of windows and states stay findable, besides the places where a
    later request can begin: see :mod:`mini_vllm.core.retention`. None: every block; 0: none."""
    windows_outlast_late_tokens: bool = False
    """With late results, blocks behind a window are given back when no token that is being computed
    reads them, and an admission counts the tokens of all plans on their way."""
    states_end_before_last_token: bool = False
    """The last state that is kept of a prompt ends before its last token, so that the same prompt
    can begin there: that token is always computed again."""
    prompt_state_rests: bool = False
    """The state at the end of a prompt cannot be hit in a step in which its request still holds it,
    though it was computed before."""
    images_held_by_place: bool = False
    """A request that shows an image several times needs it until the last place is computed; see
    :mod:`mini_vllm.core.encoder_references`."""
    images_outlast_late_tokens: bool = False
    """With late results, tokens that are still being sampled do not count as computed when a
    request lets go of an image."""


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
"""The release of vLLM with which a profile's decisions are compared."""
