"""A request inside the engine: its tokens, its progress, its status.

Source: vllm/v1/request.py#L59-L352 (Request, RequestStatus) @ v0.22.1
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.errors import RequestFailure
from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.pooling_params import PoolingParams


class BlockHasher(Protocol):
    """Computes the hashes of a request's full blocks; implemented in ``core/block_hash.py``."""

    block_size: int

    def __call__(self, request: Request) -> list[bytes]:
        """The hashes of full blocks that ``request.block_hashes`` does not hold yet, in order."""


class RequestStatus(enum.IntEnum):
    """The status of a request. The order matters: all values after PREEMPTED are finished.

    ::

        WAITING ─────────────► RUNNING ──────► FINISHED_*
         ▲   │                 │     ▲
         │   ▼ (not ready)     ▼     │
        WAITING_FOR_* ◄───── PREEMPTED        any unfinished status may finish (abort)

    Source: vllm/v1/request.py#L315-L338 (RequestStatus) @ v0.22.1
    """

    WAITING = enum.auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_IGNORED = enum.auto()
    FINISHED_ERROR = enum.auto()
    FINISHED_REPETITION = enum.auto()

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        """Whether ``status`` is one of the FINISHED ones: a single comparison."""
        return status > RequestStatus.PREEMPTED

    @staticmethod
    def is_blocked(status: RequestStatus) -> bool:
        """Whether ``status`` waits for something other than its turn (the WAITING_FOR ones)."""
        return RequestStatus.WAITING < status < RequestStatus.RUNNING

    @staticmethod
    def get_finished_reason(status: RequestStatus) -> str | None:
        """The OpenAI-style reason a client sees ("stop", "length", ...); None while unfinished."""
        return _FINISHED_REASONS.get(status)

    @staticmethod
    def can_become(old: RequestStatus, new: RequestStatus) -> bool:
        """Whether a request in status ``old`` may change to ``new`` (the arrows above).

        - a finished request never changes again;
        - an unfinished one may always finish;
        - WAITING and PREEMPTED may start RUNNING, or become blocked;
        - a blocked request may only go to WAITING; only RUNNING may become PREEMPTED.
        """
        if RequestStatus.is_finished(old):
            return False
        if RequestStatus.is_finished(new):
            return True
        if RequestStatus.is_blocked(old):
            return new == RequestStatus.WAITING
        if old == RequestStatus.RUNNING:
            return new == RequestStatus.PREEMPTED
        return new == RequestStatus.RUNNING or RequestStatus.is_blocked(new)


_FINISHED_REASONS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_IGNORED: "length",
    RequestStatus.FINISHED_ERROR: "error",
    RequestStatus.FINISHED_REPETITION: "repetition",
}


class Request:
    """A prompt, the tokens generated so far, and how many of both have been computed.

    The scheduler does not distinguish prefill and decode. It schedules the tokens of the gap::

        all_token_ids   | prompt ............ | output ... |
        spec_token_ids                                      | drafts |
                        |<------------ num_tokens --------->|
                        |<----------- num_tokens_with_spec --------->|
                        |<-- num_computed_tokens -->|<---- gap ----->|

    Args:
        request_id: unique among unfinished requests.
        prompt_token_ids: the prompt; copied.
        sampling_params: its limits and stop rules; one for greedy sampling by default.
        priority: smaller runs first under the "priority" policy.
        arrival_time: seconds; breaks ties of priority. None: now.
        eos_token_id: the token that ends generation, unless ``sampling_params.ignore_eos``.
        cache_salt: requests share cached blocks only with requests of the same salt.
        lora_name: adapter the request uses; cached blocks are shared per adapter.
        mm_hashes: ``(offset, length, content hash)`` of each image placeholder in the prompt.
        mm_features: the same images with what an encoder needs; ``mm_hashes`` then follows.
        pooling_params: of a request to a pooling model, which ends with its prompt; else None.

    Source: vllm/v1/request.py#L59-L312 (Request) @ v0.22.1
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        sampling_params: SamplingParams | None = None,
        priority: int = 0,
        arrival_time: float | None = None,
        eos_token_id: int | None = None,
        cache_salt: str | None = None,
        lora_name: str | None = None,
        mm_hashes: Iterable[tuple[int, int, str]] = (),
        mm_features: Iterable[MultiModalFeatureSpec] | None = None,
        pooling_params: PoolingParams | None = None,
    ) -> None:
        self.request_id = request_id
        self.sampling_params = sampling_params or SamplingParams(temperature=0.0)
        self.pooling_params = pooling_params
        self.priority = priority
        self.arrival_time = time.time() if arrival_time is None else arrival_time
        self.eos_token_id = None if self.sampling_params.ignore_eos else eos_token_id
        self.stop_token_ids = frozenset(self.sampling_params.stop_token_ids or ())
        self.cache_salt = cache_salt
        self.lora_name = lora_name
        self.mm_features = sorted(mm_features or (), key=lambda image: image.mm_position.offset)
        places = [(image.mm_position, image.identifier) for image in self.mm_features]
        self.mm_hashes = sorted(mm_hashes) or [(p.offset, p.length, name) for p, name in places]

        self.prompt_token_ids = list(prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.all_token_ids = list(self.prompt_token_ids)
        self.spec_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.num_external_tokens = 0
        """Tokens of the first admission that the prefix cache, or a KV connector, supplied."""

        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        """The stop token that ended it, or a ``StopCause`` of ``core/scheduler_output.py``."""
        self.failure: RequestFailure | None = None
        """For FINISHED_ERROR: the error and its cause."""

        extra_args = self.sampling_params.extra_args or {}
        params = extra_args.get("kv_transfer_params")
        self.kv_transfer_params: dict[str, Any] | None = dict(params) if params else None
        """Parameters for the KV connector, which may change them."""
        self.structured_output_request: Any = None
        """The request's constraint and its grammar, of
        :class:`~mini_vllm.structured_output.request.StructuredOutputRequest`, if it has one."""

        self.block_hashes: list[bytes] = []
        self._block_hasher: BlockHasher | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens that are certain: prompt and output."""
        return len(self.all_token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """Tokens to compute in the end: prompt, output and unverified drafts."""
        return len(self.all_token_ids) + len(self.spec_token_ids)

    @property
    def num_output_placeholders(self) -> int:
        """Tokens that steps on their way will sample: how many is known, but not which.

        A request that has computed its last known token has been sampled from; each further token
        that was scheduled stands for one more::

            all_token_ids          | 7 1 5 2 |                        num_tokens 4
            computed or scheduled  | 7 1 5 2 | ? |                    num_computed_tokens 5
            sampled                          | ? | ? |                2 placeholders

        0 when a step is planned after the step before it was taken in: then the newest token is
        known, and not computed. Upstream counts them up and down in a field.

        Source: vllm/v1/core/sched/async_scheduler.py#L18-L61 (AsyncScheduler) @ v0.22.1
        """
        return max(self.num_computed_tokens - len(self.all_token_ids) + 1, 0)

    @property
    def has_encoder_inputs(self) -> bool:
        """Whether the prompt has images."""
        return bool(self.mm_features)

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Rows that the encoder makes of an image of the prompt."""
        return self.mm_features[input_id].mm_position.get_num_embeds()

    @property
    def max_tokens(self) -> int | None:
        """Most output tokens; None: as many as the model's length allows."""
        return self.sampling_params.max_tokens

    @property
    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    @property
    def skip_reading_prefix_cache(self) -> bool:
        """Prompt logprobs need the logits of every prompt token, so nothing may be skipped; nor
        where all hidden states are pooled."""
        if self.pooling_params is not None:
            return bool(self.pooling_params.skip_reading_prefix_cache)
        params = self.sampling_params
        return bool(params.skip_reading_prefix_cache) or params.prompt_logprobs is not None

    def append_output_token_ids(self, token_ids: int | list[int]) -> None:
        """Append one sampled token, or several, to the output.

        Both lists grow in place (``output_token_ids`` and ``all_token_ids``): a copy for each
        token would cost as much as the request is long. Every block that this fills gets its hash
        (:meth:`update_block_hashes`).

        Source: vllm/v1/request.py#L216-L227 (Request.append_output_token_ids) @ v0.22.1
        """
        if isinstance(token_ids, int):
            self.output_token_ids.append(token_ids)
            self.all_token_ids.append(token_ids)
        else:
            self.output_token_ids.extend(token_ids)
            self.all_token_ids.extend(token_ids)
        self.update_block_hashes()

    def transition_to(self, status: RequestStatus) -> None:
        """Change the status.

        Raises:
            ValueError: if :meth:`RequestStatus.can_become` forbids it; nothing is changed then.
        """
        if not RequestStatus.can_become(self.status, status):
            raise ValueError(f"request {self.request_id!r} cannot go {self.status} -> {status}")
        self.status = status

    def set_block_hasher(self, block_hasher: BlockHasher) -> None:
        """Hash full blocks from now on with ``block_hasher``, starting with those of the prompt."""
        self._block_hasher = block_hasher
        self.block_hashes.clear()
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Append the hashes of the blocks that have become full."""
        hasher = self._block_hasher
        if hasher is None:
            return
        num_full_blocks = len(self.all_token_ids) // hasher.block_size
        if num_full_blocks > len(self.block_hashes):  # rare while decoding
            self.block_hashes.extend(hasher(self))

    def __lt__(self, other: Request) -> bool:
        """Order under the "priority" policy: priority, then arrival, then id.

        Source: vllm/v1/request.py#L301-L312 (Request.__lt__) @ v0.22.1
        """
        mine = (self.priority, self.arrival_time, self.request_id)
        return mine < (other.priority, other.arrival_time, other.request_id)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status}, computed {self.num_computed_tokens} of "
            f"{self.num_prompt_tokens}+{self.num_output_tokens} tokens)"
        )
