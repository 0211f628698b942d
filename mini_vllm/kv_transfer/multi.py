"""Several connectors as one: blocks come from the first that has them, and go to all.

Source: vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py#L143-L560 (MultiConnector)
@ v0.22.1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.config import KVTransferConfig
from mini_vllm.config.engine import read_section
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import KVConnectorOutput, SchedulerOutput
from mini_vllm.kv_transfer.base import (
    ConnectorContext,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.request import Request

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class MultiMetadata(KVConnectorMetadata):
    parts: list[KVConnectorMetadata]
    """One for each connector, in their order."""
    extra_sends: dict[str, int]
    """By request: connectors beyond the first that keep its blocks."""


def inner_configs(config: KVTransferConfig) -> list[KVTransferConfig]:
    """The configurations in ``connectors``; role and engine id are the outer one's if left out."""
    listed = config.kv_connector_extra_config.get("connectors")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise ValueError(
            f"connectors is {listed!r}; MultiConnector needs a list of configurations, each with "
            "its kv_connector"
        )
    found = []
    for inner in listed:
        usual = {"kv_role": config.kv_role, "engine_id": config.engine_id}
        if isinstance(inner, Mapping):
            inner = usual | dict(inner)
        found.append(read_section("connectors", KVTransferConfig, inner))
    return found


class MultiConnector(KVConnectorBase_V1):
    """Settings: ``connectors``, a list of configurations like the outer one."""

    extra_keys: ClassVar[Mapping[str, Any]] = {"connectors": None}

    def __init__(
        self, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> None:
        super().__init__(config, role, context)
        create = KVConnectorFactory.create_connector
        self.parts = [create(inner, role, context) for inner in inner_configs(config)]
        self.chosen: dict[str, int] = {}
        """Which connector loads a request; absent: none."""
        self.extra_sends: dict[str, int] = {}
        self.sends_due: Counter[str] = Counter()
        """The worker's half: further reports to wait for before blocks may go."""

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        inner = inner_configs(config)
        for each in inner:
            KVConnectorFactory.get_connector_class(each)
        if [each.kv_connector for each in inner].count("P2pTcpConnector") > 1:
            raise ValueError(
                "connectors has P2pTcpConnector more than once; the answer to a request "
                "can name one address of its KV; keep one of them"
            )

    # ------------------------------------------------------------------ the scheduler's half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """The first offer counts. All connectors are asked, because one that does not know yet
        delays the request.

        Source: vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py#L363-L395
        (MultiConnector.get_num_new_matched_tokens) @ v0.22.1
        """
        best: tuple[int | None, bool] = (0, False)
        self.chosen.pop(request.request_id, None)
        for index, part in enumerate(self.parts):
            tokens, is_async = part.get_num_new_matched_tokens(request, num_computed_tokens)
            if tokens is None:
                return None, False
            if best[0] == 0 and tokens > 0:
                self.chosen[request.request_id] = index
                best = (tokens, is_async)
        return best

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Only the chosen connector gets tokens to load; for the others it is an admission with
        0."""
        chosen = self.chosen.pop(request.request_id, None) if num_external_tokens else None
        for index, part in enumerate(self.parts):
            count = num_external_tokens if index == chosen else 0
            part.update_state_after_alloc(request, blocks, count)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> MultiMetadata:
        extra, self.extra_sends = self.extra_sends, {}
        metas = [part.build_connector_meta(scheduler_output) for part in self.parts]
        return MultiMetadata(metas, extra)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        metas = connector_output.kv_connector_worker_meta or [None] * len(self.parts)
        for part, meta in zip(self.parts, metas, strict=True):
            part.update_connector_output(replace(connector_output, kv_connector_worker_meta=meta))

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks stay until every connector that keeps them has said that it is done.

        Raises:
            ValueError: if two connectors return parameters for the caller.
        """
        answers = [part.request_finished(request, block_ids) for part in self.parts]
        told = [params for _, params in answers if params is not None]
        if len(told) > 1:
            raise ValueError("two connectors return kv_transfer_params; configure only one of them")
        num_keep = sum(keeps for keeps, _ in answers)
        if num_keep > 1:
            self.extra_sends[request.request_id] = num_keep - 1
        self.chosen.pop(request.request_id, None)
        return num_keep > 0, told[0] if told else None

    def request_refused(self, kv_transfer_params: Mapping[str, Any]) -> None:
        for part in self.parts:
            part.request_refused(kv_transfer_params)

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        for index, part in enumerate(self.parts):
            part.set_xfer_handshake_metadata({rank: said[index] for rank, said in metadata.items()})

    # ------------------------------------------------------------------ the worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        for part in self.parts:
            part.register_kv_caches(kv_caches)

    def get_handshake_metadata(self) -> list[Any]:
        return [part.get_handshake_metadata() for part in self.parts]

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(connector_metadata, MultiMetadata)
        self.sends_due.update(connector_metadata.extra_sends)
        for part, meta in zip(self.parts, connector_metadata.parts, strict=True):
            part.bind_connector_metadata(meta)

    def clear_connector_metadata(self) -> None:
        for part in self.parts:
            part.clear_connector_metadata()

    def handle_preemptions(self, preempted_req_ids: Sequence[str]) -> None:
        for part in self.parts:
            part.handle_preemptions(preempted_req_ids)

    def start_load_kv(self) -> None:
        for part in self.parts:
            part.start_load_kv()

    def wait_for_save(self) -> None:
        for part in self.parts:
            part.wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Received: as reported. Sent: when all that keep the request's blocks have reported it."""
        sent: set[str] = set()
        received: set[str] = set()
        for part in self.parts:
            part_sent, part_received = part.get_finished(finished_req_ids)
            received |= part_received or set()
            for request_id in part_sent or ():
                if self.sends_due[request_id] > 0:
                    self.sends_due[request_id] -= 1
                else:
                    del self.sends_due[request_id]
                    sent.add(request_id)
        return sent, received

    def get_block_ids_with_load_errors(self) -> set[int]:
        return _union(part.get_block_ids_with_load_errors() for part in self.parts)

    def build_connector_worker_meta(self) -> list[Any]:
        return [part.build_connector_worker_meta() for part in self.parts]

    def wait_for_transfer(self, timeout: float) -> None:
        for part in self.parts:
            part.wait_for_transfer(timeout / len(self.parts))

    # ------------------------------------------------------------------ both halves

    def flush(self) -> None:
        for part in self.parts:
            part.flush()

    def reset(self) -> None:
        for each in (self.chosen, self.extra_sends, self.sends_due):
            each.clear()
        for part in self.parts:
            part.reset()

    def shutdown(self) -> None:
        for part in self.parts:
            part.shutdown()


def _union(sets: Iterable[set[int]]) -> set[int]:
    return set().union(*sets)
