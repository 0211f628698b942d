"""Medusa: extra heads on the target's last hidden state, one for each place ahead.

    hidden state at t ─┬─ head of the target ─► token t + 1
                       ├─ block 0 ─ same head ─► guess for t + 2
                       └─ block 1 ─ same head ─► guess for t + 3

A block is one small layer, so a draft costs next to nothing; but no block knows what the ones
before it have guessed.

Source: vllm/model_executor/models/medusa.py#L19-L38 (ResidualBlock) @ v0.22.1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.json_files import read_json
from mini_vllm.model.checkpoint import check_dtype, tensor_files
from mini_vllm.model.loader import check_names, copy_weight
from mini_vllm.sample.sampler import greedy_sample
from mini_vllm.spec_decode.proposer import Proposer, ProposerInput


class ResidualBlock(nn.Module):
    """x + silu(linear(x)), once or more; the hidden state of a later place, roughly."""

    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        layers = [nn.Linear(hidden_size, hidden_size) for _ in range(num_layers)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaHeads(nn.Module):
    """One block for each place; the head that turns them into logits is the target's own.

    Args:
        hidden_size: of the target.
        num_heads: places.
        num_layers: of each block.
    """

    def __init__(self, hidden_size: int, num_heads: int, num_layers: int = 1) -> None:
        super().__init__()
        blocks = [ResidualBlock(hidden_size, num_layers) for _ in range(num_heads)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: Tensor, index: int) -> Tensor:
        """``[B, H]`` to ``[B, H]``: what the target's head turns into guess number ``index``."""
        guess: Tensor = self.blocks[index](hidden)
        return guess

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> MedusaHeads:
        """Read ``config.json``, which was checked before, and the weights.

        Raises ValueError for a missing or unexpected tensor, a wrong shape or dtype, or a damaged
        file; FileNotFoundError for a missing one.
        """
        config = read_json(folder / "config.json")
        width, num_heads = config["hidden_size"], config["num_heads"]
        heads = cls(width, num_heads, config.get("num_hidden_layers", 1)).requires_grad_(False)
        files = {name: file for file in tensor_files(folder) for name in file.header}
        targets = heads.state_dict()
        check_names(targets, files, folder, tied=False)
        for name, target in targets.items():
            check_dtype(files[name].header[name], target.dtype, name, files[name].path)
            with files[name].open() as tensors:
                copy_weight(target, tensors.get_tensor(name), name, files[name].path)
        return heads.to(device, dtype).eval()


class MedusaProposer(Proposer):
    """Drafts from heads that look at one hidden state.

    Args:
        heads: at least ``num_speculative_tokens`` of them.
        target: whose ``compute_logits`` maps ``[B, H]`` to ``[B, V]``.
        num_speculative_tokens: drafts a request gets.
    """

    def __init__(self, heads: MedusaHeads, target: Any, num_speculative_tokens: int) -> None:
        self.heads, self.target = heads, target
        self.k = num_speculative_tokens

    def propose(self, step: ProposerInput) -> dict[str, list[int]]:
        """Drafts of every request that got a token, by the first k heads; others are absent.

        They look at the hidden state that the newest token was sampled from: that of the last
        token that stays (``step.num_valid``). Behind it lie those of rejected drafts, which are not
        part of the text.

        Source: vllm/v1/spec_decode/medusa.py#L37-L56 (MedusaProposer.propose) @ v0.22.1
        """
        # TODO 08.10
        raise NotImplementedError(
            "TODO 08.10: write MedusaProposer.propose in labs/08-spec-decode/medusa.py"
            " (phase 08, 02-mini-build.md#task-10)"
        )
