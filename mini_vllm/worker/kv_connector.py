"""The runner's place for a KV connector: what its worker's half does around a forward pass.

Source: vllm/v1/worker/kv_connector_model_runner_mixin.py#L36-L119 (KVConnectorModelRunnerMixin)
@ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mini_vllm.core.scheduler_output import (
    KVConnectorOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.kv_transfer.base import KVConnectorBase_V1
from mini_vllm.model.llama import LlamaForCausalLM


class RunnerConnector:
    """Calls a connector in the order of a step, also in a step without tokens: or nothing would
    ever arrive.

    Args:
        connector: the worker's half.
        model, kv_caches: whose layers it serves, and the cache of each.
    """

    def __init__(
        self, connector: KVConnectorBase_V1, model: LlamaForCausalLM, kv_caches: Sequence[Any]
    ) -> None:
        self.connector = connector
        self.report: KVConnectorOutput | None = None
        """Of this step. It must reach the scheduler even if the rest of the step fails."""
        layers = {layer_name(i): layer for i, layer in enumerate(kv_caches)}
        connector.register_kv_caches(layers)
        if works_by_layer(connector):
            self._watch_layers(model)

    def begin(self, plan: SchedulerOutput) -> None:
        """Save what preemption is about to free, start loads; also for a plan without tokens."""
        self.report = None
        self.connector.bind_connector_metadata(plan.kv_connector_metadata)
        self.connector.handle_preemptions(plan.preempted_req_ids)
        self.connector.start_load_kv()

    def end(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Wait for saves, and report what has arrived, left or failed."""
        connector = self.connector
        if plan.num_scheduled_tokens:
            connector.wait_for_save()
        sent, received = connector.get_finished(plan.finished_req_ids)
        self.report = result.kv_connector_output = KVConnectorOutput(
            sent,
            received,
            connector.get_block_ids_with_load_errors(),
            connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()

    def _watch_layers(self, model: LlamaForCausalLM) -> None:
        """Call the connector before and after each layer's attention."""
        for index, layer in enumerate(model.model.layers):
            name = layer_name(index)

            def before(*_: Any, name: str = name) -> None:
                self.connector.wait_for_layer_load(name)

            def after(
                _module: Any, args: tuple[Any, ...], _output: Tensor, name: str = name
            ) -> None:
                *_, kv_cache, metadata = args
                self.connector.save_kv_layer(name, kv_cache, metadata)

            layer.self_attn.register_forward_pre_hook(before)
            layer.self_attn.register_forward_hook(after)


def layer_name(index: int) -> str:
    return f"model.layers.{index}.self_attn"


def works_by_layer(connector: KVConnectorBase_V1) -> bool:
    """Whether a connector is called for single layers; if not, a decode step has no extra cost."""
    kind, base = type(connector), KVConnectorBase_V1
    return (
        kind.wait_for_layer_load is not base.wait_for_layer_load
        or kind.save_kv_layer is not base.save_kv_layer
    )
