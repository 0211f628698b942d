"""A fake model with *shadow KV*, and a harness that checks the engine's rules at every step.

The fake keeps, in every KV slot, not keys and values but the truth about them: which token was
written, at which position, after which prefix. When it reads a slot it checks that truth::

    block table of r0: [3, 1]       block_size 4

    slot    12        13        14        15        4         5
    row     (t0, 0, p0)(t1, 1, p1)(t2, 2, p2)(t3, 3, p3)(t4, 4, p4)(t5, 5, p5)
                                                         p5 = digest of t0 .. t5

A row with a wrong token, a wrong position or a wrong prefix is a bug that a real model would
turn into quietly wrong text: a stale hash, a block freed twice, a wrong slot, a prefix that was
never computed. The next token is a function of all rows read, so that a row that should have
been read and was not changes the output.

Three things to use from elsewhere:

- :class:`ShadowWorker` executes one ``SchedulerOutput``. It knows only these outputs: it
  keeps its own request states, as a real worker must, and never looks into the scheduler.
- :func:`generate_alone` says what a request must produce: it runs it alone, with no scheduler,
  no blocks and no cache.
- :class:`ShadowEngine` couples a scheduler to a worker, and after every step checks T-CONS,
  T-REF, T-HASH and T-BUD by its own bookkeeping, besides ``Scheduler.check_integrity``.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, NewRequestData, SchedulerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

VOCAB_SIZE = 11
"""Small, so that equal blocks, EOS and stop tokens come up all the time."""
HASH_ROOT = b"\0" * 32
"""A fixed root, so that block hashes are the same in every run."""


class ShadowError(AssertionError):
    """A slot was read that does not hold what the request needs there."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one KV slot holds."""

    token_id: int
    position: int
    prefix: int
    """Digest of all tokens up to this one, and of what else changes their KV."""


def namespace_digest(lora_name: str | None) -> int:
    """The digest of the empty prefix. An adapter changes all KV, so it starts another chain."""
    return zlib.crc32((lora_name or "").encode())


def extend_prefix(prefix: int, token_id: int) -> int:
    """The digest of a prefix that is one token longer. Tuples of ints hash the same everywhere."""
    return hash((prefix, token_id))


def fold(state: int, row: Row) -> int:
    """Read one more row: the "attention" of the fake model."""
    return hash((state, row.token_id, row.position, row.prefix))


def sample(state: int, request_id: str = "") -> int:
    """The "logits" of the fake model: the token that follows the rows folded into ``state``.

    Children of one prompt (``0_r``, ``1_r``) draw different tokens, as those of ``n > 1`` do.
    """
    index, _, parent = request_id.partition("_")
    child = int(index) if parent and index.isdigit() else 0
    return (state + child) % VOCAB_SIZE


def stop_status(
    params: SamplingParams, output: Sequence[int], num_tokens: int, max_model_len: int,
    eos_token_id: int | None,
) -> RequestStatus | None:  # fmt: skip
    """The stop rules, written down a second time: which status ends this output, if any."""
    if len(output) >= params.min_tokens:
        is_eos = output[-1] == eos_token_id and not params.ignore_eos
        if is_eos or output[-1] in (params.stop_token_ids or ()):
            return RequestStatus.FINISHED_STOPPED
    at_limit = params.max_tokens is not None and len(output) >= params.max_tokens
    if at_limit or num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    return None


def generate_alone(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    max_model_len: int,
    eos_token_id: int | None = None,
    lora_name: str | None = None,
    request_id: str = "",
) -> tuple[list[int], RequestStatus]:
    """The output tokens and the final status of a request that has the machine to itself.

    No scheduler, no blocks, no cache: one token after the other, each from all before it.
    """
    prefix, state = namespace_digest(lora_name), 0
    tokens, output = list(prompt_token_ids), []
    position = 0
    while True:
        for token_id in tokens[position:]:
            prefix = extend_prefix(prefix, token_id)
            state = fold(state, Row(token_id, position, prefix))
            position += 1
        output.append(sample(state, request_id))
        tokens.append(output[-1])
        status = stop_status(params, output, len(tokens), max_model_len, eos_token_id)
        if status is not None:
            return output, status


# -------------------------------------------------------------------------------- the worker


@dataclass(slots=True)
class WorkerRequest:
    """What the worker remembers of a request from step to step."""

    lora_name: str | None
    token_ids: list[int]
    """Prompt and accepted output."""
    block_ids: list[int]
    num_computed_tokens: int
    prefixes: list[int] = field(default_factory=list)
    """``prefixes[i]`` is the digest of ``token_ids[: i + 1]``, as far as it was needed."""

    @classmethod
    def from_new(cls, data: NewRequestData) -> WorkerRequest:
        tokens, blocks = list(data.prompt_token_ids), list(data.block_ids)
        return cls(data.lora_name, tokens, blocks, data.num_computed_tokens)

    def rows(self, drafts: Sequence[int], end: int) -> list[Row]:
        """The rows that the slots of positions ``0 .. end - 1`` must hold, drafts included."""
        tokens = [*self.token_ids, *drafts]
        prefix = self.prefixes[-1] if self.prefixes else namespace_digest(self.lora_name)
        for token_id in self.token_ids[len(self.prefixes) : end]:
            prefix = extend_prefix(prefix, token_id)
            self.prefixes.append(prefix)
        prefixes = self.prefixes[:end]
        for token_id in tokens[len(prefixes) : end]:
            prefixes.append(extend_prefix(prefixes[-1], token_id))
        return [Row(*row) for row in zip(tokens[:end], range(end), prefixes, strict=True)]


class ShadowWorker:
    """Executes scheduler outputs as a worker does, on shadow KV.

    Args:
        num_gpu_blocks: blocks in the pool, the null block included.
        block_size: tokens per block.

    Attributes:
        slots: slot index -> the row last written there.
        requests: the worker's own view of the requests it was told about.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.slots: dict[int, Row] = {}
        self.requests: dict[str, WorkerRequest] = {}
        self.lora_names: dict[str, str | None] = {}

    def execute(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """Run one step: learn what is new, write all rows of the batch, then read and sample.

        Returns:
            Sampled tokens by request id: none while a prompt is not fully computed, one for a
            decode, up to ``k + 1`` with ``k`` drafts (greedy verification).

        Raises:
            ShadowError: if a slot that is read does not hold the row it should.
            AssertionError: if the output contradicts what the worker was told before.
        """
        self.learn(output)
        plan = {}
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            drafts = output.scheduled_spec_decode_tokens.get(request_id, [])
            end = request.num_computed_tokens + num_tokens
            known = len(request.token_ids) + len(drafts)
            assert num_tokens >= 1, f"{request_id} is scheduled with {num_tokens} tokens"
            assert end <= known, f"{request_id} is scheduled up to {end} but has {known} tokens"
            assert not drafts or end == known, f"{request_id} has drafts it does not compute"
            plan[request_id] = (request, drafts, end, request.rows(drafts, end))
        self._write(plan)
        return {i: tokens for i, entry in plan.items() if (tokens := self._read(i, *entry))}

    def learn(self, output: SchedulerOutput) -> None:
        """Bring the request states up to date from the output's new requests and deltas."""
        for request_id in (*output.finished_req_ids, *output.preempted_req_ids):
            self.requests.pop(request_id, None)
        for data in output.scheduled_new_reqs:
            assert data.req_id not in self.requests, f"{data.req_id} is announced twice"
            assert data.block_ids == output.new_block_ids[data.req_id]
            self.requests[data.req_id] = WorkerRequest.from_new(data)
        cached = output.scheduled_cached_reqs
        for request_id, num_computed in zip(
            cached.req_ids, cached.num_computed_tokens, strict=True
        ):
            blocks = output.new_block_ids.get(request_id, [])
            if request_id in cached.resumed_req_ids:
                tokens = list(cached.all_token_ids[request_id])
                lora_name = self.lora_names.get(request_id)
                self.requests[request_id] = WorkerRequest(lora_name, tokens, [], num_computed)
            request = self.requests[request_id]
            request.block_ids.extend(blocks)
            assert request.num_computed_tokens == num_computed, (
                f"{request_id}: the worker has computed {request.num_computed_tokens} tokens, "
                f"the scheduler says {num_computed}"
            )
        for data in output.scheduled_new_reqs:
            self.lora_names[data.req_id] = data.lora_name
        known = {data.req_id for data in output.scheduled_new_reqs} | set(cached.req_ids)
        assert known == set(output.num_scheduled_tokens), "a scheduled request lacks its data"
        assert set(output.new_block_ids) <= known, "blocks for a request that is not scheduled"

    def slot(self, request_id: str, block_ids: Sequence[int], position: int) -> int:
        """``block_id * block_size + offset``, after checking that the table reaches so far."""
        index, offset = divmod(position, self.block_size)
        assert index < len(block_ids), f"{request_id} has no block for position {position}"
        block_id = block_ids[index]
        assert 0 < block_id < self.num_gpu_blocks, f"{request_id} was given block {block_id}"
        return block_id * self.block_size + offset

    def _write(self, plan: Mapping[str, tuple[WorkerRequest, list[int], int, list[Row]]]) -> None:
        """Store the rows of all new tokens; no two requests may write to one slot."""
        owners: dict[int, str] = {}
        for request_id, (request, _, end, rows) in plan.items():
            for position in range(request.num_computed_tokens, end):
                slot = self.slot(request_id, request.block_ids, position)
                assert slot not in owners, f"{request_id} and {owners[slot]} write slot {slot}"
                owners[slot] = request_id
                self.slots[slot] = rows[position]

    def _read(
        self, request_id: str, request: WorkerRequest, drafts: list[int], end: int, rows: list[Row]
    ) -> list[int]:
        """Check and fold all rows up to ``end``, then sample where all certain tokens are in."""
        state, sampled = 0, []
        num_certain = len(request.token_ids)
        for position, expected in enumerate(rows):
            slot = self.slot(request_id, request.block_ids, position)
            found = self.slots.get(slot)
            if found != expected:
                raise ShadowError(
                    f"{request_id} reads position {position} in slot {slot} (block "
                    f"{slot // self.block_size}): it holds {found}, expected {expected}"
                )
            state = fold(state, found)
            if position >= num_certain - 1:
                sampled.append(sample(state, request_id))
                num_drafts = len(sampled) - 1
                if num_drafts < len(drafts) and drafts[num_drafts] != sampled[-1]:
                    break
        request.token_ids.extend(sampled)
        request.num_computed_tokens = min(end, num_certain + max(len(sampled) - 1, 0))
        return sampled


# ------------------------------------------------------------------------------- the harness


@dataclass(slots=True)
class Expected:
    """What a request must produce, and what it has produced so far."""

    request: Request
    tokens: list[int]
    status: RequestStatus
    got: list[int] = field(default_factory=list)
    num_hashes: int = 0
    """How many of the request's block hashes have been written down."""


class ShadowEngine:
    """A scheduler and a shadow worker, stepped together and checked after every step.

    Args:
        scheduler_config, cache_config, extensions: as for :class:`Scheduler`.
        num_drafts: draft tokens to propose per decoding request and step.
        draft_accuracy: chance that a proposed draft is the right one.
        seed: of the proposer.
        scheduler_cls: the scheduler to check.

    Attributes:
        expected: everything that was ever added, by id, with its true output.
        counts: how often each interesting thing happened; tests assert that it did.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        num_drafts: int = 0,
        draft_accuracy: float = 0.5,
        seed: int = 0,
        scheduler_cls: Callable[..., Scheduler] = Scheduler,
    ) -> None:
        self.scheduler = scheduler_cls(scheduler_config, cache_config, extensions, HASH_ROOT)
        assert cache_config.num_gpu_blocks is not None
        self.block_size = cache_config.block_size
        self.worker = ShadowWorker(cache_config.num_gpu_blocks, cache_config.block_size)
        self.num_drafts = num_drafts
        self.draft_accuracy = draft_accuracy
        self.rng = random.Random(seed)
        self.expected: dict[str, Expected] = {}
        self.contents: dict[bytes, tuple[tuple[object, ...], Row]] = {}
        self.counts: Counter[str] = Counter()
        self._watch_refunds()

    def _watch_refunds(self) -> None:
        """Count the victims that had been given slots earlier in the very same step."""
        manager, preempt = self.scheduler.kv_cache_manager, self.scheduler._preempt
        allocate = manager.allocate_slots
        self.planned: set[str] = set()

        def watched_allocate(request: Request, *args: Any, **kwargs: Any) -> KVCacheBlocks | None:
            blocks = allocate(request, *args, **kwargs)
            if blocks is not None:
                self.planned.add(request.request_id)
            return blocks

        def watched_preempt(request: Request) -> None:
            self.counts["refunded"] += request.request_id in self.planned
            preempt(request)

        manager.allocate_slots = watched_allocate  # type: ignore[method-assign]
        self.scheduler._preempt = watched_preempt  # type: ignore[method-assign]

    def _schedule(self) -> SchedulerOutput:
        self.planned.clear()
        output = self.scheduler.schedule()
        self.check_plan(output)
        return output

    # ---------------------------------------------------------------- requests

    def add(self, request: Request) -> Request:
        """Add a request and work out what it must produce."""
        tokens, status = generate_alone(
            request.prompt_token_ids,
            request.sampling_params,
            self.scheduler.max_model_len,
            request.eos_token_id,
            request.lora_name,
            request.request_id,
        )
        self.scheduler.add_request(request)
        self.expected[request.request_id] = Expected(request, tokens, status)
        return request

    def abort(self, request_ids: str | Iterable[str]) -> list[str]:
        """Abort requests, in whatever state they are."""
        ids = self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        for request_id in ids:
            self.counts["aborted"] += 1
            self._check_result(request_id)
        return ids

    # ---------------------------------------------------------------- steps

    def step(
        self, during_forward: Callable[[SchedulerOutput], object] = lambda output: None
    ) -> SchedulerOutput:
        """One step; ``during_forward`` runs between the forward pass and the update."""
        output = self._schedule()
        sampled = self.worker.execute(output)
        during_forward(output)
        self._take(self.scheduler.update_from_output(output, sampled))
        self._propose(sampled)
        self.check_state()
        return output

    def failing_step(self) -> SchedulerOutput:
        """One step whose forward pass fails before it has written anything."""
        output = self._schedule()
        self.worker.learn(output)
        self.fail(output, output.num_scheduled_tokens)
        self.check_state()
        return output

    def fail(self, output: SchedulerOutput, request_ids: Iterable[str]) -> None:
        """Let some requests of a step end with an error, as bad logits do."""
        reasons = dict.fromkeys(request_ids, "the forward pass failed")
        failed = self.scheduler.fail_requests(output, reasons)
        self._take(failed)
        self.counts["failed"] += len(failed)

    def drain(self, max_steps: int = 5_000) -> int:
        """Step until nothing is left to do, and say how many steps that took (T-PROG)."""
        for step in range(max_steps):
            if not self.scheduler.has_requests():
                self.check_drained()
                return step
            self.step()
        raise AssertionError(f"not done after {max_steps} steps: {self.scheduler.requests}")

    def _take(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Collect output tokens; check finished requests against what they must produce."""
        for output in outputs:
            expected = self.expected[output.request_id]
            expected.got.extend(output.new_token_ids)
            assert (output.finish_reason is not None) == expected.request.is_finished
            if output.finish_reason is not None:
                self._check_result(output.request_id)

    def _check_result(self, request_id: str) -> None:
        """T-INV and T-STOP: the output is that of the request alone, or a prefix of it."""
        expected = self.expected[request_id]
        request = expected.request
        assert request.output_token_ids == expected.got
        self.counts[str(request.status)] += 1
        if request.stop_reason == "kv_capacity":
            self.counts["kv_capacity"] += 1
            lookahead = self.scheduler.scheduler_config.num_lookahead_tokens
            capacity = self.scheduler.kv_cache_manager.capacity_in_tokens
            assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
            assert request.num_tokens + lookahead > capacity
        elif request.status in (RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR):
            pass
        else:
            assert request.status == expected.status, f"{request}, not {expected.status}"
            assert expected.got == expected.tokens, f"{request_id}: {expected}"
        assert expected.got == expected.tokens[: len(expected.got)], f"{request_id}: {expected}"

    def _propose(self, sampled: Mapping[str, list[int]]) -> None:
        """Hand in drafts, right or wrong, for the requests that have just sampled."""
        drafts = {}
        for request_id in sampled:
            expected = self.expected[request_id]
            if not self.num_drafts or expected.request.is_finished:
                continue
            truth = expected.tokens[len(expected.got) :][: self.num_drafts]
            drafts[request_id] = [
                t if self.rng.random() < self.draft_accuracy else self.rng.randrange(VOCAB_SIZE)
                for t in truth
            ]
        self.scheduler.update_draft_token_ids(drafts)

    # ---------------------------------------------------------------- checks

    def check_pressure(self, output: SchedulerOutput) -> None:
        """A step that preempts admits no request."""
        assert not output.scheduled_new_reqs
        assert not output.scheduled_cached_reqs.resumed_req_ids

    def check_plan(self, output: SchedulerOutput) -> None:
        """T-BUD: the plan keeps to the budget; and count what is interesting about it."""
        tokens = output.num_scheduled_tokens
        config = self.scheduler.scheduler_config
        assert all(n >= 1 for n in tokens.values())
        assert sum(tokens.values()) == output.total_num_scheduled_tokens
        assert output.total_num_scheduled_tokens <= config.max_num_batched_tokens
        assert not set(output.preempted_req_ids) & set(tokens)
        if output.preempted_req_ids:
            self.check_pressure(output)
        cached = output.scheduled_cached_reqs
        if config.long_prefill_token_threshold:
            assert max(tokens.values(), default=0) <= config.long_prefill_token_threshold
        hits = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self.counts["steps"] += 1
        self.counts["preempted"] += len(output.preempted_req_ids)
        self.counts["resumed"] += len(cached.resumed_req_ids)
        new = output.scheduled_new_reqs
        self.counts["prefix hits"] += sum(data.num_computed_tokens > 0 for data in new)
        self.counts["resumed hits"] += sum(hits[i] > 0 for i in cached.resumed_req_ids)
        self.counts["drafts"] += sum(map(len, output.scheduled_spec_decode_tokens.values()))
        partial = [i for i in tokens if not self._is_fully_computed(i)]
        self.counts["partial prefills"] += len(partial)
        if not config.enable_chunked_prefill and not config.long_prefill_token_threshold:
            assert not partial, "a prompt was split"
        self._note_contents()

    def _is_fully_computed(self, request_id: str) -> bool:
        request = self.scheduler.requests[request_id]
        return request.num_computed_tokens >= request.num_tokens

    def check_state(self) -> None:
        """T-CONS, T-REF and T-HASH, by bookkeeping of our own; then the scheduler's own check."""
        self._check_conservation()
        self._check_references()
        self._check_hashes()
        self.scheduler.check_integrity()

    def _check_conservation(self) -> None:
        """T-CONS: every request ever added is in exactly one place, and its status agrees."""
        scheduler = self.scheduler
        running = {request.request_id for request in scheduler.running}
        queued = [r.request_id for r in (*scheduler.waiting, *scheduler.skipped_waiting)]
        assert len(scheduler.running) == len(running) and len(queued) == len(set(queued))
        assert not running & set(queued)
        assert running | set(queued) == set(scheduler.requests)
        assert len(running) <= scheduler.scheduler_config.max_num_seqs
        for request_id, expected in self.expected.items():
            assert expected.request.is_finished == (request_id not in scheduler.requests)
            status = expected.request.status
            assert (status == RequestStatus.RUNNING) == (request_id in running)

    def _check_references(self) -> None:
        """T-REF: reference counts equal the tables; free and used blocks make up the pool."""
        manager = self.scheduler.kv_cache_manager
        running = {request.request_id for request in self.scheduler.running}
        assert set(manager.req_to_blocks) == running, "running requests hold the blocks"
        counted = Counter(i for request_id in running for i in manager.get_block_ids(request_id))
        free = [block.block_id for block in manager.block_pool.free_block_queue]
        assert sorted([*free, *counted]) == list(range(1, self.worker.num_gpu_blocks))
        assert len(free) == manager.num_free_blocks
        for block in manager.block_pool.blocks[1:]:
            assert block.ref_cnt == counted[block.block_id]

    def _check_hashes(self) -> None:
        """T-HASH: a hash names one prefix, and a block found by it holds just that, computed."""
        pool = self.scheduler.kv_cache_manager.block_pool
        if not self.scheduler.cache_config.enable_prefix_caching:
            assert not pool.cached_blocks
        for block_hash, blocks in pool.cached_blocks.items():
            _, last_row = self.contents[block_hash]
            for block_id, block in blocks.items():
                assert block.block_id == block_id and block.block_hash == block_hash
                found = self.worker.slots.get((block_id + 1) * self.block_size - 1)
                assert found == last_row, f"block {block_id} holds {found}, not {last_row}"

    def _note_contents(self) -> None:
        """Write down what each new block hash stands for; it may never stand for two things."""
        for request in self.scheduler.requests.values():
            expected = self.expected[request.request_id]
            for index in range(expected.num_hashes, len(request.block_hashes)):
                tokens = request.all_token_ids[: (index + 1) * self.block_size]
                prefix = namespace_digest(request.lora_name)
                for token_id in tokens:
                    prefix = extend_prefix(prefix, token_id)
                name = (request.lora_name, request.cache_salt, *tokens)
                content = (name, Row(tokens[-1], len(tokens) - 1, prefix))
                assert self.contents.setdefault(request.block_hashes[index], content) == content
            expected.num_hashes = len(request.block_hashes)

    def check_drained(self) -> None:
        """At the end all requests have finished and all blocks are free."""
        manager = self.scheduler.kv_cache_manager
        assert not self.scheduler.running and not self.scheduler.requests
        assert manager.num_free_blocks == self.worker.num_gpu_blocks - 1
        assert all(expected.request.is_finished for expected in self.expected.values())
