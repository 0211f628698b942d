"""Which recording serves a step, and to how many tokens the step is padded for it.

::

    mode                 all decodes                 anything else
    NONE                 launched one by one         launched one by one
    PIECEWISE            in pieces                   in pieces
    FULL                 one graph                   one graph
    FULL_DECODE_ONLY     one graph                   launched one by one
    FULL_AND_PIECEWISE   one graph                   in pieces

A *full* graph holds the whole forward pass, attention too, so it fits a number of requests as well
as a number of tokens. Graphs *in pieces* are cut at every attention, which is launched between
them: all else treats each token alone, so only the number of tokens counts.

This engine records full graphs of decodes and no others.

Source: vllm/v1/cudagraph_dispatcher.py#L15-L353 (CudagraphDispatcher) @ v0.22.1
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class CUDAGraphMode(Enum):
    """How steps are recorded; two modes are a pair: of decodes, and of all others.

    Source: vllm/config/compilation.py#L53-L103 (CUDAGraphMode) @ v0.22.1
    """

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)

    def separate_routine(self) -> bool:
        """Whether decodes have graphs of their own."""
        return isinstance(self.value, tuple)

    def mixed_mode(self) -> CUDAGraphMode:
        """NONE, PIECEWISE or FULL: of steps that have no graph of decodes."""
        return CUDAGraphMode(self.value[1]) if self.separate_routine() else self


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """The padded step.

    Source: vllm/forward_context.py#L30-L58 (BatchDescriptor) @ v0.22.1
    """

    num_tokens: int
    num_reqs: int | None = None
    """None where a graph does not depend on it."""
    uniform: bool = False
    """Whether the graph is one of decodes alone: every request has the same number of tokens."""


def is_uniform_decode(
    num_tokens: int, num_reqs: int, max_query_len: int, decode_query_len: int
) -> bool:
    """Whether each of the step's requests has ``decode_query_len`` tokens.

    That is one, or one and its drafts. It is told from sums alone: the longest request has so many,
    and the tokens are that many for each.

    Source: vllm/v1/worker/gpu_model_runner.py#L3701-L3719 (GPUModelRunner._is_uniform_decode)
    @ v0.22.1
    """
    # TODO 07.7
    raise NotImplementedError(
        "TODO 07.7: write is_uniform_decode in labs/07-going-fast/cudagraph_dispatcher.py"
        " (phase 07, 02-mini-build.md#task-7)"
    )


def dispatch(
    mode: CUDAGraphMode,
    sizes: Sequence[int],
    max_num_reqs: int,
    num_tokens: int,
    uniform_decode: bool = False,
    decode_query_len: int = 1,
    disable_full: bool = False,
) -> tuple[CUDAGraphMode, BatchDescriptor]:
    """The kind of graph for a step, NONE, PIECEWISE or FULL, and the padded step.

    A graph is wanted of the next of ``sizes`` that is not below ``num_tokens``. If there is none,
    or no graph fits, the answer is NONE and a descriptor of the step as it is.

    1. With a mode that treats decodes apart, a uniform decode asks for a graph of decodes first.
       Such graphs exist for the sizes from ``decode_query_len`` to ``decode_query_len *
       max_num_reqs``. The descriptor is uniform, with a request for each ``decode_query_len``
       tokens of the size.
    2. All other steps, and a decode that has found none, take what the mode has for mixed steps. A
       full graph has as many requests as tokens, but at most ``max_num_reqs``; a graph in pieces
       has no number of requests.
    3. With ``disable_full`` no full graph is taken: attention does something that is not recorded.

    Args:
        sizes: tokens that there are graphs of, ascending; multiples of ``decode_query_len`` where
            decodes are treated apart.
        num_tokens: at least 1.

    Source: vllm/v1/cudagraph_dispatcher.py#L239-L328 (CudagraphDispatcher.dispatch) @ v0.22.1
    """
    # TODO 07.7
    raise NotImplementedError(
        "TODO 07.7: write dispatch in labs/07-going-fast/cudagraph_dispatcher.py"
        " (phase 07, 02-mini-build.md#task-7)"
    )
