"""Grammars beside the scheduler: compiled while requests wait, advanced while they run.

::

    request_added    submit the compilation; the request waits for its grammar
    is_ready         is it compiled? then the request may be scheduled
    failures         it could not be compiled: only this request ends, with the reason
    grammar_bitmask  while the model runs: which tokens may come next, one row per position
    step_done        cut tokens that were sampled after the end of the grammar
    tokens_accepted  advance the grammar over the sampled tokens
    limit_drafts     cut drafts where the grammar would refuse them
    request_freed    forget the request

The state of a grammar belongs to the request, not to its KV blocks: preemption, recomputation and
prefix cache hits do not change it.

Source: vllm/v1/structured_output/__init__.py#L36-L374 (StructuredOutputManager) @ v0.22.1
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property

import numpy as np

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler_output import (
    PADDING_DRAFT,
    GrammarOutput,
    ModelRunnerOutput,
    SchedulerOutput,
    StopCause,
)
from mini_vllm.errors import Fault, RequestFailure
from mini_vllm.reasoning import Beginning, last_turn, reasoning_format
from mini_vllm.request import Request, RequestStatus
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.choose import backends_for, make_backend
from mini_vllm.structured_output.pushdown import LeftRecursion
from mini_vllm.structured_output.request import StructuredOutputRequest
from mini_vllm.structured_output.sleeping import Anything, EndOfReasoning, SleepingGrammar, has_form
from mini_vllm.structured_output.structural_tag import NeedsXgrammar
from mini_vllm.structured_output.token_index import BITS, TokenTable, set_bits


class StructuredOutputManager(SchedulerExtension):
    """Compiles grammars in threads, and keeps the grammar state of each request.

    Args:
        config: which backend, and how it writes JSON.
        load_tokens: makes the vocabulary; called when the first constraint arrives.
        stop_token_ids: all tokens that end an output of the model.
        drafts_are_drawn: whether drafts are sampled from a distribution q, which their verification
            uses; see `limit_drafts`.
    """

    def __init__(
        self,
        config: StructuredOutputsConfig,
        load_tokens: Callable[[], TokenTable],
        stop_token_ids: Sequence[int],
        drafts_are_drawn: bool = False,
    ) -> None:
        self.config = config
        self.stop_token_ids = list(stop_token_ids)
        self.drafts_are_drawn = drafts_are_drawn
        self.reasoning = None
        if config.reasoning_parser and not config.enable_in_reasoning:
            self.reasoning = reasoning_format(config.reasoning_parser)
        self._load_tokens = load_tokens
        self._tokens: TokenTable | None = None
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._lock = threading.RLock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._compiling: dict[StructuredOutputKey, Future[StructuredOutputGrammar]] = {}
        self.requests: dict[str, Request] = {}
        """Unfinished requests with a constraint."""
        self._broken: dict[str, str] = {}
        """Requests whose grammar cannot continue, with its error message."""
        self._grammars: dict[str, StructuredOutputGrammar] = {}
        """Compiled grammars by request id: a cache, because each step looks them up many times."""

    # ------------------------------------------------------------ vocabulary and backends
    @property
    def tokens(self) -> TokenTable:
        with self._lock:
            if self._tokens is None:
                self._tokens = self._load_tokens()
            return self._tokens

    @cached_property
    def _num_words(self) -> int:
        return self.tokens.num_words

    @cached_property
    def _no_stops(self) -> np.ndarray:
        """[W] int32: every token except those that end an output."""
        words = np.full(self.tokens.num_words, -1, dtype=np.int32)
        set_bits(words, self.stop_token_ids, allowed=False)
        return words

    @property
    def backend(self) -> StructuredOutputBackend:
        """The backend of requests that need no other."""
        return self.backend_named(
            "native" if self.config.backend == "auto" else self.config.backend
        )

    def backend_named(self, name: str) -> StructuredOutputBackend:
        """The backend of that name, made when it is first needed."""
        with self._lock:  # threads of the pool may ask for it at the same time
            if name not in self._backends:
                self._backends[name] = make_backend(
                    name, self.tokens, self.stop_token_ids, self.config
                )
            return self._backends[name]

    def clear_backend(self) -> None:
        """Free the compiled grammars and end the threads."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        for future in list(self._compiling.values()):
            future.cancel()
        for backend in self._backends.values():
            backend.destroy()
        self._backends.clear()

    # ------------------------------------------------------------ waiting for the grammar
    def request_added(self, request: Request) -> None:
        """Start the compilation, and let the request wait for it.

        A request that is added again after an interrupted step keeps its grammar. The grammar is
        reset and advanced over the output so far.
        """
        constraint = request.structured_output_request
        if constraint is None or constraint.future.cancelled():
            constraint = StructuredOutputRequest.from_sampling_params(request.sampling_params)
        if constraint is None:
            return
        request.structured_output_request = constraint
        if self.reasoning is not None:
            constraint.wrap = functools.partial(self._behind_reasoning, request)
        self.requests[request.request_id] = request
        self._grammars.pop(request.request_id, None)
        if constraint.grammar is not None:
            constraint.grammar.reset()
            constraint.grammar.accept_tokens(request.request_id, request.output_token_ids)
        self.grammar_init(request)
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR

    def _behind_reasoning(
        self, request: Request, grammar: StructuredOutputGrammar
    ) -> StructuredOutputGrammar:
        """The grammar, inactive until the reasoning ends, unless the prompt already ended it."""
        form, constraint = self.reasoning, request.structured_output_request
        assert form is not None
        has_ended = constraint.params and constraint.params.reasoning_ended
        if has_ended is None:
            tokens = self.tokens
            turn = last_turn(request.prompt_token_ids, tokens.texts, tokens.special, form)
            has_ended = form.beginning(turn, form.is_default) is not Beginning.INSIDE
        if has_ended:
            return grammar
        budget = request.sampling_params.thinking_token_budget
        return SleepingGrammar(grammar, self._end_of_reasoning, budget)

    @cached_property
    def _end_of_reasoning(self) -> EndOfReasoning:
        assert self.reasoning is not None
        return EndOfReasoning(self.reasoning.end.encode(), self.tokens)

    def grammar_init(self, request: Request) -> None:
        """Submit the compilation of a request's grammar to the pool. Does not wait for it.

        There is one thread for small grammars and one for large ones, so a large one delays only
        other large ones. More threads would not help: they share Python's lock with the engine's
        steps. The thread for small grammars reads each constraint and finds out if it is large.

        Equal constraints that arrive together are compiled once: the second starts when the first
        is done, and finds the result in the backend's cache. Each request still has its own
        grammar object, because each has its own state.

        Source: vllm/v1/structured_output/__init__.py#L115-L171
        (StructuredOutputManager.grammar_init) @ v0.22.1
        """
        constraint = request.structured_output_request
        if constraint is None or constraint.future is not None:
            return
        if not self._pools:
            self._pools = {
                name: ThreadPoolExecutor(1, thread_name_prefix=f"{name} grammar")
                for name in ("small", "large")
            }
        key = constraint.structured_output_key
        earlier, future = self._compiling.get(key), Future[StructuredOutputGrammar]()
        constraint.submitted = time.monotonic()
        constraint.future = future
        if earlier is None and (grammar := self._compiled(key)) is not None:
            future.set_result(grammar)
            return
        self._compiling[key] = future
        future.add_done_callback(lambda done: self._forget(key, done))
        if earlier is None:
            self._submit("small", key, future)
        else:
            earlier.add_done_callback(lambda _: self._submit("small", key, future))

    def _compiled(self, key: StructuredOutputKey) -> StructuredOutputGrammar | None:
        """A grammar from the backend's cache: its request does not have to wait a step for it."""
        if key[0] is StructuredOutputOptions.ANYTHING:
            return Anything()
        (name, *_) = backends_for(self.config, key[0])
        backend = self._backends.get(name)
        return None if backend is None else backend.compiled(*key)

    def _submit(
        self, pool: str, key: StructuredOutputKey, future: Future[StructuredOutputGrammar]
    ) -> None:
        try:
            self._pools[pool].submit(self._compile, pool, key, future)
        except (KeyError, RuntimeError):  # the engine has been closed meanwhile
            future.cancel()

    def _compile(
        self, pool: str, key: StructuredOutputKey, future: Future[StructuredOutputGrammar]
    ) -> None:
        """In a thread: compile, unless no request waits any more or the other thread must do it."""
        try:
            if future.cancelled():
                return
            names = backends_for(self.config, key[0])
            if pool == "small" and self.backend_named(names[0]).is_large(*key):
                self._submit("large", key, future)
                return
            if not future.set_running_or_notify_cancel():
                return
            future.set_result(self._compile_with(names, key))
        except Exception as error:  # only this request fails: its future holds the error
            if future.running() or future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _compile_with(
        self, names: Sequence[str], key: StructuredOutputKey
    ) -> StructuredOutputGrammar:
        for name in names[:-1]:
            try:
                return self.backend_named(name).compile_grammar(*key)
            except (LeftRecursion, NeedsXgrammar):
                continue
        return self.backend_named(names[-1]).compile_grammar(*key)

    def _forget(self, key: StructuredOutputKey, done: Future[StructuredOutputGrammar]) -> None:
        if self._compiling.get(key) is done:
            del self._compiling[key]

    def is_ready(self, request: Request) -> bool:
        """Whether a request that waits for its grammar has it. Never waits itself.

        The compilation is `request.structured_output_request.future`; where one of the two is None,
        nothing is ready. `done()` is checked before the result is read: `result()` would stand
        still, and with it every other request. A compilation that failed or was cancelled is not
        ready either: its exception belongs to this request, and is told by `failures`.
        """
        constraint = request.structured_output_request
        if constraint is None or constraint.future is None or not constraint.future.done():
            return False
        return not constraint.future.cancelled() and constraint.future.exception() is None

    def failures(self) -> dict[str, RequestFailure]:
        """The reasons why waiting requests can never become ready."""
        reasons = {request_id: self._take_broken(request_id) for request_id in [*self._broken]}
        for request_id, request in self.requests.items():
            constraint = request.structured_output_request
            if constraint is not None and constraint.failure is not None:
                reasons[request_id] = constraint.failure
        return reasons

    def _take_broken(self, request_id: str) -> RequestFailure:
        """The error of a request whose grammar cannot continue: the constraint is at fault."""
        return RequestFailure(self._broken.pop(request_id), "structured_outputs", Fault.REQUEST)

    def wait(self, timeout: float) -> None:
        """Block until some grammar is compiled; for a step in which no request could run."""
        pending = [
            request.structured_output_request.future
            for request in self.requests.values()
            if request.structured_output_request is not None
            and request.structured_output_request.future is not None
            and not request.structured_output_request.future.done()
        ]
        if pending:
            wait(pending, timeout, return_when="FIRST_COMPLETED")

    # ------------------------------------------------------------ masks
    def get_grammar_output(self, plan: SchedulerOutput) -> GrammarOutput | None:
        """The masks of a step: for the requests with a constraint that sample a token in it.

        A chunk of a prompt that is not the last one gets no mask. Filled while the model runs.

        Source: vllm/v1/core/sched/scheduler.py#L1259-L1281 (Scheduler.get_grammar_bitmask)
        @ v0.22.1
        """
        if not self.requests:
            return None
        drafts = plan.scheduled_spec_decode_tokens
        ids = [
            request_id
            for request_id in plan.num_scheduled_tokens
            if (request := self.requests.get(request_id)) is not None
            # `schedule` has already counted this step's tokens as computed.
            and request.num_computed_tokens >= request.num_tokens
        ]
        if not ids:
            return None
        words = self.grammar_bitmask(self.requests, ids, drafts)
        rows, first = {}, 0
        for request_id in ids:
            count = 1 + len(drafts.get(request_id, ()))
            rows[request_id] = (first, count)
            first += count
        return GrammarOutput(rows, words.astype("<i4", copy=False).tobytes())

    def grammar_bitmask(
        self,
        requests: Mapping[str, Request],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: Mapping[str, Sequence[int]],
    ) -> np.ndarray:
        """The rows of all requests in order: k + 1 for a request with k drafts; see `fill_rows`.

        Returns:
            [rows, ceil(V / 32)] int32.

        Source: vllm/v1/structured_output/__init__.py#L204-L300
        (StructuredOutputManager.grammar_bitmask) @ v0.22.1
        """
        drafts_of = [scheduled_spec_decode_tokens.get(i, ()) for i in structured_output_request_ids]
        num_rows = sum(1 + len(drafts) for drafts in drafts_of)
        words = np.full((num_rows, self._num_words), -1, dtype=np.int32)
        first = 0
        for request_id, drafts in zip(structured_output_request_ids, drafts_of, strict=True):
            request = requests[request_id]
            kept = None if drafts else self._kept_row(request, self._grammar(request))
            if kept is not None:
                words[first] = kept
            else:
                self.fill_rows(request, drafts, words[first : first + 1 + len(drafts)])
            first += 1 + len(drafts)
        return words

    def _kept_row(self, request: Request, grammar: StructuredOutputGrammar) -> np.ndarray | None:
        """The finished row of the grammar's state, if this or another request has made it before.

        For example, all requests that are inside a JSON string share one row.
        """
        rows = grammar.kept_rows
        if rows is None or grammar.is_terminated():
            return None
        return rows.get(_row_key(request, grammar))

    def fill_rows(self, request: Request, drafts: Sequence[int], words: np.ndarray) -> None:
        """Fill one request's rows: for k drafts the k + 1 places that the model is about to decide.

        ::

            drafts  d1 d2      row 0   what may stand where d1 stands
                               row 1   what may follow d1            (the grammar has advanced)
                               row 2   what may follow d1 d2: the bonus token

        Then everything that was advanced over is taken back: whether a draft is kept is not known
        before the model has spoken. Behind a draft that the grammar refuses, and behind
        PADDING_DRAFT, rows stay as they came (all ones): their tokens are thrown away anyway.
        A ValueError of the grammar goes to `self._broken`, and drafts are taken back all the same;
        any other error is the engine's, and raised on.

        Args:
            words: [k + 1, ceil(V / 32)] int32, all ones; `fill_row` fills the row of an index.
        """
        grammar = self._grammar(request)
        num_accepted = 0
        try:
            for index in range(len(words)):
                self.fill_row(request, grammar, words, index)
                if index == len(drafts) or drafts[index] == PADDING_DRAFT:
                    break
                if not grammar.accept_tokens(request.request_id, [drafts[index]]):
                    break
                num_accepted += 1
        except ValueError as error:  # of this request alone
            self._broken[request.request_id] = str(error)
        grammar.rollback(num_accepted)

    def fill_row(
        self, request: Request, grammar: StructuredOutputGrammar, words: np.ndarray, index: int
    ) -> None:
        """Fill one row, with the request's settings for ends.

        `ignore_eos` forbids the end while another token may follow. Stop tokens of the request
        that are not text are legal where the text may end. After drafts that complete the text
        the row stays all ones, and `step_done` cuts the token that is sampled there.
        """
        if grammar.is_terminated() or (index and self._is_stuck(request, grammar, index)):
            return
        kept = self._kept_row(request, grammar)
        if kept is not None:
            words[index] = kept
            return
        grammar.fill_bitmask(words, index)
        if has_form(grammar):
            self._settle_ends(request, words[index])
        if grammar.kept_rows is not None:
            grammar.kept_rows.keep(_row_key(request, grammar), words[index])

    def _settle_ends(self, request: Request, row: np.ndarray) -> None:
        """Allow or forbid, in a row of the grammar, the tokens that end the text."""
        if not _may_end(row, self.stop_token_ids):
            return
        if request.stop_token_ids:
            set_bits(row, [t for t in request.stop_token_ids if not self.tokens.texts[t]])
        if request.sampling_params.ignore_eos:
            others = row & self._no_stops
            if np.count_nonzero(others):  # any() takes longer
                row[:] = others

    # ------------------------------------------------------------ following
    def step_done(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        """Cut the tokens after the grammar's end, for requests that cannot sample a stop token.

        A step with drafts always samples one more token after them, even if the accepted drafts
        complete the text. It must be removed before the stop rules count tokens.
        """
        for request_id in plan.scheduled_spec_decode_tokens.keys() & self.requests.keys():
            request, token_ids = self.requests[request_id], result.sampled_token_ids.get(request_id)
            if not token_ids or request_id in self._broken:
                continue
            grammar, num_accepted = self._grammar(request), 0
            for token_id in token_ids[:-1]:
                if not grammar.accept_tokens(request_id, [token_id]):
                    break
                num_accepted += 1
                if self._is_stuck(request, grammar, num_accepted):
                    del token_ids[num_accepted:]
                    break
            grammar.rollback(num_accepted)
        return set()

    def tokens_accepted(
        self, request_id: str, token_ids: list[int]
    ) -> RequestFailure | str | RequestStatus | None:
        """Advance over sampled tokens; called after the stop rules, which may have cut them.

        Returns:
            FINISHED_STOPPED if the grammar is at its end but the request would continue, as with
            `ignore_eos` or `min_tokens`; the reason if a token was not legal; else None.
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request_id in self._broken:
            return self._take_broken(request_id)
        grammar = self._grammar(request)
        stops = request.stop_token_ids
        ends = [t for t in token_ids if t in stops] if stops else []
        text = token_ids[: token_ids.index(ends[0])] if ends else token_ids
        if not grammar.accept_tokens(request_id, text):
            return f"the grammar does not allow the tokens {token_ids}"
        if grammar.is_terminated() or (not ends and self._is_stuck(request, grammar)):
            request.stop_reason = StopCause.GRAMMAR_END
            return RequestStatus.FINISHED_STOPPED
        return None

    def _is_stuck(
        self, request: Request, grammar: StructuredOutputGrammar, num_more: int = 0
    ) -> bool:
        """Whether only a stop token may follow, but the sampler may not draw one, or the model has
        none.

        Args:
            num_more: tokens that the grammar has accepted beyond the request's output.
        """
        params = request.sampling_params
        has_end = bool(self.stop_token_ids) and not params.ignore_eos
        if has_end and request.num_output_tokens + num_more >= params.min_tokens:
            return False
        if grammar.is_terminated():
            return True
        if (must_end := grammar.must_end()) is not None:
            return must_end
        words = np.zeros((1, self.tokens.num_words), dtype=np.int32)
        grammar.fill_bitmask(words, 0)
        return not np.count_nonzero(words[0] & self._no_stops)

    def limit_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
        """The longest prefix that the grammar would accept.

        If drafts were sampled, the first illegal one is kept, too, and is rejected because its
        probability in p is 0. Without it, its position would be sampled from p. But a rejected
        draft must be replaced from the distribution max(p - q, 0), or the output is biased
        towards q.
        """
        if request.structured_output_request is None:
            return token_ids
        legal = self._grammar(request).validate_tokens(token_ids)
        return token_ids[: len(legal) + self.drafts_are_drawn]

    def request_freed(self, request: Request) -> None:
        """Forget a finished request, and cancel its compilation if it has not started."""
        self.requests.pop(request.request_id, None)
        self._broken.pop(request.request_id, None)
        self._grammars.pop(request.request_id, None)
        constraint = request.structured_output_request
        if constraint is not None and constraint.future is not None:
            constraint.future.cancel()

    def reset(self) -> None:
        """Forget all requests; the engine adds those that continue again."""
        self.requests.clear()
        self._broken.clear()
        self._grammars.clear()

    def _grammar(self, request: Request) -> StructuredOutputGrammar:
        grammar = self._grammars.get(request.request_id)
        if grammar is None:
            grammar = request.structured_output_request.grammar
            assert grammar is not None, request.request_id
            self._grammars[request.request_id] = grammar
        return grammar


def _row_key(request: Request, grammar: StructuredOutputGrammar) -> Hashable:
    """Everything that a row depends on: the grammar's state and the request's settings for ends."""
    return grammar.state, request.stop_token_ids, request.sampling_params.ignore_eos


def _may_end(row: np.ndarray, stop_token_ids: Sequence[int]) -> bool:
    return any(int(row[t // BITS]) >> (t % BITS) & 1 for t in stop_token_ids)
