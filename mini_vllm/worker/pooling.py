"""The runner's half of pooling: which hidden states of a step count, and what waits for the rest.

A prompt may come in chunks: `pooling/seqwise.py` says what each kind of pooling needs of them.

Source: vllm/v1/worker/gpu_model_runner.py#L3280-L3340 (GPUModelRunner._pool) @ v0.22.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.platforms.transfer import on_device
from mini_vllm.pooling.pooler import Pooler
from mini_vllm.pooling.seqwise import pool_chunk
from mini_vllm.pooling_params import PoolingParams
from mini_vllm.worker.step_inputs import StepInputs

Group = tuple[bool | None, int | None, int]
"""Requests that one product serves: with the same activation, dimensions, and width of states."""


class RunnerPooler:
    """Pools the prompts that a step completes, and keeps what incomplete prompts need later.

    Args:
        pooler: what stands behind the decoder.
    """

    def __init__(self, pooler: Pooler) -> None:
        self.pooler = pooler
        self._prompts: dict[str, list[int]] = {}
        self._params: dict[str, PoolingParams] = {}
        self._kept: dict[str, list[Tensor]] = {}
        """Of prompts that are not whole yet."""

    def update(self, plan: SchedulerOutput) -> None:
        """Add new requests, and forget those that have ended."""
        for req_id in plan.finished_req_ids:
            for known in (self._prompts, self._params, self._kept):
                known.pop(req_id, None)
        for new in plan.scheduled_new_reqs:
            assert new.pooling_params is not None, "a pooling model was asked to generate"
            self._prompts[new.req_id] = new.prompt_token_ids
            self._params[new.req_id] = new.pooling_params

    def restart(self, req_ids: Sequence[str]) -> None:
        """An interrupted step was undone: all requests begin anew."""
        self._kept.clear()
        for known in (self._prompts, self._params):
            for req_id in known.keys() - set(req_ids):
                del known[req_id]

    def pool(self, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput) -> None:
        """Report what the prompts that are whole now come to.

        Args:
            hidden: ``[T, H]`` of the step.
            result: gets ``pooler_output``; ``failed`` where a number is NaN or infinite.
        """
        groups: dict[Group, dict[str, Tensor]] = defaultdict(dict)
        lengths, ends = inputs.metadata.query_lens_cpu, inputs.metadata.seq_lens_cpu
        for req_id, chunk, end in zip(inputs.req_ids, hidden.split(lengths), ends, strict=True):
            states = self._choose(req_id, chunk, end)
            if states is not None:
                params = self._params[req_id]
                width = states.shape[1]
                groups[params.use_activation, params.dimensions, width][req_id] = states
        for chosen in groups.values():
            self._finish(chosen, result)

    def _choose(self, req_id: str, chunk: Tensor, end: int) -> Tensor | None:
        """The states ``[n, H]`` that count, or None while the prompt is not whole.

        Args:
            chunk: ``[t, H]``, the states of this step.
            end: tokens of the prompt that are computed with it.
        """
        params, prompt = self._params[req_id], self._prompts[req_id]
        kind = self.pooler.args.pooling_type(params.task or "")
        kept = self._kept.pop(req_id, [])
        states = pool_chunk(kind, chunk, end, len(prompt), kept)
        if kept:
            self._kept[req_id] = kept
        return _steps(states, prompt, params) if kind == "STEP" and states is not None else states

    def _finish(self, chosen: dict[str, Tensor], result: ModelRunnerOutput) -> None:
        """One product for all requests of a group; each gets its rows."""
        sizes = [len(states) for states in chosen.values()]
        states = torch.cat([states.float() for states in chosen.values()])
        params = self._params[next(iter(chosen))]
        pooled = self.pooler(states, params).cpu().numpy()
        for req_id, rows in zip(chosen, np.split(pooled, np.cumsum(sizes)[:-1]), strict=True):
            if not np.isfinite(rows).all():
                result.failed[req_id] = (
                    "the model's output holds NaN or infinite numbers, so there is nothing to "
                    "return; the weights may be damaged, or too large for this dtype: try float32"
                )
                continue
            is_one = self.pooler.args.gives_one(self._params[req_id].task or "")
            result.pooler_output[req_id] = (rows[0] if is_one else rows).copy()


def _steps(states: Tensor, prompt: list[int], params: PoolingParams) -> Tensor:
    """Of each token's state, the entries and tokens that were asked for.

    Source: vllm/model_executor/layers/pooler/tokwise/methods.py#L83-L119 (StepPool) @ v0.22.1
    """
    if params.returned_token_ids:
        states = states[:, on_device(torch.tensor(params.returned_token_ids), states.device)]
    if params.step_tag_id is not None:
        places = [at for at, token in enumerate(prompt) if token == params.step_tag_id]
        states = states[on_device(torch.tensor(places, dtype=torch.int64), states.device)]
    return states
