"""A KV cache of 8 bits a number, around any attention backend.

    store     keys and values ──quantise──► bytes ──the backend's store──► pages
    forward   pages of this step ──widen──► a small cache of its own ──the backend──► output

Only the pages in this step's block table are widened, into a scratch cache whose pages are numbered
anew. So the backend sees numbers as ever, and twice as many tokens fit the memory.

Two ways to choose the scale:

    per tensor       one number for all keys of a layer, one for all values, from the checkpoint
    per token, head  the largest magnitude decides; the scale lies behind the head it belongs to:
                     [ D bytes of numbers | 4 bytes: its scale as float32 ]

A scale inside the page is copied, shared and evicted with it: nothing else has to know.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionBackend, AttentionMetadata
from mini_vllm.attention.triton_backend import starting_order
from mini_vllm.attention.variants import VariantAttention
from mini_vllm.kernels import can_launch
from mini_vllm.kernels.quantization import PAGED_DECODE_INT8, STORE_KV_INT8

logger = logging.getLogger(__name__)

FP8 = torch.float8_e4m3fn
SCALE_BYTES = 4
MIN_SCALE = 1e-6
MISSING = float("-inf")  # a scale that the checkpoint does not have
LARGE = 1e30  # in place of infinity


@dataclass(frozen=True)
class CacheFormat:
    """How the numbers of a quantised cache are held: as bytes that mean `dtype`.

    Args:
        dtype: int8 or float8_e4m3fn.
        per_token_head: the scale is the token's own, behind each head; otherwise the layer's.
    """

    dtype: torch.dtype
    per_token_head: bool

    @property
    def largest(self) -> float:
        return 127.0 if self.dtype == torch.int8 else 448.0

    @property
    def pad_bytes(self) -> int:
        return SCALE_BYTES if self.per_token_head else 0


FORMATS = {
    "fp8": CacheFormat(FP8, per_token_head=False),
    "fp8_e4m3": CacheFormat(FP8, per_token_head=False),
    "int8_per_token_head": CacheFormat(torch.int8, per_token_head=True),
    "fp8_per_token_head": CacheFormat(FP8, per_token_head=True),
}
"""By the names that `kv_cache_dtype` takes.

Source: vllm/v1/kv_cache_interface.py#L32-L69 (KVQuantMode) @ v0.22.1.
"""


def token_head_scales(x: Tensor, largest: float) -> Tensor:
    """The scale of each token's head: its largest magnitude becomes `largest`.

    `x` is `[T, Hkv, D]`; returns `[T, Hkv, 1]` float32, nowhere below MIN_SCALE.
    """
    return (x.float().abs().amax(-1, keepdim=True) / largest).clamp(min=MIN_SCALE)


def quantize_kv(x: Tensor, form: CacheFormat, scale: float = 1.0) -> Tensor:
    """The bytes that a cache keeps of `x` `[T, Hkv, D]`: `[T, Hkv, D + pad_bytes]` int8.

    `x`, of any floating-point dtype, is widened to float32 first. Numbers are divided by their
    scale (not multiplied by 1 / scale), kept inside the format's range, and rounded: int8 half to
    even (upstream at the pin cuts the fraction off), fp8 by the cast. The range is -`form.largest`
    to `form.largest`: int8's -128 is left out. With `per_token_head` the scale is the head's own
    (see `token_head_scales`), and its four bytes follow the numbers; otherwise `scale` is used. NaN
    becomes 0 and an infinity LARGE, of its sign, before anything else: numbers in a page must never
    break the next request that gets it. `x` stays as it is.

    Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py#L139-L236
    (_reshape_cache_per_token_head) @ v0.22.1.
    """
    x = x.float().nan_to_num(0.0, LARGE, -LARGE)
    scales = token_head_scales(x, form.largest) if form.per_token_head else torch.tensor(scale)
    numbers = (x / scales.to(x.device)).clamp(-form.largest, form.largest)
    if form.dtype == torch.int8:
        numbers = numbers.round()
    data = numbers.to(form.dtype).view(torch.int8)
    if not form.per_token_head:
        return data
    return torch.cat((data, scales.view(torch.int8)), -1)


def dequantize_kv(
    data: Tensor, form: CacheFormat, dtype: torch.dtype, scale: float = 1.0
) -> Tensor:
    """What the bytes of a cache mean: `[..., D + pad_bytes]` int8 -> `[..., D]` in `dtype`.

    The product of number and scale is made in float32 and rounded to `dtype` once.
    """
    if not form.per_token_head:
        return (data.view(form.dtype).float() * scale).to(dtype)
    numbers, scales = data[..., :-SCALE_BYTES], data[..., -SCALE_BYTES:]
    scales = scales.contiguous().view(torch.float32)
    return (numbers.contiguous().view(form.dtype).float() * scales).to(dtype)


class QuantizedKV(nn.Module):
    """The `AttentionBackend` of one layer whose cache holds bytes; `inner` does the arithmetic.

    The buffers `k_scale` and `v_scale` may be filled from a checkpoint. If one is missing, the
    other one is used for both; if both are, 1.
    """

    k_scale: Tensor
    v_scale: Tensor

    def __init__(self, inner: AttentionBackend, form: CacheFormat) -> None:
        super().__init__()
        self.inner, self.form = inner, form
        self.scales = (1.0, 1.0)
        if not form.per_token_head:
            for name in ("k_scale", "v_scale"):
                value = torch.tensor(MISSING, dtype=torch.float32)
                self.register_buffer(name, value, persistent=False)

    @property
    def has_kernels(self) -> bool:
        """Whether a GPU stores and decodes this format without widening pages."""
        return self.form.per_token_head and self.form.dtype == torch.int8

    def process_weights_after_loading(self) -> None:
        """Take the checkpoint's scales. Raises ValueError for one that cannot be one.

        Source: vllm/model_executor/layers/quantization/kv_cache.py#L49-L172
        (BaseKVCacheMethod.process_weights_after_loading) @ v0.22.1.
        """
        if self.form.per_token_head:
            return
        key, value = float(self.k_scale), float(self.v_scale)
        for name, number in (("k_scale", key), ("v_scale", value)):
            if number != MISSING and not 0.0 < number < float("inf"):
                raise ValueError(f"{name} is {number}; it must be a finite number above 0")
        if key == value == MISSING:
            warn_once()
            key = value = 1.0
        self.scales = (value if key == MISSING else key, key if value == MISSING else value)

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """See `AttentionBackend`."""
        if self.has_kernels and can_launch(key):
            keys, values = kv_cache.unbind()
            STORE_KV_INT8.run(
                key=key, value=value, key_cache=keys, value_cache=values, slot_mapping=slot_mapping
            )
            return
        k, v = (
            quantize_kv(x, self.form, scale)
            for x, scale in zip((key, value), self.scales, strict=True)
        )
        self.inner.store(k, v, kv_cache, slot_mapping)

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """See `AttentionBackend`."""
        are_decodes = metadata.num_decode_reqs == metadata.num_reqs
        is_plain = not isinstance(self.inner, VariantAttention)  # the kernel knows no other softmax
        if self.has_kernels and are_decodes and is_plain and can_launch(query):
            return self._decode(query, kv_cache, metadata, scale, sliding_window)
        if metadata.plan is None:
            metadata.plan = renumber_pages(metadata)
        pages, inner_metadata = metadata.plan
        scratch = torch.stack(
            [
                dequantize_kv(half[pages], self.form, query.dtype, number)
                for half, number in zip(kv_cache, self.scales, strict=True)
            ]
        )
        return self.inner.forward(query, scratch, inner_metadata, scale, sliding_window)

    def _decode(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """A step of decodes alone, straight from the bytes."""
        keys, values = kv_cache.unbind()
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        PAGED_DECODE_INT8.run(
            query=query,
            key_cache=keys,
            value_cache=values,
            block_table=metadata.block_table,
            seq_lens=metadata.seq_lens,
            output=output,
            scale=scale,
            window=sliding_window,
            order=starting_order(metadata, len(query) * keys.shape[2]),
        )
        return output


def renumber_pages(metadata: AttentionMetadata) -> tuple[Tensor, AttentionMetadata]:
    """The pages of this step `[P]`, page 0 first, and metadata whose table counts within them.

    A page that several requests share is widened once. All layers use the same answer.
    """
    table = metadata.block_table
    null = torch.zeros(1, dtype=table.dtype, device=table.device)
    pages, numbers = torch.cat((null, table.flatten())).unique(return_inverse=True)
    renumbered = numbers[1:].view(table.shape).to(table.dtype)
    return pages.long(), replace(metadata, block_table=renumbered, plan=None)


@functools.cache
def warn_once() -> None:
    logger.warning(
        "kv_cache_dtype is fp8 and the checkpoint has no k_scale or v_scale: both are 1; "
        "keys and values above 448 are cut off. 'fp8_per_token_head' needs no scales"
    )
