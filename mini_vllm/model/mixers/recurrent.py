"""The common parts of layers with a state: the state's storage, and the two parts of a step.

    decodes    one token per request: the states of all requests advance by one token together
    prompts    several tokens per request: in chunks

Such a layer keeps two tensors for a request: the last inputs of its convolution, and one matrix per
head. Both are read before the layer computes and written after it, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mini_vllm.attention import StateMetadata
from mini_vllm.kernels import can_launch
from mini_vllm.model.interface import LayerSpec, StateTensor
from mini_vllm.model.layers import compute_dtype
from mini_vllm.model.layout import WHOLE, Layout, ParamSpec
from mini_vllm.model.mixers.causal_conv import ConvRows, causal_conv
from mini_vllm.model.mixers.chunks import Chunks

Step = tuple[Tensor, Tensor]
"""Outputs and new states."""


class StatePlan:
    """Data that all layers of a step share, computed once and kept as `StateMetadata.plan`.

    Args:
        width: tokens that the convolution mixes.
    """

    def __init__(self, metadata: StateMetadata, width: int, device: torch.device) -> None:
        self.num_decodes = metadata.num_decode_reqs
        prompts = metadata.query_lens_cpu[self.num_decodes :]
        self.conv_rows = ConvRows(metadata.query_lens_cpu, width, device)
        self.chunks = Chunks(prompts, device=device) if prompts else None

    @classmethod
    def of(cls, metadata: StateMetadata, width: int, device: torch.device) -> StatePlan:
        """The plan of this step, made when the first layer needs it."""
        if metadata.plan is None:
            metadata.plan = cls(metadata, width, device)
        plan: StatePlan = metadata.plan
        return plan

    def run(
        self,
        one: Callable[..., Step],
        many: Callable[..., Step],
        tokens: Sequence[Tensor],
        states: Tensor,
        metadata: StateMetadata,
        kernel: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """Compute a whole step: the outputs of all tokens. `states` `[blocks, ...]` change in
        place.

        Args:
            one: advances states by one token each; called with tensors `[R, ...]` and R states.
            many: advances states by all tokens; called with tensors `[T, ...]`, states and
                `Chunks`.
            tokens: the inputs of each token, `[T, ...]` each.
            kernel: the same as `one` on a GPU, in place; called with tensors `[R, ...]`, `states`,
                the block of each request and whether it is new.
        """
        decodes, prompts = slice(self.num_decodes), slice(self.num_decodes, None)
        outs: list[Tensor] = []
        if self.num_decodes and kernel is not None and can_launch(states):
            blocks, is_new = metadata.block_ids[decodes], metadata.is_new[decodes]
            outs.append(kernel(*(x[decodes] for x in tokens), states, blocks, is_new))
        elif self.num_decodes:
            out, new = one(*(x[decodes] for x in tokens), metadata.load(states, decodes))
            metadata.store(states, new, decodes)
            outs.append(out)
        if self.chunks is not None:
            old = metadata.load(states, prompts)
            out, new = many(*(x[prompts] for x in tokens), old, self.chunks)
            metadata.store(states, new, prompts)
            outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def kept_in_float32(size: int) -> nn.Parameter:
    """A parameter with one number per head that stays float32, because it is used as an exponent,
    and rounding to the model's dtype would change the result visibly. Its module's `parts` say
    which heads it is for."""
    parameter = nn.Parameter(torch.empty(size, dtype=torch.float32))
    parameter.keeps_dtype = True  # type: ignore[attr-defined]
    parameter.spec = ParamSpec(out_dim=0)  # type: ignore[attr-defined]
    return parameter


class ShortConv(nn.Module):
    """The convolution before the state, with its silu; `conv1d` in checkpoints.

    Args:
        sizes: channels of each part of its input, in the whole model.
        width: tokens that it mixes.
        layout: which of these channels this rank has.
    """

    def __init__(self, sizes: Sequence[int], width: int, bias: bool, layout: Layout) -> None:
        super().__init__()
        self.parts, self.whole_parts = (one.parts(width, sizes) for one in (layout, WHOLE))
        channels = sum(part.output_size for part in self.parts)
        self.weight = nn.Parameter(torch.empty(channels, 1, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None
        for parameter in self.parameters():
            parameter.spec = ParamSpec(out_dim=0)  # type: ignore[attr-defined]

    def process_weights_after_loading(self) -> None:
        dtype = compute_dtype(self.weight.dtype, self.weight.device)
        self.weight.data = self.weight.to(dtype)
        if self.bias is not None:
            self.bias.data = self.bias.to(dtype)

    def forward(self, x: Tensor, tails: Tensor, metadata: StateMetadata, rows: ConvRows) -> Tensor:
        """`[T, C] -> [T, C]`; `tails` `[blocks, width - 1, C]` are read and written."""
        y, new = causal_conv(x, self.weight[:, 0], self.bias, metadata.load(tails), rows)
        metadata.store(tails, new)
        return torch.nn.functional.silu(y)


def state_spec(channels: int, width: int, matrix: tuple[int, ...], weight: Tensor) -> LayerSpec:
    """What a layer keeps for a request: the tail of `channels` inputs, and the heads' matrices.

    `weight` is that of its convolution, whose inputs the tail holds.

    Source: vllm/model_executor/layers/mamba/mamba_utils.py#L212-L234 (gated_delta_net_state_shape)
    @ v0.22.1.
    """
    dtype = compute_dtype(weight.dtype, weight.device)
    tail = StateTensor((width - 1, channels), dtype)
    return LayerSpec("mamba", states=(StateTensor(matrix, torch.float32), tail))
