"""vLLM V0's scheduler: prompts and tokens apart, and preempted requests swapped to the host.

Three queues. *Waiting* requests need their prompt computed, *running* ones hold blocks on the
device, *swapped* ones hold blocks on the host and can go on where they were::

                 admitted                    preempted, a lone request: recompute
    waiting ─────────────────► running ─────────────────────────────────► waiting
                                 ▲ │
                      swapped in │ ▼ preempted, a group of several: swap out
                                swapped

Two orders of service, as two classes:

- :class:`VllmV0`, the default policy: prompts, else tokens, then swapped requests. While one
  is swapped out, no prompt starts.
- :class:`VllmV0Chunked`: tokens, then swapped requests, then prompts with what is left of the
  budget, in chunks.

The unit is the *group*: the completions of one prompt. One of them computes the prompt, the
others fork from it and copy blocks when they write to them. Cross-attention tables of
encoder-decoder models, which V0 kept here as well, are out of scope: our models have no encoder.
Drafts of a proposer are not scheduled either: V0 knew lookahead slots only.

``upstream_notes/POLICIES.md`` says where V0 did otherwise.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.interface import PauseState
from mini_vllm.core.request_queue import create_request_queue
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies.base import Policy
from mini_vllm.policies.block_manager import AllocStatus, BlockManager
from mini_vllm.policies.budget import SchedulingBudget
from mini_vllm.policies.sequence_group import SequenceGroups
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options, V0Plan
from mini_vllm.request import Request, RequestStatus

ARTIFICIAL_PREEMPTION_PROBABILITY = 0.5


class VllmV0(Policy):
    """V0's default policy: throughput first. Prompts, whole; else tokens, then swapped requests.

    Args:
        scheduler_config, cache_config, extensions, hash_root: as for
            :class:`~mini_vllm.core.scheduler.Scheduler`. ``num_cpu_blocks`` is what can be
            swapped to; where it does not suffice, a request is computed again instead.
        options: V0's own settings; None: those of the class. A subclass with other ``options``
            can be passed as ``scheduler_cls``.
    """

    options = V0Options()
    chunked = False

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
        options: V0Options | None = None,
    ) -> None:
        super().__init__(scheduler_config, cache_config, extensions, hash_root)
        self.options = options or self.options
        self.kv_cache_manager: BlockManager = BlockManager(
            cache_config, self.max_model_len, hash_root, self.options.watermark
        )
        self.waiting = create_request_queue("fcfs")  # "priority" sorts it now and then
        self.skipped_waiting = create_request_queue("fcfs")
        self.groups = SequenceGroups()
        self.swapped: deque[list[Request]] = deque()
        """Swapped out requests, by the group that went together."""
        self.clock: Callable[[], float] = time.monotonic
        """The clock of the requests' arrival times."""
        self._prefilling: set[str] = set()
        """Requests in the prompt stage: some token known at their admission is not computed yet.
        The count does not show it: one may be missing, as of a request that makes tokens."""
        self._last_asked = 0.0
        self._started_prompts = False
        """Whether prompts were started when the delay was last asked for, and when that was."""
        self._last_prompt_latency = 0.0
        self._artificial_preemptions_left = self.options.artificial_preemptions
        self._dice = random.Random(0)

    # ------------------------------------------------------------------ requests in and out

    def add_request(self, request: Request) -> None:
        """As :meth:`Scheduler.add_request`; and the request joins its group."""
        super().add_request(request)
        self.groups.add(request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[str]:
        """As :meth:`Scheduler.finish_requests`; the name of a group stands for its members."""
        if isinstance(request_ids, str):
            request_ids = [request_ids]
        if request_ids is not None:
            request_ids = [i for name in request_ids for i in self.groups.ids(name)]
        return super().finish_requests(request_ids, finished_status)

    def _remove_from_queues(self, requests: Iterable[Request]) -> None:
        gone = list(requests)
        super()._remove_from_queues(gone)
        left = ([r for r in group if r not in gone] for group in self.swapped)
        self.swapped = deque(group for group in left if group)

    def _free_request(self, request: Request) -> None:
        super()._free_request(request)
        self.groups.remove(request)
        self._prefilling.discard(request.request_id)

    # ------------------------------------------------------------------ one step

    def schedule(self) -> SchedulerOutput:
        """As :meth:`Policy.schedule`. What the step computes becomes findable when it is planned:
        for the next step, not for this one."""
        output = super().schedule()
        for request_id in output.num_scheduled_tokens:
            request = self.requests[request_id]
            self.kv_cache_manager.publish(request)
            if request.num_computed_tokens >= request.num_tokens:
                self._prefilling.discard(request_id)
        return output

    def new_plan(self, token_budget: int) -> StepPlan:
        """An empty plan, with the running requests counted in its budget."""
        budget = SchedulingBudget(token_budget, self.scheduler_config.max_num_seqs)
        for request in self.running:
            budget.add_seq(request.request_id)
        return V0Plan(token_budget, self.extensions, budget=budget)

    def fill(self, step: StepPlan) -> None:
        """Prompts if there are any and none is swapped out; otherwise tokens, and the swapped."""
        assert isinstance(step, V0Plan)
        if self._may_start_prompts():
            self._schedule_prefills(step)
        if not step.num_scheduled_tokens:
            if self.scheduler_config.policy == "priority":
                self._schedule_priority_preemption(step)
                self._sort_queues(step)
            self._schedule_decodes(step)
            if not step.preempted:
                self._schedule_forks(step)
                self._schedule_swapped(step)
        self._settle(step)

    def _may_start_prompts(self) -> bool:
        """Swapped requests go before new ones, unless under "priority" a new one is more urgent."""
        if not self.swapped:
            return True
        head = self._head() if self.scheduler_config.policy == "priority" else None
        return head is not None and head < self.swapped[0][0]

    def _sort_queues(self, step: V0Plan) -> None:
        """Under "priority", in a step that starts no prompt: the most urgent first in both queues.

        So a request that arrives between two such steps waits at the end, however urgent it is.
        """
        line = sorted([*step.dropped, *self.waiting], key=_urgency)
        self.waiting.remove_requests(list(self.waiting))
        self.waiting.prepend_requests(line[::-1])
        self.running.sort(key=_urgency)
        step.dropped = []

    def _settle(self, step: V0Plan) -> None:
        """Order the queues for the next step.

        ``running``: first requests that got nothing in this step. Then, in chunked mode, those that
        came back from the host, those that made a token, those whose prompt went on (first the
        prompts that the step completes), and new prompts; in default mode as they were scheduled.
        Dropped requests wait in front of the others, the oldest first.
        """
        counts = step.num_scheduled_tokens
        idle = [request for request in self.running if request.request_id not in counts]
        old = [request for request in step.running if not self._is_prefill(request)]
        going_on = [request for request in step.running if self._is_prefill(request)]
        served = [request for request in self.running if request.request_id in counts]
        new = [r for r in served if r not in step.running and r not in step.returned]
        prompts = order_finishing_prefills_first(going_on, counts)
        if self.chunked:
            back = sorted(step.returned, key=self._is_prefill)
            self.running = [*idle, *back, *old, *prompts, *new]
        else:
            self.running = [*idle, *old, *prompts, *new, *step.returned]
        for request in step.dropped:
            self.waiting.prepend_request(request)

    def _make_output(self, step: StepPlan) -> SchedulerOutput:
        assert isinstance(step, V0Plan)
        assert not (step.blocks_to_swap_in and step.blocks_to_swap_out)
        output = super()._make_output(step)
        output.blocks_to_swap_out = step.blocks_to_swap_out
        output.blocks_to_swap_in = step.blocks_to_swap_in
        output.blocks_to_copy = step.blocks_to_copy
        return output

    def _check_progress(self, step: StepPlan) -> None:
        """Requests that came from the host to wait have moved, though nothing was computed."""
        assert isinstance(step, V0Plan)
        if not step.dropped:
            super()._check_progress(step)

    # ------------------------------------------------------------------ prompts

    def _schedule_prefills(self, step: V0Plan) -> None:
        """Admit waiting requests in order; the first that does not fit ends the pass.

        A request fits if there are a row, blocks for all of its tokens and budget for those that
        are not in the cache (:meth:`_num_tokens_now`). It holds all of these blocks from its
        first chunk on. One that could never fit is ignored (:meth:`Policy._refuse`).
        """
        budget, manager = step.budget, self.kv_cache_manager
        if budget.remaining_token_budget() == 0:
            return
        lookahead = self._num_lookahead_slots(is_prefill=True)
        while self._passed_delay(step) and (request := self._head()) is not None:
            if self._refuse(request, lookahead):
                continue
            if manager.can_allocate(request, lookahead) is not AllocStatus.OK:
                break
            hits, num_hit_tokens = manager.get_computed_blocks(request)
            num_missing = request.num_tokens - num_hit_tokens
            num_now = self._num_tokens_now(num_missing, budget.remaining_token_budget())
            if num_now == 0 or not budget.can_schedule(num_now, 1):
                break
            later = num_missing - num_now + lookahead
            manager.allocate_slots(request, num_now, num_hit_tokens, hits, later)
            self._admit(step, num_hit_tokens, num_now)
            self._charge(step, request, num_now, num_hit_tokens)
            self._prefilling.add(request.request_id)
        self._started_prompts = bool(step.new or step.resumed)

    def prompt_limit(self) -> int:
        """Without chunks, or with several steps per plan, a prompt must fit the budget."""
        whole = not self.chunked or self.options.num_scheduler_steps > 1
        return super().prompt_limit() if whole else self.max_model_len

    def _num_tokens_now(self, num_missing: int, num_left: int) -> int:
        """How many of a request's missing tokens a step computes that has ``num_left`` to give.

        All of them if they fit. Otherwise, in chunked mode, what is left; 0 for a prompt that must
        not be cut. With prefix caching a chunked step has whole blocks to give, so that a chunk
        leaves no block half filled (unless the whole budget is less than a block). That holds for
        prompts that would fit, and for tokens too: a rest of less than a block is not used.
        """
        if not self.chunked or self.options.num_scheduler_steps > 1:
            return num_missing if num_missing <= num_left else 0
        block_size = self.cache_config.block_size
        in_blocks = self.scheduler_config.max_num_batched_tokens >= block_size
        if self.cache_config.enable_prefix_caching and in_blocks:
            num_left = num_left // block_size * block_size
        return min(num_missing, num_left)

    def _passed_delay(self, step: V0Plan) -> bool:
        """Whether a prompt may start: the oldest that waits has waited for ``delay_factor`` steps
        like the last one that computed prompts.

        Always if no group is running: then there is nothing to gain by waiting. Asked before each
        prompt, for with the oldest started, the others may have to wait. A group in this
        step's plan does not count as running; so in chunked mode, where tokens are planned before
        prompts, there is hardly ever a delay.
        """
        now = self.clock()
        if self._started_prompts:
            self._last_prompt_latency = now - self._last_asked
        self._last_asked, self._started_prompts = now, False
        if self.options.delay_factor == 0 or not self.waiting:
            return True
        if all(request.request_id in step.num_scheduled_tokens for request in self.running):
            return True
        waited = now - min(request.arrival_time for request in self.waiting)
        return waited > self.options.delay_factor * self._last_prompt_latency

    # ------------------------------------------------------------------ tokens

    def _schedule_decodes(self, step: V0Plan) -> None:
        """Give every running group its next tokens, or the next chunk of its prompt.

        While there are too few blocks for a group, the last one in the queue is preempted, in the
        end the group itself. A group that was scheduled in this step is safe. A group that has
        the machine to itself gives up one member after the other: it would find no more room.
        """
        lookahead = self._num_lookahead_slots(is_prefill=False)
        queue = deque(self.groups.split(self.running))
        while queue:
            group = queue.popleft()
            tokens = self._tokens_of(group, step.budget)
            if not any(tokens.values()):
                break
            while not self._can_append_slots(group):
                if any([self._cap_if_too_large(request, lookahead) for request in group]):
                    break
                if queue:
                    victim = queue.pop()
                elif len(self.running) > len(group):
                    victim, group = group, []
                else:
                    victim = [group.pop()]
                self._preempt_group(step, victim)
                if not group:
                    break
            else:
                for request in group:
                    if tokens[request] > 0:
                        self._append_slots(step, request, tokens[request])

    def _tokens_of(self, group: Sequence[Request], budget: SchedulingBudget) -> dict[Request, int]:
        """Tokens that each member computes in this step; members that make a token come first."""
        num_left = budget.remaining_token_budget()
        tokens = dict.fromkeys(group, 0)
        for request in sorted(group, key=_num_missing):
            tokens[request] = self._num_tokens_now(_num_missing(request), num_left)
            num_left -= tokens[request]
        return tokens

    def _num_slots(self, request: Request) -> int:
        """Slots that a running request needs: for all of its tokens, and for lookahead.

        The blocks for a prompt are held from its first chunk on, so only the rest is new.
        """
        return request.num_tokens + self._num_lookahead_slots(self._is_prefill(request))

    def _num_lookahead_slots(self, is_prefill: bool) -> int:
        """Slots beyond the next token, for tokens that the worker makes without asking again.

        For a prompt none, except in chunks with several steps per plan: there the step that
        computes the prompt goes on to make tokens.
        """
        num_steps = self.options.num_scheduler_steps
        if is_prefill and not (self.chunked and num_steps > 1):
            return 0
        return max(self.scheduler_config.num_lookahead_tokens, num_steps - 1)

    def _can_append_slots(self, group: Sequence[Request]) -> bool:
        """Whether all members can have their slots; in tests also by chance not."""
        if self._artificial_preemptions_left and (
            self._dice.random() < ARTIFICIAL_PREEMPTION_PROBABILITY
        ):
            self._artificial_preemptions_left -= 1
            return False
        if len(self.running) == len(group) and all(map(self._is_prefill, group)):
            return True  # it holds the blocks of its prompt; V0 would preempt it for ever
        return sum(map(self._num_touched, group)) <= self.kv_cache_manager.num_free_blocks

    def _num_touched(self, request: Request) -> int:
        """Blocks that the step writes to, as V0 counts them for the worst case: each must be had
        anew, even one that the request holds and has filled by half."""
        block_size = self.cache_config.block_size
        num_known = request.num_tokens - (not self._is_prefill(request))
        room = block_size - num_known % block_size
        return 1 - (room - (self._num_slots(request) - num_known)) // block_size

    def _append_slots(self, step: V0Plan, request: Request, num_tokens: int) -> None:
        """Give a running request its slots and enter it in the plan."""
        blocks, copies = self.kv_cache_manager.append(request, self._num_slots(request))
        assert not copies, "a running request writes to its own blocks only"
        step.add_running(request, num_tokens, blocks)
        self._charge(step, request, num_tokens)

    def _charge(self, step: V0Plan, request: Request, num_tokens: int, num_hits: int = 0) -> None:
        step.budget.add_tokens(request.request_id, num_tokens, num_hits)
        step.budget.add_seq(request.request_id)

    def _is_prefill(self, request: Request) -> bool:
        """Whether the request is in the prompt stage."""
        return request.request_id in self._prefilling

    # ------------------------------------------------------------------ groups of several

    def _may_admit(self, request: Request) -> bool:
        """A sibling of a running request does not compute their prompt: it will be forked."""
        return super()._may_admit(request) and self._fork_source(request) is None

    def _fork_source(self, request: Request) -> Request | None:
        """A running sibling, if ``request`` is to begin from the prompt that it computes."""
        if request.output_token_ids or request.skip_reading_prefix_cache:
            return None
        siblings = self.groups.of(request)
        return next((r for r in siblings if r.status == RequestStatus.RUNNING), None)

    def _schedule_forks(self, step: V0Plan) -> None:
        """Start waiting siblings from the blocks of a sibling that has computed their prompt.

        Each computes the prompt's last token once more, for the logits its first token is drawn
        from. It goes to a block of its own: the shared one is copied before.
        """
        if self.pause_state != PauseState.UNPAUSED:
            return
        manager = self.kv_cache_manager
        lookahead = self._num_lookahead_slots(is_prefill=False)
        for request in list(self.skipped_waiting):
            source = self._fork_source(request)
            num_tokens = request.num_prompt_tokens - 1
            if source is None or source.num_computed_tokens <= num_tokens:
                continue
            if not super()._may_admit(request):
                continue
            most_blocks = 1 + -(-lookahead // manager.block_size)
            if not step.budget.can_schedule(1, 1) or most_blocks > manager.num_free_blocks:
                break
            self.skipped_waiting.remove_requests([request])
            manager.fork(source, request, num_tokens)
            _, copies = manager.append(request, request.num_tokens + lookahead)
            step.blocks_to_copy += copies
            request.num_cached_tokens = num_tokens
            self._run(step, request, num_tokens, 1)
            self._charge(step, request, 1, num_tokens)

    # ------------------------------------------------------------------ preemption

    def _schedule_priority_preemption(self, step: V0Plan) -> int:
        """Make room for the next waiting request, by preempting less urgent ones.

        From the least urgent on, running groups are preempted until it fits (:meth:`_fits`, with
        the step's own budget), as long as they are less urgent: a larger ``(priority,
        arrival_time)``. The members of a group leave in the order of ``sorted(self.running)``. The
        waiting request is admitted in the next step.

        Returns:
            How many groups were preempted.
        """
        # TODO 16.5
        raise NotImplementedError(
            "TODO 16.5: write VllmV0._schedule_priority_preemption in labs/16-policies-and-capstone/vllm_v0.py"
            " (phase 16, 02-mini-build.md#task-5)"
        )

    def _fits(self, request: Request, budget: SchedulingBudget) -> bool:
        """Whether a waiting request could be admitted in a step of its own."""
        lookahead = self._num_lookahead_slots(is_prefill=True)
        _, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        num_left = budget.remaining_token_budget()
        num_now = self._num_tokens_now(request.num_tokens - num_hit_tokens, num_left)
        status = self.kv_cache_manager.can_allocate(request, lookahead)
        return num_now > 0 and status is AllocStatus.OK and budget.can_schedule(num_now, 1)

    def _preempt_group(self, step: V0Plan, group: Sequence[Request]) -> None:
        """Take all blocks of running requests; what they have computed is moved or dropped."""
        for request in group:
            self.running.remove(request)
            request.transition_to(RequestStatus.PREEMPTED)
            request.num_preemptions += 1
            step.budget.remove(request.request_id)
        step.preempted.extend(group)
        if self._preemption_mode(group) is PreemptionMode.SWAP:
            self._swap_out(step, group)
        else:
            self._drop(step, group)

    def _preemption_mode(self, group: Sequence[Request]) -> PreemptionMode:
        """The mode of the options; by default a lone request is cheaper to compute again."""
        mode = self.options.preemption_mode
        if mode is None:
            alone = len(self.groups.of(group[0])) == 1
            mode = PreemptionMode.RECOMPUTE if alone else PreemptionMode.SWAP
        if not self.kv_cache_manager.can_swap_out(group):
            mode = PreemptionMode.RECOMPUTE
        return mode

    def _drop(self, step: V0Plan, group: Sequence[Request]) -> None:
        """Forget what preempted requests have computed: they will wait like new ones."""
        for request in group:
            self.kv_cache_manager.free(request)
            request.num_computed_tokens = 0
            self._prefilling.discard(request.request_id)
        step.dropped.extend(group)

    def _swap_out(self, step: V0Plan, group: Sequence[Request]) -> None:
        """Move what preempted requests have computed to the host; they keep counting it.

        They leave for the end of the ``swapped`` queue, together. The worker copies the blocks
        before the forward pass, so that others may have them in this same step.
        """
        # TODO 16.4
        raise NotImplementedError(
            "TODO 16.4: write VllmV0._swap_out in labs/16-policies-and-capstone/vllm_v0.py"
            " (phase 16, 02-mini-build.md#task-4)"
        )

    # ------------------------------------------------------------------ swapping in

    def _schedule_swapped(self, step: V0Plan) -> None:
        """Bring swapped groups back in order, as long as budget, rows and blocks last.

        A prompt that was half computed comes back only if all of its rest fits the budget. A
        group that does not fit although no group is running is dropped: its members wait, and are
        computed again one by one.
        """
        while self.swapped:
            group = self.swapped[0]
            tokens = {request: _num_missing(request) for request in group}
            slots = [self._num_slots(request) for request in group]
            fits = step.budget.can_schedule(sum(tokens.values()), len(group))
            if fits and self.kv_cache_manager.can_swap_in(group, slots) is AllocStatus.OK:
                self.swapped.popleft()
                self._swap_in(step, group, tokens)
                step.returned += group
            elif not self.running:
                self._drop(step, self.swapped.popleft())
            else:
                break

    def _swap_in(self, step: V0Plan, group: Sequence[Request], tokens: dict[Request, int]) -> None:
        """Bring a group back from the host and let its members go on where they were.

        Each gets its slots, runs with its entry of ``tokens``, and the budget is charged for them.
        Its blocks are new, so the plan carries its whole table.

        Args:
            tokens: how many tokens each member computes in this step.
        """
        # TODO 16.4
        raise NotImplementedError(
            "TODO 16.4: write VllmV0._swap_in in labs/16-policies-and-capstone/vllm_v0.py"
            " (phase 16, 02-mini-build.md#task-4)"
        )

    # ------------------------------------------------------------------ questions

    def reset_prefix_cache(self) -> bool:
        """As the core's; swapped requests hold KV too, though none on the device."""
        return not self.swapped and super().reset_prefix_cache()

    def check_integrity(self) -> None:
        """As the core's, and for the swapped: they hold host blocks only."""
        swapped = {request.request_id: request for group in self.swapped for request in group}
        assert swapped.keys() == self.kv_cache_manager.host_tables.keys()
        assert all(request.status == RequestStatus.PREEMPTED for request in swapped.values())
        super().check_integrity()

    def _all_waiting(self) -> list[Request]:
        return [*super()._all_waiting(), *(r for group in self.swapped for r in group)]


class VllmV0Chunked(VllmV0):
    """V0's chunked policy: latency first. Tokens, then swapped requests, then prompts in chunks."""

    chunked = True

    def fill(self, step: StepPlan) -> None:
        """Running groups come first, and prompts get what is left of the budget."""
        assert isinstance(step, V0Plan)
        self._schedule_decodes(step)
        if not step.preempted:
            self._schedule_forks(step)
            self._schedule_swapped(step)
        self._schedule_prefills(step)
        self._settle(step)


def order_finishing_prefills_first(
    requests: Sequence[Request], num_scheduled_tokens: dict[str, int]
) -> list[Request]:
    """Prompts that this step completes before those it does not; either kind keeps its order.

    In the next step the former make tokens, and should not stand behind prompts.

    Args:
        requests: with the ``num_computed_tokens`` from before the step.
        num_scheduled_tokens: the step's tokens, by request id.
    """
    unfinished = {
        request.request_id: request.num_computed_tokens + num_scheduled_tokens[request.request_id]
        < request.num_tokens
        for request in requests
    }
    return sorted(requests, key=lambda request: unfinished[request.request_id])


def _num_missing(request: Request) -> int:
    """Tokens that are known but not computed."""
    return request.num_tokens - request.num_computed_tokens


def _urgency(request: Request) -> tuple[int, float]:
    """Smaller is more urgent."""
    return request.priority, request.arrival_time
