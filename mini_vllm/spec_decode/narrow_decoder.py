"""A pass of a narrow draft model as one call, from the rows of a batch to logits, on a CPU.

A small model is done sooner than its inputs are: to look up tokens and slots, to embed and to
rotate takes a dozen operations in Python, and each layer another call. Here `cpu.cpp` does all of
it, with the layers that `model/narrow.py` supports:

    rows, positions -> token ids, slots -> embedding -> layers -> norm -> head -> logits

The numbers are those of the model, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.kernels import native
from mini_vllm.model.layers import Embedding, RMSNorm, TiedEmbedding
from mini_vllm.model.llama import DecoderLayer, LlamaForCausalLM, LlamaModel
from mini_vllm.model.narrow import is_whole, matrix
from mini_vllm.model.rope import RotaryEmbedding
from mini_vllm.worker.input_batch import InputBatch


class DecoderCall:
    """A decoder for `cpu.cpp`: where its weights and its cache lie.

    Args:
        model: loaded; one for which :meth:`knows` is true.
        kv_caches: of its layers.
        max_model_len: positions that it may be asked for.
    """

    def __init__(
        self, model: LlamaForCausalLM, kv_caches: Sequence[Tensor], max_model_len: int
    ) -> None:
        decoder = model.model
        self.dtype = kv_caches[0].dtype
        self.biases: list[Tensor] = []
        self.linears = [model.lm_head, *(x for layer in decoder.layers for x in layer.call.linears)]
        self.hooks = [
            hooks
            for part in model.modules()
            for hooks in (part._forward_pre_hooks, part._forward_hooks)
        ]
        cos, sin = decoder.rotary(torch.arange(max_model_len), torch.float32)
        embedding = decoder.embed_tokens.weight.float()
        self.tensors = (cos, sin, embedding, *kv_caches)  # kept alive: the fields are addresses
        num_layers = len(kv_caches)
        keys, values = zip(*map(native.halves, kv_caches), strict=True)
        self.struct = native.Decoder(
            (native.Layer * num_layers)(*(layer.call.structs[0] for layer in decoder.layers)),
            (native.POINTER * num_layers)(*keys),
            (native.POINTER * num_layers)(*values),
            *(tensor.data_ptr() for tensor in (embedding, cos, sin, decoder.norm.weight)),
            matrix(model.lm_head, self.biases),
            num_layers,
            max_model_len,
            cos.shape[-1],
            *kv_caches[0].shape[1:3],
            decoder.norm.eps,
        )
        self.batch: InputBatch | None = None
        self.rows = native.Batch()

    @staticmethod
    def knows(model: Any, kv_caches: Sequence[Tensor]) -> bool:
        """Whether nothing happens in `model` that `cpu.cpp` does not know, and all of it is here.

        Classes that are derived from those of Llama do something else, or would not be derived.
        """
        if native.library() is None or not isinstance(model, LlamaForCausalLM):
            return False
        decoder, head = model.model, model.lm_head
        made_of = (decoder, decoder.rotary, decoder.norm)
        return (
            tuple(map(type, made_of)) == (LlamaModel, RotaryEmbedding, RMSNorm)
            and type(decoder.embed_tokens) in (Embedding, TiedEmbedding)
            and type(model).forward is LlamaForCausalLM.forward
            and type(model).compute_logits is LlamaForCausalLM.compute_logits
            and decoder.embed_tokens.is_whole
            and decoder.norm.weight.dtype == torch.float32
            and is_whole(head)
            and all(type(layer) is DecoderLayer and layer.call for layer in decoder.layers)
            and all(cache.dtype in native.NAMES for cache in kv_caches)
        )

    def takes(self, num_tokens: int) -> bool:
        """Whether a pass is small enough, and nothing outside takes part in it."""
        return (
            num_tokens <= native.FEW_TOKENS
            and native.library() is not None
            and not any(self.hooks)
            and all(linear.adapters is None for linear in self.linears)
        )

    def __call__(
        self,
        batch: InputBatch,
        rows: NDArray[np.int64],
        starts: NDArray[np.int32],
        counts: NDArray[np.int32],
        tokens: Tensor | None,
    ) -> Tensor:
        """See `DraftModelProposer._run`: logits `[R, V]`.

        Raises IndexError for a token, a position, a slot or a page that there is not.
        """
        if self.batch is not batch:
            self.batch, self.rows = batch, rows_of(batch)
        reads = torch.from_numpy(np.array((rows, starts, counts), dtype=np.int64))
        return native.next_logits(self.struct, self.dtype, self.rows, reads, tokens)


def rows_of(batch: InputBatch) -> native.Batch:
    """Where the rows of a batch lie: its arrays live as long as it does."""
    (num_rows, max_tokens), max_blocks = batch.token_ids.shape, batch.block_table.shape[1]
    addresses = (batch.token_ids.ctypes.data, batch.block_table.ctypes.data)
    return native.Batch(*addresses, num_rows, max_tokens, max_blocks)
