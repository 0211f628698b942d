"""The encoder's part in scheduling: which images a step encodes, and how far it may compute.

To the KV cache and the token budget an image is just tokens. But its tokens can be computed only
once its embeddings are there, and those come whole::

    prompt    a b c [ # # # # # # ] d e [ # # # # ] f
    the step may compute 8 tokens ─────┤              the first image is needed: encode all 6 rows
    no room for the first image   ─┤                  stop before it: 3 tokens

So this extension is asked after all other limits. It shrinks the step to end before an image that
cannot be encoded now.

Source: vllm/v1/core/sched/scheduler.py#L1096-L1257 (Scheduler._try_schedule_encoder_inputs)
@ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.core.encoder_references import PlacesEncoderCacheManager
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True)
class Ask:
    """What a request would encode, if it gets its blocks."""

    request: Request
    input_ids: list[int]
    budget: int
    """What the step's budget would be afterwards."""


class EncoderInputs(SchedulerExtension):
    """Plans the encodings of a step within the encoder's budget and cache.

    Args:
        config: ``encoder_cache_size`` must be set; ``max_num_encoder_input_tokens`` defaults to
            ``max_num_batched_tokens``.

    Attributes:
        manager: of the encoder cache; also ``Scheduler.encoder_cache_manager``.
        budget: rows that may still be encoded in this step.
        planned: images to encode in this step, by request.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        assert config.encoder_cache_size is not None
        self.config = config
        self.max_budget = config.max_num_encoder_input_tokens or config.max_num_batched_tokens
        by_place = config.rules.images_held_by_place
        manager_class = PlacesEncoderCacheManager if by_place else EncoderCacheManager
        self.manager = manager_class(config.encoder_cache_size)
        self.budget = self.max_budget
        self.planned: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}
        """Unfinished ones that have images."""
        self._asks: dict[str, Ask] = {}

    # ------------------------------------------------------------------ before the plan

    def request_added(self, request: Request) -> None:
        """Refuse an image that no step could ever encode or compute.

        Raises:
            ValueError: naming its size, the limit and the option.
        """
        if not request.has_encoder_inputs:
            return
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            for name, limit in self._limits():
                size = place.get_num_embeds() if "encoder" in name else place.length
                if size > limit:
                    raise ValueError(
                        f"image {index} of request {request.request_id!r} has {size} tokens; "
                        f"{name} is {limit}, so it could never be computed; send a smaller image "
                        f"(mm_processor_kwargs) or raise {name}"
                    )
        self.requests[request.request_id] = request

    def _limits(self) -> list[tuple[str, int]]:
        """What an image must fit whole, by the name of the option."""
        config = self.config
        limits = [
            ("max_num_encoder_input_tokens", self.max_budget),
            ("encoder_cache_size", self.manager.cache_size),
        ]
        if config.disable_chunked_mm_input:
            limits.append(("max_num_batched_tokens", config.max_num_batched_tokens))
            if threshold := config.long_prefill_token_threshold:
                limits.append(("long_prefill_token_threshold", threshold))
        return limits

    # ------------------------------------------------------------------ while planning

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Ask for the images that the next tokens of ``request`` need."""
        if num_new_tokens == 0 or not request.has_encoder_inputs:
            return num_new_tokens
        input_ids, num_new_tokens, budget = self._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, self.budget
        )
        if num_new_tokens:
            self._asks[request.request_id] = Ask(request, input_ids, budget)
        return num_new_tokens

    def _try_schedule_encoder_inputs(
        self,
        request: Request,
        num_computed_tokens: int,
        num_new_tokens: int,
        encoder_compute_budget: int,
    ) -> tuple[list[int], int, int]:
        """Which images to encode so that ``num_new_tokens`` can be computed, or fewer.

        Looks at the images in order of their place, as far as they overlap the range that is to
        be computed, ``num_computed_tokens .. num_computed_tokens + num_new_tokens``:

        1. with ``disable_chunked_mm_input``, an image that begins in the range and ends behind it
           ends the range before it;
        2. one that this call has chosen already, or that the cache holds
           (``check_and_update_cache``), costs nothing;
        3. one for which budget or cache have no room (``can_allocate``) ends the range before
           it. If the range begins inside it, no token is left: its first tokens are known from
           the prefix cache, or were computed when the embeddings were still there;
        4. one whose positions in the range take no embedding is not needed yet;
        5. any other is encoded.

        Returns:
            Indices of the images to encode, the tokens that may be computed (perhaps 0), and
            what is left of the budget.

        Source: vllm/v1/core/sched/scheduler.py#L1096-L1257
        (Scheduler._try_schedule_encoder_inputs) @ v0.22.1. Difference: upstream asks 1. after 2.,
        and not for an image with which the range begins.
        """
        chosen: list[int] = []
        hashes: set[str] = set()
        num_embeds = 0
        for index, feature in enumerate(request.mm_features):
            place, end = feature.mm_position, num_computed_tokens + num_new_tokens
            if place.offset >= end:
                break
            if place.end <= num_computed_tokens:
                continue
            room_before = max(place.offset - num_computed_tokens, 0)
            begins_here = num_computed_tokens <= place.offset
            if self.config.disable_chunked_mm_input and begins_here and end < place.end:
                num_new_tokens = room_before
                break
            if feature.identifier in hashes or self.manager.check_and_update_cache(request, index):
                continue
            if not self.manager.can_allocate(request, index, encoder_compute_budget, num_embeds):
                num_new_tokens = room_before
                break
            first, last = max(num_computed_tokens - place.offset, 0), min(end, place.end)
            rows = place.get_embeds_indices_in_range(first, last - place.offset)
            if rows[0] == rows[1]:
                continue
            chosen.append(index)
            hashes.add(feature.identifier)
            num_embeds += place.get_num_embeds()
            encoder_compute_budget -= place.get_num_embeds()
        return chosen, num_new_tokens, encoder_compute_budget

    def scheduled(self, request: Request, num_new_tokens: int) -> None:
        """The request has its blocks: the images that it asked for are encoded in this step."""
        ask = self._asks.pop(request.request_id, None)
        if ask is None:
            return
        end = request.num_computed_tokens + num_new_tokens  # another extension may have cut it
        places = [feature.mm_position for feature in request.mm_features]
        input_ids = [index for index in ask.input_ids if places[index].offset < end]
        for index in input_ids:
            self.manager.allocate(request, index)
        if self.config.rules.images_held_by_place:
            self._note_repeated(request, input_ids, end)
        if input_ids:
            self.budget = ask.budget
            self.planned.setdefault(request.request_id, []).extend(input_ids)

    def _note_repeated(self, request: Request, input_ids: list[int], end: int) -> None:
        """Places of this step that show an image which the step encodes for another place."""
        hashes = {request.mm_features[index].identifier for index in input_ids}
        for index, feature in enumerate(request.mm_features):
            place = feature.mm_position
            is_computed = place.offset < end and place.end > request.num_computed_tokens
            if is_computed and index not in input_ids and feature.identifier in hashes:
                self.manager.check_and_update_cache(request, index)

    def preempted(self, request: Request, was_in_plan: bool) -> None:
        """Release the images of the request; another request may need those that it was to encode.

        Under "priority" a victim may have been planned in this very step, and its embeddings count
        as cached already. Other requests may have found them. Upstream keeps these entries, though
        the worker never gets the embeddings.

        Source: vllm/v1/core/sched/scheduler.py#L929-L949 (Scheduler._preempt_request) @ v0.22.1
        """
        self._asks.pop(request.request_id, None)
        self.manager.free(request)
        for index in self.planned.pop(request.request_id, ()):
            self.budget += request.get_num_encoder_embeds(index)
            self._hand_over(request, index)

    def _hand_over(self, request: Request, input_id: int) -> None:
        """Let another request that needs an image encode it in this step, or drop the image."""
        mm_hash = request.mm_features[input_id].identifier
        others = [i for i in self.requests if i in self.manager.cached[mm_hash]]
        if not others:
            self.manager.drop(request, input_id)
            return
        other = self.requests[others[0]]
        index = [feature.identifier for feature in other.mm_features].index(mm_hash)
        self.planned.setdefault(other.request_id, []).append(index)
        self.budget -= request.get_num_encoder_embeds(input_id)

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        """The plan is complete: write it down, and begin the next step's budget.

        A request that asked for images and got no blocks releases them: it asks again in a later
        step.
        """
        for ask in self._asks.values():
            self.manager.free(ask.request)
        self._asks = {}
        output.scheduled_encoder_inputs = {i: sorted(ids) for i, ids in self.planned.items()}
        output.free_encoder_mm_hashes = self.manager.get_freed_mm_hashes()
        self.planned, self.budget = {}, self.max_budget
        return {}

    # ------------------------------------------------------------------ after the model

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        """Embeddings of a failed request are not kept; images that are computed are not needed."""
        for request_id in result.failed:
            for index in output.scheduled_encoder_inputs.get(request_id, ()):
                if request_id in self.requests:
                    self.manager.drop(self.requests[request_id], index, is_there=True)
        for request_id in output.num_scheduled_tokens:
            if request_id in self.requests:
                request = self.requests[request_id]
                self.free_computed(request, **self._late_tokens(request))
        return set()

    def _late_tokens(self, request: Request) -> dict[str, int]:
        """Tokens that are still being sampled, as an argument of :meth:`free_computed`."""
        if self.config.async_scheduling and self.config.rules.images_outlast_late_tokens:
            return {"num_late_tokens": request.num_output_placeholders}
        return {}

    def free_computed(self, request: Request, num_late_tokens: int = 0) -> None:
        """``request`` no longer needs the images all of whose positions are computed.

        Their keys and values are in the KV cache. It does not matter whether the step sampled a
        token: a chunk that ends inside the prompt may have finished an image, too. The last
        ``num_late_tokens`` of those that count as computed do not count here.

        Source: vllm/v1/core/sched/scheduler.py#L1667-L1689 (Scheduler._free_encoder_inputs)
        @ v0.22.1
        """
        for index, feature in enumerate(request.mm_features):
            if feature.mm_position.end <= request.num_computed_tokens - num_late_tokens:
                self.manager.free_encoder_input(request, index)

    def request_freed(self, request: Request) -> None:
        if self.requests.pop(request.request_id, None) is not None:
            self.preempted(request, was_in_plan=False)

    def reset(self) -> None:
        self.manager.reset()
        self.budget = self.max_budget
        self.planned, self.requests, self._asks = {}, {}, {}
