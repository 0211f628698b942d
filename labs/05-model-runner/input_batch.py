"""The persistent batch: the worker's copy of the running requests, one row each.

Rows stay where they are from step to step, so that a step costs only its changes: a row is
added when a request starts, gets a token and now and then a block, and goes when it ends. Rows
``0 .. num_reqs - 1`` are always dense when a step begins::

    row  request   token_ids              num_tokens  computed  block_table
    0    "a"       [5 8 2 7 . . . . ]     4           3         [3  0  0]
    1    "c"       [1 1 6 2 9 9 . . ]     6           5         [7  4  0]
    2    "b"       [4 4 4 4 4 4 4 4 ]     8           0         [1  2  0]

Source: vllm/v1/worker/gpu_input_batch.py#L91-L1109 (InputBatch) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.sampling_params import SamplingParams


@dataclass(slots=True)
class CachedRequestState:
    """What the worker remembers of a request, also while it is preempted and has no row.

    Source: vllm/v1/worker/gpu_input_batch.py#L33-L88 (CachedRequestState) @ v0.22.1
    """

    req_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_id: int | None
    output_token_ids: list[int] = field(default_factory=list)
    lora_name: str | None = None


@dataclass(slots=True)
class FlatBatch:
    """The scheduled tokens of R requests, T in all, laid end to end.

    ::

        num_scheduled    [1, 1, 3]
        req_indices      [0, 1, 2, 2, 2]        request of each token
        positions        [9, 4, 0, 1, 2]        its place in that request
        query_start_loc  [0, 1, 2, 5]           where each request begins; R + 1 entries
    """

    req_indices: NDArray[np.int64]
    positions: NDArray[np.int64]
    query_start_loc: NDArray[np.int32]


def flatten_tokens(num_scheduled: NDArray[np.int32], num_computed: NDArray[np.int32]) -> FlatBatch:
    """Lay the next ``num_scheduled[r]`` tokens after ``num_computed[r]`` of each request flat.

    Args:
        num_scheduled: ``[R]``, each at least 1.
        num_computed: ``[R]``, tokens each request had computed before this step.

    Returns:
        Three arrays, made without a loop over requests.

    Source: vllm/v1/worker/gpu_model_runner.py#L1863-L2181 (GPUModelRunner._prepare_inputs)
    @ v0.22.1
    """
    # TODO 05.3
    raise NotImplementedError(
        "TODO 05.3: write flatten_tokens in labs/05-model-runner/input_batch.py"
        " (phase 05, 02-mini-build.md#task-3)"
    )


def rows_to_sample(
    flat: FlatBatch, seq_lens: NDArray[np.int32], num_tokens: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which requests get a token in this step, and which hidden state decides each.

    A request is sampled if the step computes its last known token. A chunk that ends inside a
    prompt is not: the token that follows is known already.

    Args:
        flat: the flat batch of R requests.
        seq_lens: ``[R]``, tokens of each that are computed after this step.
        num_tokens: ``[R]``, tokens of each that are known.

    Returns:
        The requests to sample, ``[B]``, and for each the index of its last token among the T,
        ``[B]`` int64.

    Source: vllm/v1/worker/gpu_model_runner.py#L2001-L2009 (GPUModelRunner._prepare_inputs)
    @ v0.22.1. Difference: there all requests are sampled and unfinished prompts thrown away.
    """
    # TODO 05.4
    raise NotImplementedError(
        "TODO 05.4: write rows_to_sample in labs/05-model-runner/input_batch.py"
        " (phase 05, 02-mini-build.md#task-4)"
    )


class InputBatch:
    """Rows of running requests in arrays that live as long as the engine.

    Args:
        max_num_reqs: rows.
        max_model_len: tokens a row can hold.
        block_size: tokens per KV block; a row has room for ``ceil(max_model_len / block_size)``.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        max_blocks = cdiv(max_model_len, block_size)
        self.token_ids = np.zeros((max_num_reqs, max_model_len), dtype=np.int64)
        self.num_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.num_computed_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.block_table = np.zeros((max_num_reqs, max_blocks), dtype=np.int32)
        self.num_blocks = np.zeros(max_num_reqs, dtype=np.int32)
        self.rows: list[CachedRequestState | None] = []
        """The request in each row; None is a hole that :meth:`condense` has yet to close."""
        self.req_id_to_row: dict[str, int] = {}

    @property
    def num_reqs(self) -> int:
        return len(self.req_id_to_row)

    def add_request(
        self, state: CachedRequestState, block_ids: Sequence[int], num_computed_tokens: int
    ) -> int:
        """Give a request a row and fill it: tokens, counts, block table.

        A request that was preempted comes back with its output, so the row holds both. Block ids
        that an earlier request left in the row are zeroed.

        Args:
            state: what is known of the request; its lists are copied into the row.
            block_ids: its whole block table.
            num_computed_tokens: how many of its tokens have keys and values already.

        Returns:
            The row.

        Raises:
            ValueError: if all rows are taken.

        Source: vllm/v1/worker/gpu_input_batch.py#L335-L481 (InputBatch.add_request) @ v0.22.1
        """
        # TODO 05.1
        raise NotImplementedError(
            "TODO 05.1: write InputBatch.add_request in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-1)"
        )

    def _take_row(self, state: CachedRequestState) -> int:
        """Enter a request into ``rows`` and ``req_id_to_row``: in the first hole if there is one,
        else in a new row at the end.

        Returns:
            The row.

        Raises:
            ValueError: if all rows are taken, with their number; nothing has changed then.

        Source: vllm/v1/worker/gpu_input_batch.py#L309-L333 (InputBatch._register_add_request)
        @ v0.22.1
        """
        # TODO 05.1
        raise NotImplementedError(
            "TODO 05.1: write InputBatch._take_row in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-1)"
        )

    def append_blocks(self, req_id: str, block_ids: Sequence[int]) -> None:
        """Append to a request's block table, behind the ``num_blocks`` that it has.

        Source: vllm/v1/worker/block_table.py#L102-L118 (BlockTable.append_row) @ v0.22.1
        """
        # TODO 05.1
        raise NotImplementedError(
            "TODO 05.1: write InputBatch.append_blocks in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-1)"
        )

    def remove_request(self, req_id: str) -> None:
        """Leave a hole (None) where the request was; one that has no row is ignored.

        The arrays keep their contents: no step reads a row without a request, and the next request
        overwrites it.

        Source: vllm/v1/worker/gpu_input_batch.py#L510-L564 (InputBatch.remove_request) @ v0.22.1
        """
        # TODO 05.2
        raise NotImplementedError(
            "TODO 05.2: write InputBatch.remove_request in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-2)"
        )

    def condense(self) -> None:
        """Close all holes: the last rows move into them, by :meth:`_move_row`, until all is dense.

        ::

            a  –  c  –  e      →      a  e  c

        A row moves at most once, and only as many rows move as there are holes. ``rows`` is then
        as long as there are requests.

        Source: vllm/v1/worker/gpu_input_batch.py#L683-L809 (InputBatch.condense) @ v0.22.1
        """
        # TODO 05.2
        raise NotImplementedError(
            "TODO 05.2: write InputBatch.condense in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-2)"
        )

    def _move_row(self, source: int, target: int) -> None:
        """Move a request with all that belongs to it from row ``source`` to the hole ``target``.

        All that belongs to it: its entries in ``rows`` and ``req_id_to_row``, and its row of every
        array. ``source`` is a hole afterwards.

        Source: vllm/v1/worker/gpu_input_batch.py#L720-L757 (InputBatch.condense) @ v0.22.1
        """
        # TODO 05.2
        raise NotImplementedError(
            "TODO 05.2: write InputBatch._move_row in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-2)"
        )

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Append one sampled token to each of ``rows``, in the array and in the request's state.

        The array feeds the next step; the state survives a preemption.

        Args:
            rows: ``[B]``, distinct.
            token_ids: ``[B]``, the token of each of them.

        Source: vllm/v1/worker/gpu_model_runner.py#L3604-L3635
        (GPUModelRunner._bookkeeping_sync) @ v0.22.1
        """
        # TODO 05.4
        raise NotImplementedError(
            "TODO 05.4: write InputBatch.append_tokens in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-4)"
        )

    def slot_mapping(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The cache slot of each token: ``block_table[row][position // size] * size + offset``.

        One entry of the table is read for each token; whole rows are not copied.

        Args:
            rows: ``[T]``, the row of each token.
            positions: ``[T]``, its position in its request.

        Returns:
            ``[T]`` int64.

        Source: vllm/v1/worker/block_table.py#L141-L164 (BlockTable.compute_slot_mapping)
        @ v0.22.1
        """
        # TODO 05.4
        raise NotImplementedError(
            "TODO 05.4: write InputBatch.slot_mapping in labs/05-model-runner/input_batch.py"
            " (phase 05, 02-mini-build.md#task-4)"
        )


def decodes_first(num_scheduled: Iterable[int]) -> NDArray[np.int64]:
    """The order that puts requests with one token before all others, and else keeps it.

    Attention can then treat the decodes as one dense batch.

    Source: vllm/v1/attention/backends/utils.py#L632-L709
    (reorder_batch_to_split_decodes_and_prefills) @ v0.22.1
    """
    # TODO 05.3
    raise NotImplementedError(
        "TODO 05.3: write decodes_first in labs/05-model-runner/input_batch.py"
        " (phase 05, 02-mini-build.md#task-3)"
    )
