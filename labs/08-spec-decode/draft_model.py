"""A small model guesses for a large one, in the same blocks.

    KV blocks of the target   [ 3 ][ 7 ][ 4 ]      one block table for both models:
    KV blocks of the draft    [ 3 ][ 7 ][ 4 ]      what is shared, freed or preempted is so for both

After a step the draft model reads what the target has just computed, and the newest token; so it
is never behind, its keys and values of accepted drafts are written anew, and a prefix that the
cache supplies is there for both. Then it goes on alone, one token a pass.

Source: vllm/v1/spec_decode/llm_base_proposer.py#L427-L696 (SpecDecodeBaseProposer.propose)
@ v0.22.1
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.sample.logits_processors import apply_temperature
from mini_vllm.sample.metadata import signed_seed
from mini_vllm.sample.rejection_sampler import DRAFT, drawn_probs, stream_numbers
from mini_vllm.sample.sampler import greedy_sample, sample_from_logits
from mini_vllm.spec_decode.narrow_decoder import DecoderCall
from mini_vllm.spec_decode.proposer import Proposer, ProposerInput
from mini_vllm.worker.input_batch import InputBatch, decodes_first, flatten_tokens
from mini_vllm.worker.kv_cache import KVCache


class DraftBatch:
    """The first pass of a drafter over R requests: each computes ``counts`` tokens after
    ``starts``.

    Args:
        batch: whose block tables and tokens are used.
        rows: ``[R]``, the batch row of each request.
        starts, counts: ``[R]``.

    Attributes:
        requests: ``[T]``, which of the R each token belongs to; those with one token come first.
        input_ids: ``[T]`` int64, the batch's own tokens.
        positions: ``[T]`` int64.
        last: ``[R]``, where each request's last token is among the T.
    """

    def __init__(
        self,
        batch: InputBatch,
        rows: NDArray[np.int64],
        starts: NDArray[np.int32],
        counts: NDArray[np.int32],
        device: torch.device,
    ) -> None:
        order = decodes_first(counts)
        flat = flatten_tokens(counts[order], starts[order])
        self.requests = order[flat.req_indices]
        token_rows = rows[self.requests]
        last = np.empty(len(rows), dtype=np.int64)
        last[order] = flat.query_start_loc[1:] - 1

        def to_device(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self.input_ids = to_device(batch.token_ids[token_rows, flat.positions])
        self.positions = to_device(flat.positions)
        self.last = to_device(last)
        counts, seq_lens = counts[order], (starts + counts)[order]
        width = batch.num_blocks[rows].max()
        self.metadata = AttentionMetadata(
            query_start_loc=to_device(flat.query_start_loc),
            seq_lens=to_device(seq_lens),
            block_table=to_device(batch.block_table[rows[order], :width]),
            slot_mapping=to_device(batch.slot_mapping(token_rows, flat.positions)),
            max_query_len=int(counts.max()),
            max_seq_len=int(seq_lens.max()),
            num_decode_reqs=int((counts == 1).sum()),
            query_lens_cpu=counts.tolist(),
            seq_lens_cpu=seq_lens.tolist(),
        )


def one_token_each(
    batch: InputBatch, rows: NDArray[np.int64], positions: NDArray[np.int64], device: torch.device
) -> AttentionMetadata:
    """Every pass but the first: each request computes the one token at its position.

    Nothing is to be sorted and nothing to be flattened, and at one request every array that is
    built here counts: a small model is done sooner than its inputs are.

    Args:
        batch: whose block tables are used.
        rows, positions: ``[R]``.
    """
    lens = [position + 1 for position in positions.tolist()]
    table = batch.block_table[rows, : cdiv(max(lens), batch.block_size)]
    return AttentionMetadata(
        query_start_loc=torch.arange(len(rows) + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_table=torch.from_numpy(table).to(device),
        slot_mapping=torch.from_numpy(batch.slot_mapping(rows, positions)).to(device),
        max_query_len=1,
        max_seq_len=max(lens),
        num_decode_reqs=len(rows),
        query_lens_cpu=[1] * len(rows),
        seq_lens_cpu=lens,
    )


class DraftModelProposer(Proposer):
    """Drafts from a second model with the same vocabulary.

    Args:
        model: the draft model.
        kv_cache: its keys and values; as many blocks as the target's, of the same size.
        num_speculative_tokens: most drafts a request gets.
        max_model_len: tokens up to which it may draft: its own positions may end before the
            target's.
        device: where both models live.
        probabilistic: draw drafts at the request's temperature; otherwise choose the most likely.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        kv_cache: KVCache,
        num_speculative_tokens: int,
        max_model_len: int,
        device: torch.device,
        probabilistic: bool = False,
    ) -> None:
        self.model, self.kv_cache, self.device = model, kv_cache, device
        self.k = num_speculative_tokens
        self.max_model_len = max_model_len
        self.probabilistic = probabilistic
        self._probs: dict[str, list[Tensor]] = {}

    @cached_property
    def call(self) -> DecoderCall | None:
        """A pass as one call, if it can be one."""
        if not DecoderCall.knows(self.model, self.kv_cache.layers):
            return None
        return DecoderCall(self.model, self.kv_cache.layers, self.max_model_len)

    def first_pass_counts(self, step: ProposerInput) -> NDArray[np.int32]:
        """How many tokens after ``step.num_computed`` each request feeds to the draft model.

        All that the target has computed in the step and that stays (``step.num_valid``), and the
        newest token if there is one. Rejected drafts are left out, so nothing of them is stored.
        The newest token may have no slot yet, or no position in the draft model: then it waits.

        Returns:
            ``[R]``; 0 for a request that is beyond the draft model's positions.

        Source: vllm/v1/spec_decode/llm_base_proposer.py#L698-L830
        (SpecDecodeBaseProposer.set_inputs_first_pass) @ v0.22.1
        """
        # TODO 08.8
        raise NotImplementedError(
            "TODO 08.8: write DraftModelProposer.first_pass_counts in labs/08-spec-decode/draft_model.py"
            " (phase 08, 02-mini-build.md#task-8)"
        )

    def num_drafts(self, step: ProposerInput) -> NDArray[np.int32]:
        """How many tokens each request may draft: as many as find slots and positions.

        The newest token and all drafts but the last are fed, and each writes its keys and values.
        So with n tokens, d drafts write the slots n - 1 ... n + d - 2. The slots end where the
        request's blocks end: behind them lie the blocks of others. Drafts stand at positions n,
        n + 1, ...; the last position, ``max_model_len - 1``, gets none: the scheduler verifies no
        draft there.

        Returns:
            ``[R]``, between 0 and k; 0 for requests without a new token.

        Source: upstream has no such question; see vllm/v1/core/sched/scheduler.py#L700-L707
        (Scheduler.schedule) @ v0.22.1, where an admitted request gets no slots for drafts.
        """
        # TODO 08.8
        raise NotImplementedError(
            "TODO 08.8: write DraftModelProposer.num_drafts in labs/08-spec-decode/draft_model.py"
            " (phase 08, 02-mini-build.md#task-8)"
        )

    def propose(self, step: ProposerInput) -> dict[str, list[int]]:
        """Draft for every request that got a token; fill the draft's KV for the others, too.

        Before anything else :meth:`_forget` drops what earlier drafts were drawn from. The first
        pass (:meth:`_run`) reads the tokens of :meth:`first_pass_counts`; the logits of each
        request's last one give its first draft (:meth:`_choose`). Every further pass feeds the
        draft just made, at the next position, for those requests that may have another
        (:meth:`num_drafts`). The last draft of a request is never fed. The step and its batch stay
        as they are: the batch is the runner's.

        Source: vllm/v1/spec_decode/llm_base_proposer.py#L574-L638
        (SpecDecodeBaseProposer.propose) @ v0.22.1
        """
        # TODO 08.9
        raise NotImplementedError(
            "TODO 08.9: write DraftModelProposer.propose in labs/08-spec-decode/draft_model.py"
            " (phase 08, 02-mini-build.md#task-9)"
        )

    def _run(
        self,
        batch: InputBatch,
        rows: NDArray[np.int64],
        starts: NDArray[np.int32],
        counts: NDArray[np.int32],
        tokens: Tensor | None = None,
    ) -> Tensor:
        """One pass of the draft model; logits ``[R, V]`` of each request's last token.

        Without requests there is no pass.

        Args:
            rows, starts, counts: ``[R]``, see :class:`DraftBatch`.
            tokens: ``[R]``, what to feed instead of the batch's own tokens, one a request.
        """
        if not len(rows):
            return torch.empty(0, 0, device=self.device)
        if self.call is not None and self.call.takes(sum(counts.tolist())):
            return self.call(batch, rows, starts, counts, tokens)
        layers = self.kv_cache.layers
        if tokens is None:
            inputs = DraftBatch(batch, rows, starts, counts, self.device)
            hidden = self.model(inputs.input_ids, inputs.positions, layers, inputs.metadata)
            return self.model.compute_logits(hidden[inputs.last])
        positions = starts.astype(np.int64)
        metadata = one_token_each(batch, rows, positions, self.device)
        at = torch.from_numpy(positions).to(self.device)
        return self.model.compute_logits(self.model(tokens, at, layers, metadata))

    def _choose(
        self, step: ProposerInput, rows: NDArray[np.int64], logits: Tensor, position: int
    ) -> Tensor:
        """Drafts ``[R]`` number ``position`` of the requests in ``rows``, from logits ``[R, V]``.

        A drawn one has the distribution softmax(logits / temperature), which is remembered. It
        has no top-k and no top-p: any q is right, if it is the one that was drawn from.

        Source: vllm/v1/spec_decode/llm_base_proposer.py#L1654-L1691
        (compute_probs_and_sample_next_token) @ v0.22.1
        """
        chosen = greedy_sample(logits) if len(rows) else logits.new_empty(0, dtype=torch.int64)
        if not self.probabilistic or not len(rows):
            return chosen
        states = [step.state(row) for row in rows]
        params = [state.sampling_params for state in states]
        temperature = torch.tensor([p.temperature for p in params], device=self.device)
        scaled = apply_temperature(logits, temperature)
        seeds = torch.tensor([signed_seed(p) for p in params], device=self.device)
        index = torch.tensor([len(s.output_token_ids) for s in states], device=self.device)
        drawn = sample_from_logits(scaled, stream_numbers(seeds, index + position, DRAFT))
        tokens = torch.where(temperature == 0, chosen, drawn)
        probs = drawn_probs(scaled, chosen, temperature)
        for state, row_probs in zip(states, probs, strict=True):
            self._probs.setdefault(state.req_id, []).append(row_probs)
        return tokens

    def _forget(self, step: ProposerInput) -> None:
        """Drop the distributions of drafts that were verified now, or never will be.

        A request that ran in this step has had its drafts verified, one without a row has lost
        them. Others may have drafts that wait for a step with room.
        """
        if not self._probs:
            return
        ran = {step.request_id(row) for row in step.rows}
        waiting = step.batch.req_id_to_row.keys() - ran
        self._probs = {i: probs for i, probs in self._probs.items() if i in waiting}

    def draft_probs(self, request_id: str, num_drafts: int) -> Tensor | None:
        if not self.probabilistic:
            return None
        return torch.stack(self._probs[request_id][:num_drafts])

    def scrub(self) -> None:
        self.kv_cache.scrub()
