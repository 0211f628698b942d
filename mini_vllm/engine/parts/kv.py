"""The engine's side of KV that travels: both halves of a connector, and events of the cache.

Source: vllm/v1/core/sched/scheduler.py#L117-L165 (Scheduler.__init__) @ v0.22.1
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.executor.base import Executor
from mini_vllm.kv_transfer.base import KVConnectorBase_V1, KVConnectorRole
from mini_vllm.kv_transfer.events import KVEventLog
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.kv_transfer.params import check_remote_blocks, holder_of
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler
from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.kv_transfer.publisher import ZmqEventPublisher

logger = logging.getLogger(__name__)


class EngineKV:
    """A connector and a publisher of events, each if it is configured.

    Args:
        executor: whose workers have their caches.
        num_blocks: of these caches.
        replica: which of several engines side by side this is; each tells of its own cache.

    Raises:
        ValueError: for settings that do not fit the model, or an address that is taken.
    """

    def __init__(
        self, config: EngineConfig, executor: Executor, num_blocks: int, replica: int = 0
    ) -> None:
        self.executor = executor
        self.connector: KVConnectorBase_V1 | None = None
        self.policy = "fail"
        self.events: KVEventLog | None = None
        self.publisher: ZmqEventPublisher | None = None
        self.hash_root: bytes | None = None
        self._warned = False
        transfer, events = config.kv_transfer, config.kv_events
        wants_events = events is not None and events.enable_kv_cache_events
        if transfer is None and not wants_events:
            return
        context = executor.call("kv_context", num_blocks)[0]
        self.hash_root = context.namespace
        self.block_size = context.block_size
        if transfer is not None:
            self.policy = transfer.kv_load_failure_policy
            role = KVConnectorRole.SCHEDULER
            self.connector = KVConnectorFactory.create_connector(transfer, role, context)
            said = executor.call("connect", context)
            self.connector.set_xfer_handshake_metadata(dict(enumerate(said)))
        if wants_events:
            assert events is not None
            self.events = KVEventLog()
            if events.publisher == "zmq":
                from mini_vllm.kv_transfer.publisher import ZmqEventPublisher

                self.publisher = ZmqEventPublisher(events, replica)

    def check_params(self, request: Request) -> None:
        """Refuse a request whose KV cannot be where it says.

        Raises:
            ValueError: naming what does not fit.
        """
        params = request.kv_transfer_params
        if not params:
            return
        if self.connector is not None:
            check_remote_blocks(params, request, self.block_size)
        elif not self._warned:
            self._warned = True
            logger.warning(
                "a request has kv_transfer_params, but the engine has no KV connector; it is "
                "served without; set kv_transfer_config"
            )

    def request_refused(self, params: Any) -> None:
        """Tell the engine that holds KV for a refused request, if its parameters name one."""
        holder = holder_of(params)
        if self.connector is not None and holder is not None:
            self.connector.request_refused(holder)

    def step_done(
        self, plan: SchedulerOutput, result: ModelRunnerOutput, timeout: float, scheduler: Scheduler
    ) -> None:
        """Publish the cache's events; if nothing could run and no KV has come, sleep until some may
        have."""
        if self.events is not None:
            events = self.events.take()
            if self.publisher is not None:
                self.publisher.publish(events)
        if plan.num_scheduled_tokens or not isinstance(scheduler, RemoteKVScheduler):
            return
        report = result.kv_connector_output
        if scheduler.waits_for_transfer() and (report is None or report.is_empty()):
            self.executor.call("wait_for_kv", timeout)

    def flush(self) -> None:
        """Return when all KV that is to be saved is where others find it."""
        if self.connector is not None:
            self.executor.call("flush_kv")

    def shutdown(self) -> None:
        if self.connector is not None:
            self.connector.shutdown()
        if self.publisher is not None:
            self.publisher.shutdown()
