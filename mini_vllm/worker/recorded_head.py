"""The end of a step, recorded: logits, and the plain sampler.

The graphs of decodes (:mod:`~mini_vllm.worker.cuda_graphs`) end with hidden states. What follows
is a product and two kernels for most steps, and Python needs longer to launch them than the GPU to
run them. So they are recorded, too, for each number of rows::

    hidden states   ─►  rows to sample  ─►  logits  ─►  tokens  ─►  ids of the next step
    of any step         copied in           └──── one replay ──┘    read in place

This serves steps whose rows ask for no more than a temperature: mixed ones as well, for what lies
before the hidden states is another matter. Any other step computes its logits and samples as it
would without recordings. Logits stay inside: they are as many as all else in a graph's memory
together, and nothing reads them twice.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1.
Difference: there no graph holds logits or the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.cuda_graphs import Recorder, choose_bucket


class RecordedHead:
    """Logits and the plain sampler for up to so many rows, in tensors that stay where they are.

    Args:
        compute_logits: hidden states ``[B, H]`` to logits ``[B, V]``.
        sampler: of the device.
        hidden: ``[N, H]``, of the model's dtype: what is in it does not matter.
        num_rows: the most rows that a step samples.
    """

    def __init__(
        self,
        compute_logits: Callable[[Tensor], Tensor],
        sampler: Sampler,
        hidden: Tensor,
        num_rows: int,
    ) -> None:
        self.compute_logits, self.sampler = compute_logits, sampler
        self.hidden = hidden.new_zeros(num_rows, hidden.shape[1])
        numbers = torch.zeros(3, num_rows, dtype=torch.int64, device=hidden.device)
        self.token_ids, self.seeds, self.num_output_tokens = numbers
        """``token_ids``: of the newest step, in the order of its rows."""
        self.temperature = torch.zeros(num_rows, device=hidden.device)
        self.vocab_size = 0
        self.replays: dict[int, Callable[[], None]] = {}
        self._loaded: SamplingMetadata | None = None
        self._drawn: Tensor | None = None

    def capture(self, buckets: Sequence[int], record: Recorder) -> None:
        """Record for each of the ascending ``buckets``, the largest first."""
        for bucket in reversed(buckets):
            self.replays[bucket], _ = record(partial(self._run, bucket))

    def _run(self, bucket: int) -> Tensor:
        logits = self.compute_logits(self.hidden[:bucket])
        self.vocab_size = logits.shape[1]
        metadata = SamplingMetadata(
            all_greedy=False,
            all_random=False,
            num_output_tokens=self.num_output_tokens[:bucket],
            temperature=self.temperature[:bucket],
            seeds=self.seeds[:bucket],
        )
        token_ids = self.token_ids[:bucket]
        return token_ids.copy_(self.sampler(logits, metadata).sampled_token_ids)

    def draw(self, hidden: Tensor, rows: Tensor, metadata: SamplingMetadata) -> Tensor | None:
        """The tokens ``[B]`` of some rows of hidden states; None if nothing is recorded for so
        many.

        Args:
            hidden: ``[T, H]``.
            rows: ``[B]`` int64.
            metadata: of the B rows, plain; its counts are kept here from now on.
        """
        num_rows = len(rows)
        bucket = choose_bucket(num_rows, sorted(self.replays))
        if bucket is None:
            return None
        if metadata is not self._loaded:
            self._load(metadata)
        torch.index_select(hidden, 0, rows, out=self.hidden[:num_rows])
        self.replays[bucket]()
        # Read later, by when the next replay may have written over them.
        self._drawn = self.token_ids[:num_rows].clone()
        return self._drawn

    def _load(self, metadata: SamplingMetadata) -> None:
        """Other rows than before: their parameters go where the recordings read them."""
        num_rows = len(metadata.num_output_tokens)
        self.num_output_tokens[:num_rows] = metadata.num_output_tokens
        metadata.num_output_tokens = self.num_output_tokens[:num_rows]
        self.temperature[:num_rows] = 0 if metadata.temperature is None else metadata.temperature
        if metadata.seeds is not None:
            self.seeds[:num_rows] = metadata.seeds
        self._loaded = metadata

    def hold(self, token_ids: Tensor) -> None:
        """Copy the newest step's tokens ``[B]`` into ``token_ids``, unless they were drawn here."""
        if token_ids is not self._drawn:
            self.token_ids[: len(token_ids)] = token_ids
            self._drawn = token_ids
