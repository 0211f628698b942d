"""CUDA graphs: record the launches of a decode step once, then start them all with one call.

A decode step of a small model is hundreds of kernels of a few microseconds each, and Python needs
longer to launch one than the GPU to run it. A graph replays the recorded launches without Python.
The price: it repeats them exactly, with the same shapes and the same addresses. So

    shapes      a step of R requests is padded to the next *bucket*, for which a graph exists
    addresses   its inputs are copied into tensors that never move, and its output is read from one

::

    R = 3, bucket 4      input_ids   slot_mapping   seq_lens
    request a            17          36             5
    request b            4           81             2
    request c            99          12             13
    padding              (anything)  -1             0         stores nothing, attends to nothing

Only steps in which every request has one new token are replayed; prefills do enough work for each
launch to hide it.

Source: vllm/v1/worker/gpu_model_runner.py#L6373-L6461 (GPUModelRunner.capture_model) @ v0.22.1
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata

LARGEST_BUCKET = 512
"""Beyond it a step is long enough to hide its launches."""

Forward = Callable[[Tensor, Tensor, AttentionMetadata], Tensor]
"""``(input_ids [B], positions [B], metadata)`` to hidden states ``[B, H]``."""

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Runs a function once and returns ``(replay, output)``: ``replay()`` repeats what it did and
leaves the result in the same tensor ``output``."""


def make_buckets(max_num_reqs: int) -> list[int]:
    """Batch sizes to record a graph for, ascending: 1, 2, 4, then multiples of 8, then of 16.

    Small batches are padded little in absolute terms, large ones little in relative terms. The
    last bucket is ``max_num_reqs`` itself, so that every decode step has one, but at most
    ``LARGEST_BUCKET``.

    Source: vllm/config/vllm.py#L1597-L1767 (VllmConfig._set_cudagraph_sizes) @ v0.22.1
    """
    # TODO 07.1
    raise NotImplementedError(
        "TODO 07.1: write make_buckets in labs/07-going-fast/cuda_graphs.py"
        " (phase 07, 02-mini-build.md#task-1)"
    )


def choose_bucket(num_reqs: int, buckets: Sequence[int]) -> int | None:
    """The smallest of the ascending ``buckets`` that holds ``num_reqs``, None if none does.

    Source: vllm/v1/cudagraph_dispatcher.py#L239-L328 (CudagraphDispatcher.dispatch) @ v0.22.1
    """
    # TODO 07.1
    raise NotImplementedError(
        "TODO 07.1: write choose_bucket in labs/07-going-fast/cuda_graphs.py"
        " (phase 07, 02-mini-build.md#task-1)"
    )


class StaticInputs:
    """The inputs of a decode step, in tensors that stay where they are.

    Args:
        max_num_reqs: rows, that is, the largest bucket.
        max_model_len, block_size: a row's block table has ``ceil(max_model_len / block_size)``
            entries.
    """

    def __init__(
        self, max_num_reqs: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.max_model_len = max_model_len
        self.input_ids = torch.zeros(max_num_reqs, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_num_reqs, dtype=torch.int64, device=device)
        self.slot_mapping = torch.full((max_num_reqs,), -1, dtype=torch.int64, device=device)
        self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
        self.block_table = torch.zeros(max_num_reqs, max_blocks, dtype=torch.int32, device=device)
        self.query_start_loc = torch.arange(max_num_reqs + 1, dtype=torch.int32, device=device)

    def fill(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, bucket: int
    ) -> None:
        """Copy the R rows of a step in, and make the rows from R to ``bucket`` inert.

        Args:
            input_ids, positions: ``[R]`` int64, R at most ``bucket``.
            metadata: of the same step; its block table may be narrower than ours.

        Rows of padding keep the token ids and positions of earlier steps: they are valid, and
        with slot -1 and context length 0 nothing of them is stored or attended to. Likewise the
        block table behind a row's last block: no context reaches it. What came with the step stays
        as it is.
        """
        # TODO 07.2
        raise NotImplementedError(
            "TODO 07.2: write StaticInputs.fill in labs/07-going-fast/cuda_graphs.py"
            " (phase 07, 02-mini-build.md#task-2)"
        )

    def metadata(self, bucket: int) -> AttentionMetadata:
        """Views of the first ``bucket`` rows, with bounds that hold for every later step."""
        return AttentionMetadata(
            query_start_loc=self.query_start_loc[: bucket + 1],
            seq_lens=self.seq_lens[:bucket],
            block_table=self.block_table[:bucket],
            slot_mapping=self.slot_mapping[:bucket],
            max_query_len=1,
            max_seq_len=self.max_model_len,
            num_decode_reqs=bucket,
            query_lens_cpu=[1] * bucket,
            seq_lens_cpu=[self.max_model_len] * bucket,
        )


class DecodeGraphs:
    """One recorded decode step for each bucket.

    Args:
        forward: the model over the KV cache.
        inputs: tensors that every graph reads.
        buckets: ascending batch sizes.
        record: how to record; :class:`CudaRecorder` on a GPU.
    """

    def __init__(
        self,
        forward: Forward,
        inputs: StaticInputs,
        buckets: Sequence[int],
        record: Recorder,
    ) -> None:
        self.forward, self.inputs, self.buckets = forward, inputs, list(buckets)
        self.record = record
        self.graphs: dict[int, tuple[Callable[[], None], Tensor]] = {}

    def capture(self) -> None:
        """Record a graph for every bucket, the largest first: the others fit into its memory."""
        # TODO 07.3
        raise NotImplementedError(
            "TODO 07.3: write DecodeGraphs.capture in labs/07-going-fast/cuda_graphs.py"
            " (phase 07, 02-mini-build.md#task-3)"
        )

    def _capture_bucket(self, bucket: int) -> tuple[Callable[[], None], Tensor]:
        """Record the forward pass over the first ``bucket`` rows of the static inputs."""
        # TODO 07.3
        raise NotImplementedError(
            "TODO 07.3: write DecodeGraphs._capture_bucket in labs/07-going-fast/cuda_graphs.py"
            " (phase 07, 02-mini-build.md#task-3)"
        )

    def replay(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor | None:
        """Hidden states ``[R, H]`` of a step of R decodes; None if there is no graph for it.

        The result is a view of the graph's output, valid until the next replay.
        """
        # TODO 07.3
        raise NotImplementedError(
            "TODO 07.3: write DecodeGraphs.replay in labs/07-going-fast/cuda_graphs.py"
            " (phase 07, 02-mini-build.md#task-3)"
        )


class CudaRecorder:
    """Records with ``torch.cuda.graph``. All graphs share one pool of memory.

    The first run is not recorded: it compiles kernels and lets libraries set themselves up,
    neither of which a recording may hold.
    """

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            output = run()
        return graph.replay, output


def record_eagerly(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """A recorder for machines without a GPU: replaying calls the function again.

    Like a graph it reads the tensors it was recorded with and writes the same output; unlike one
    it saves no time.
    """
    output = run()

    def replay() -> None:
        output.copy_(run())

    return replay, output
