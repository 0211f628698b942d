"""EAGLE: guess the next hidden state, and read the token off it with the target's own head.

    target   x[t] ──► h[t] ──► x[t+1]
    head     (x[t+1], h[t]) ──► guess of h[t+1] ──► draft of x[t+2]
             (draft,  guess) ──► guess of h[t+2] ──► draft of x[t+3]

The hidden state holds what the target predicted, the token what was then chosen. One layer is
enough for both. It has keys and values of its own, under the target's block table, one place
behind: token t + 1 is read at position t.

Source: vllm/v1/spec_decode/eagle.py#L10-L22 (EagleProposer) @ v0.22.1
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mini_vllm.attention import AttentionBackend, AttentionMetadata
from mini_vllm.model.build import check_floating, default_dtype, resolve_dtype
from mini_vllm.model.config import ModelArgs, load_config
from mini_vllm.model.interface import KVCacheSpec
from mini_vllm.model.layers import Build, Linear, to_compute_dtype, weights_dtype
from mini_vllm.model.llama import DecoderLayer, LlamaForCausalLM
from mini_vllm.model.loader import load_weights
from mini_vllm.model.rope import RotaryEmbedding
from mini_vllm.sample.sampler import greedy_sample
from mini_vllm.spec_decode.draft_model import DraftBatch, one_token_each
from mini_vllm.spec_decode.proposer import Proposer, ProposerInput
from mini_vllm.worker.kv_cache import KVCache


class EagleHead(nn.Module):
    """`fc` of [embedding, hidden state] and one decoder layer; the rest is the target's.

    Source: vllm/model_executor/models/llama_eagle.py#L55-L148 (LlamaModel) @ v0.22.1
    """

    def __init__(self, args: ModelArgs, target: LlamaForCausalLM, build: Build) -> None:
        super().__init__()
        self.config = args
        self.fc = Linear(2 * args.hidden_size, args.hidden_size, bias=False, build=build)
        self_attn = target.attention(args, build, args.sliding_windows[0], "layers.0.self_attn")
        self.layers = nn.ModuleList([DecoderLayer(args, build, self_attn, "layers.0")])
        self.rotary = RotaryEmbedding(args)

    @classmethod
    def load(
        cls, folder: Path, target: LlamaForCausalLM, backend: AttentionBackend, dtype: str
    ) -> EagleHead:
        """Read ``config.json`` and the weights; on the target's device.

        Raises ValueError for tensors that such a head does not have or lacks, or that are damaged.
        """
        args = load_config(folder)
        device = target.model.norm.weight.device
        own_dtype = weights_dtype(resolve_dtype(dtype, args), args.hidden_size, device)
        with device, default_dtype(own_dtype):
            head = cls(args, target, Build(backend)).requires_grad_(False).eval()
        try:
            check_floating(folder)
            load_weights(head, folder)  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(
                f"the EAGLE head cannot be used: {error}; a head has fc.weight and one whole layer "
                "with both norms, and nothing else: the target's embedding, last norm and output "
                "head are used"
            ) from error
        for module in head.modules():
            if module is not head and hasattr(module, "process_weights_after_loading"):
                module.process_weights_after_loading()
        return head

    def kv_cache_spec(self, dtype: torch.dtype) -> KVCacheSpec:
        return KVCacheSpec(1, self.config.num_key_value_heads, self.config.head_dim, dtype)

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        positions: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        norm: nn.Module,
    ) -> Tensor:
        """The next hidden states ``[T, H]``, as the target's last norm ``norm`` leaves them.

        Args:
            embedded: ``[T, H]``, of the tokens that were chosen.
            hidden: ``[T, H]``, the states that they were chosen from.
        """
        x = self.fc(torch.cat((embedded, hidden), dim=-1))
        x, residual = self.layers[0](x, None, self.rotary(positions, x.dtype), kv_cache, metadata)
        normed: Tensor = norm.add(x, residual)[0]
        return normed


class EagleProposer(Proposer):
    """Drafts from an EAGLE head.

    Args:
        head: trained for the target.
        target: its embedding, final norm and output head are used.
        kv_cache: of one layer; as many blocks as the target's, of the same size.
        num_speculative_tokens: most drafts a request gets.
        max_model_len: tokens up to which it may draft.
        device: of all tensors.
    """

    def __init__(
        self,
        head: EagleHead,
        target: LlamaForCausalLM,
        kv_cache: KVCache,
        num_speculative_tokens: int,
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self.head, self.target, self.kv_cache, self.device = head, target, kv_cache, device
        self.k = num_speculative_tokens
        self.max_model_len = max_model_len

    def num_drafts(self, step: ProposerInput) -> NDArray[np.int32]:
        """``[R]``, how many tokens each request may draft; one slot less is written than by a
        draft model, for the newest token stands at the position before its own."""
        num_tokens = step.batch.num_tokens[step.rows]
        slots = step.batch.num_blocks[step.rows] * step.batch.block_size
        room = np.minimum(slots - num_tokens + 2, self.max_model_len - 1 - num_tokens)
        return np.where(step.num_sampled > 0, np.clip(room, 0, self.k), 0)

    def propose(self, step: ProposerInput) -> dict[str, list[int]]:
        """Draft for every request that got a token; fill the head's KV for the others, too.

        The first pass reads, at every position that stays, the target's hidden state there and
        the token behind it. Each further pass reads the draft and the state just guessed.

        Source: vllm/v1/spec_decode/llm_base_proposer.py#L427-L696
        (SpecDecodeBaseProposer.propose) @ v0.22.1
        """
        # A request that has failed in this step has no token behind its last position.
        ends = np.minimum(self.max_model_len, step.batch.num_tokens[step.rows] - 1)
        counts = np.clip(step.num_valid, 0, np.maximum(ends - step.num_computed, 0))
        fed = counts > 0
        hidden = self._first_pass(step, fed, counts[fed])
        limits = self.num_drafts(step)[fed]
        drafting = limits > 0
        rows, limits, hidden = step.rows[fed][drafting], limits[drafting], hidden[drafting]
        drafts: dict[str, list[int]] = {step.request_id(row): [] for row in rows}
        for position in range(self.k if len(rows) else 0):
            tokens = greedy_sample(self.target.compute_logits(hidden))
            for row, token in zip(rows, tokens.tolist(), strict=True):
                drafts[step.request_id(row)].append(token)
            more = limits > position + 1
            rows, limits, tokens, hidden = rows[more], limits[more], tokens[more], hidden[more]
            if not len(rows):
                break
            positions = step.batch.num_tokens[rows].astype(np.int64) - 1 + position
            metadata = one_token_each(step.batch, rows, positions, self.device)
            at = torch.from_numpy(positions).to(self.device)
            hidden = self._run(tokens, hidden, at, metadata)
        return drafts

    def _first_pass(
        self, step: ProposerInput, fed: NDArray[np.bool_], counts: NDArray[np.int32]
    ) -> Tensor:
        """Guessed states ``[R, H]`` behind the last position of each request that is ``fed``."""
        if not fed.any():
            return step.hidden[:0]
        batch, rows, starts = step.batch, step.rows[fed], step.num_computed[fed]
        inputs = DraftBatch(batch, rows, starts, counts, self.device)
        positions = inputs.positions.cpu().numpy()
        next_tokens = torch.from_numpy(batch.token_ids[rows[inputs.requests], positions + 1])
        places = (step.starts[fed] - starts)[inputs.requests] + positions
        hidden = step.hidden[torch.from_numpy(places).to(self.device)]
        tokens = next_tokens.to(self.device)
        return self._run(tokens, hidden, inputs.positions, inputs.metadata)[inputs.last]

    def _run(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """One pass of the head over ``[T]`` tokens and the states ``[T, H]`` before them."""
        embedded = to_compute_dtype(self.target.model.embed_tokens(tokens))
        norm, layers = self.target.model.norm, self.kv_cache.layers
        return self.head(embedded, hidden, positions, layers[0], metadata, norm)

    def scrub(self) -> None:
        self.kv_cache.scrub()
