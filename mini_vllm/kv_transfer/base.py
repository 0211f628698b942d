"""The interface of a KV connector: one half beside the scheduler, one beside the tensors.

::

    scheduler's half                                  worker's half
    ----------------                                  -------------
    how many tokens of this request can you bring?
      get_num_new_matched_tokens
    these blocks are for them
      update_state_after_alloc
    the plan is made
      build_connector_meta ────── metadata ─────────► start_load_kv        before the forward pass
                                                      wait_for_save        after it
                                                      get_finished
      update_connector_output ◄── KVConnectorOutput ─ get_block_ids_with_load_errors
    the request has ended; may its blocks go?
      request_finished

The scheduler's half knows no tensor, the worker's half no policy. Between them travels one object a
step in each direction, so that they may live in two processes.

Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py#L164-L672 (KVConnectorBase_V1)
@ v0.22.1
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.config import KVTransferConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import KVConnectorOutput, SchedulerOutput
from mini_vllm.request import Request

if TYPE_CHECKING:
    from torch import Tensor


class KVConnectorRole(enum.Enum):
    """Which half an object is.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py#L124-L129 (KVConnectorRole)
    @ v0.22.1
    """

    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    """What the scheduler's half sends to the worker's half in one step; connectors subclass it.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py#L141-L147 (KVConnectorMetadata)
    @ v0.22.1
    """


@dataclass(frozen=True, slots=True)
class ConnectorContext:
    """What both halves know of the engine's cache."""

    namespace: bytes
    """32 bytes: the model and format of the KV; see :mod:`~mini_vllm.kv_transfer.identity`."""
    block_size: int
    """Tokens per block."""
    bytes_per_block: int
    """Of one block over all layers."""
    num_gpu_blocks: int


class KVConnectorBase_V1:
    """A connector that brings nothing and keeps nothing. Override what yours does.

    Args:
        config: its name, role and own settings.
        role: which half this object is.
        context: the cache that it serves.
    """

    extra_keys: ClassVar[Mapping[str, Any]] = {}
    """Settings in ``kv_connector_extra_config`` that it knows, and their defaults."""

    def __init__(
        self, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> None:
        self.config = config
        self.role = role
        self.context = context

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        """Refuse settings that cannot work, before a model is loaded.

        Raises:
            ValueError: naming the setting, its value and what it must be.
        """

    # ------------------------------------------------------------------ the scheduler's half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens beyond ``num_computed_tokens`` can be brought for a waiting request.

        It may be asked any number of times before the request is admitted; commit nothing.

        Args:
            num_computed_tokens: tokens at its beginning that the engine's own cache has.

        Returns:
            The number, or None for "not known yet, ask again in a later step"; and whether they
            come while other steps run (True), or are there before this step's forward pass.
        """
        return 0, False

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """A request has its blocks; ``num_external_tokens`` of its tokens are to be brought.

        Called for every admission, with 0 too, and a second time with 0 when a request whose KV
        came beside other steps is admitted in the end.

        Args:
            blocks: all blocks of the request, those with tokens of the own cache first.
        """

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """What the worker's half has to do in this step. Does not change ``scheduler_output``."""
        return KVConnectorMetadata()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take in what the worker's half reports after a step."""

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended; called exactly once, before its blocks are free.

        Returns:
            Whether its blocks must stay until ``finished_sending`` names the request; and the
            parameters for its caller (``kv_transfer_params`` of its output).
        """
        return False, None

    def request_refused(self, kv_transfer_params: Mapping[str, Any]) -> None:
        """A request was refused before the scheduler got it: its KV will not be loaded.

        Args:
            kv_transfer_params: the engine that holds KV for it, as :func:`~.params.holder_of` reads
                it.
        """

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        """The answers of the workers' halves to :meth:`get_handshake_metadata`, by rank."""

    # ------------------------------------------------------------------ the worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        """The cache's tensors, ``[2, num_blocks, block_size, heads, dim]`` each, by layer."""

    def get_handshake_metadata(self) -> Any:
        """What the scheduler's half needs from this half, such as an address."""
        return None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """The step's metadata, before anything else of the step."""
        self.metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """The step is over."""
        self.metadata = KVConnectorMetadata()

    def handle_preemptions(self, preempted_req_ids: Sequence[str]) -> None:
        """Blocks of these requests will be overwritten in this step."""

    def start_load_kv(self) -> None:
        """Begin to load what the metadata names. What this step uses must be there on return."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Before a layer's attention: its part of the loads must be there."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any) -> None:
        """After a layer's attention: its keys and values of this step are in ``kv_layer``."""

    def wait_for_save(self) -> None:
        """After the forward pass: blocks to save must be safe from being overwritten."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks have been sent, and requests whose blocks have arrived or failed.

        Args:
            finished_req_ids: requests that ended since the last step.
        """
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that did not arrive, since the last call.

        Of a request that loads beside other steps they may be named in any step up to the one in
        which :meth:`get_finished` names the request, and it must be named all the same.
        """
        return set()

    def build_connector_worker_meta(self) -> Any:
        """What else this half reports to the scheduler's half after this step."""
        return None

    def wait_for_transfer(self, timeout: float) -> None:
        """Sleep until KV may have arrived, or for ``timeout`` seconds: nothing can run before."""
        time.sleep(min(timeout, 0.001))

    # ------------------------------------------------------------------ both halves

    def flush(self) -> None:
        """Return when all KV that was handed over to be saved can be found."""

    def reset(self) -> None:
        """End all transfers, because a step was undone: none may touch a block any more."""

    def shutdown(self) -> None:
        """End threads and sockets. May be called twice."""
