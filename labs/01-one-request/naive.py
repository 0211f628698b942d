"""One request, the obvious way: the loops that everything else in this engine improves on.

A contiguous KV cache is a paged one whose single block is as long as the request may get, so
the model runs here as it runs in the engine::

    without a cache   step k computes prompt + k tokens      1 + 2 + 3 + ... : quadratic
    with a cache      step k computes 1 token                and reads what the others left
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.llama import LlamaForCausalLM


class ContiguousKVCache:
    """Room for the keys and values of one request of at most ``max_len`` tokens.

    All of it is reserved at once, whatever the request will need: this is the waste that paging
    removes.

    Args:
        model: whose layers the cache serves.
        max_len: tokens.
    """

    def __init__(self, model: LlamaForCausalLM, max_len: int) -> None:
        config = model.config
        self.max_len = max_len
        shape = (2, 2, max_len, config.num_key_value_heads, config.head_dim)  # block 0: null block
        device = model.model.embed_tokens.weight.device
        self.layers = [
            torch.zeros(shape, dtype=model.dtype, device=device)
            for _ in range(config.num_hidden_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the request (the null block is not counted)."""
        return sum(layer.nbytes for layer in self.layers) // 2


@torch.inference_mode()
def next_token_logits(
    model: LlamaForCausalLM, cache: ContiguousKVCache, token_ids: Sequence[int], start: int
) -> Tensor:
    """Compute tokens at positions ``start``, ``start + 1``, ... and return the last one's logits.

    Args:
        model: any of the engine's models.
        cache: holds the keys and values of positions below ``start``; gets those of the new ones.
        token_ids: the new tokens, at least one.
        start: how many tokens the cache holds already.

    Returns:
        ``[V]`` float32, the logits of the token after the last of ``token_ids``.

    Raises:
        ValueError: if there are no tokens, or the cache is too short for them.
    """
    end = start + len(token_ids)
    if not token_ids:
        raise ValueError("token_ids is empty; at least 1 token must be computed")
    if end > cache.max_len:
        raise ValueError(f"{end} tokens do not fit a cache of {cache.max_len}; make it longer")
    device = cache.layers[0].device
    metadata = AttentionMetadata.from_lists([len(token_ids)], [end], [[1]], cache.max_len, device)
    inputs = torch.tensor(token_ids, device=device)
    positions = torch.arange(start, end, device=device)
    hidden = model(inputs, positions, cache.layers, metadata)
    return model.compute_logits(hidden[-1:])[0]


def greedy_without_cache(
    model: LlamaForCausalLM, prompt_token_ids: Sequence[int], max_tokens: int
) -> list[int]:
    """Generate ``max_tokens`` tokens, computing the whole sequence anew for each of them.

    Every step starts from a new, empty :class:`ContiguousKVCache` and calls
    :func:`next_token_logits` with all tokens so far, from position 0. The next token is the one
    with the largest logit.

    Args:
        prompt_token_ids: at least one token.
        max_tokens: how many tokens to generate, EOS or not.

    Returns:
        The generated tokens, without the prompt.
    """
    # TODO 01.1
    raise NotImplementedError(
        "TODO 01.1: write greedy_without_cache in labs/01-one-request/naive.py"
        " (phase 01, 02-mini-build.md#task-1)"
    )


def greedy_with_cache(
    model: LlamaForCausalLM, prompt_token_ids: Sequence[int], max_tokens: int
) -> list[int]:
    """Generate the same tokens, computing every token only once.

    The first call of :func:`next_token_logits` computes the prompt (*prefill*), each further one
    computes the token just sampled (*decode*), at the position after all that the cache holds.
    One cache of ``len(prompt) + max_tokens - 1`` tokens serves all calls: the last token is
    sampled but never computed.

    Args:
        prompt_token_ids: at least one token.
        max_tokens: how many tokens to generate, EOS or not; at least 1.

    Returns:
        The generated tokens, without the prompt.
    """
    # TODO 01.2
    raise NotImplementedError(
        "TODO 01.2: write greedy_with_cache in labs/01-one-request/naive.py"
        " (phase 01, 02-mini-build.md#task-2)"
    )
