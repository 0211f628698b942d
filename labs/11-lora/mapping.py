"""Which token of a step uses which slot, in tensors that never move.

::

    token_lora_mapping                 0   0  -1   1   1   1  -1   0      slot of each token
    token_indices_sorted_by_lora_ids   2   6 | 0   1   7 | 3   4   5      tokens, one segment a slot
    active_lora_ids                   -1       0           1              slot of each segment
    num_tokens_per_lora                2       3           3
    lora_token_start_loc               0       2           5           8

The activations are not moved: kernels gather the rows of a segment by the sorted indices. A CUDA
graph always reads the same addresses, so every step writes its mapping into the same tensors.

Source: vllm/lora/ops/triton_ops/lora_kernel_metadata.py#L13-L168 (LoRAKernelMeta) @ v0.22.1
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.platforms import platform_of


class LoRAKernelMeta:
    """The mapping of one step, for all layers.

    Args:
        max_loras: slots on the device.
        max_num_tokens: most tokens in a step.

    Attributes:
        token_lora_mapping: ``[max_num_tokens]`` int32, the slot of each token; -1 for the base
            and for every entry beyond the step's tokens.
        token_indices_sorted_by_lora_ids: ``[max_num_tokens]`` int32, the step's tokens sorted by
            slot; tokens of one slot keep their order.
        active_lora_ids: ``[max_loras + 1]`` int32, the slots that occur, ascending (-1 among
            them), then -1.
        num_tokens_per_lora: ``[max_loras + 1]`` int32, the tokens of each of them, then 0.
        lora_token_start_loc: ``[max_loras + 2]`` int32, where each one's segment of the sorted
            tokens begins: 0, then the running sum.
        no_lora: whether no token of the step has an adapter. A host value, so that a step of the
            base alone launches nothing.
        groups: for a CPU, each slot that occurs, with its tokens ``[n]`` int64.
    """

    def __init__(self, max_loras: int, max_num_tokens: int, device: torch.device) -> None:
        def static(size: int, value: int) -> Tensor:
            return torch.full((size,), value, dtype=torch.int32, device=device)

        self.device = device
        self.token_lora_mapping = static(max_num_tokens, -1)
        self.token_indices_sorted_by_lora_ids = static(max_num_tokens, 0)
        self.active_lora_ids = static(max_loras + 1, -1)
        self.num_tokens_per_lora = static(max_loras + 1, 0)
        self.lora_token_start_loc = static(max_loras + 2, 0)
        self.no_lora = True
        self.groups: list[tuple[int, Tensor]] = []
        self.foreign: Tensor | None = None
        self.slots = slice(0, 0)
        self._token_slots: NDArray[np.int32] | None = None

    def update(self, token_slots: NDArray[np.int32]) -> None:
        """Set the slots ``[T]`` int32 of the next step's tokens, -1 for the base.

        In decodes the mapping is mostly the same as in the previous step; then nothing is written.
        Slots are compared, not adapters: an adapter may have another slot by now.
        """
        if self._token_slots is not None and np.array_equal(token_slots, self._token_slots):
            return
        self._token_slots = None  # until all is written, because Ctrl-C may interrupt it
        self.no_lora = bool((token_slots < 0).all())
        if platform_of(self.device).is_host:
            self._plan(token_slots)
        self.prepare_tensors(token_slots)
        self._token_slots = token_slots

    def prepare_tensors(self, token_slots: NDArray[np.int32]) -> None:
        """Write the mapping of a step into the five static tensors, in place.

        Args:
            token_slots: ``[T]`` int32, the slot of each token, -1 for the base; T is at most
                ``max_num_tokens``. It stays as it is, and nothing is kept of it: the same
                array may come again with other slots.

        What earlier steps left behind must be gone: entries beyond this step's are -1 in
        ``token_lora_mapping`` and ``active_lora_ids`` and 0 in ``num_tokens_per_lora`` and
        ``lora_token_start_loc``.

        Source: vllm/lora/ops/triton_ops/lora_kernel_metadata.py#L101-L168
        (LoRAKernelMeta.prepare_tensors) @ v0.22.1
        """
        # TODO 11.6
        raise NotImplementedError(
            "TODO 11.6: write LoRAKernelMeta.prepare_tensors in labs/11-lora/mapping.py"
            " (phase 11, 02-mini-build.md#task-6)"
        )

    def _plan(self, token_slots: NDArray[np.int32]) -> None:
        """Data for the CPU's two functions: the tokens of each slot for `apply_grouped`; a range of
        slots and the mask `foreign` for `apply_dense`."""
        used = [int(slot) for slot in np.unique(token_slots) if slot >= 0]
        self.groups = [(s, torch.from_numpy(np.flatnonzero(token_slots == s))) for s in used]
        if not used:
            return
        self.slots = slice(used[0], used[-1] + 1)
        columns = np.arange(self.slots.start, self.slots.stop)
        foreign = torch.from_numpy(token_slots[:, None] != columns)
        self.foreign = foreign if bool(foreign.any()) else None
