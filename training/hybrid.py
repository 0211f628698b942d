"""The storyteller again with layers that remember differently, and with experts.

    python -m training.train storyteller-hybrid

Its shape is Qwen3-Next's: three layers with a recurrent state (Gated DeltaNet), then one with full
attention; in each, 8 experts of which a token takes 2, and one that all take. Text, batches and
schedule are the storyteller's. Two things differ from transformers' own start, because a model that
has them learns not to use its states:

- The heads of a state begin with memories of 4, 16, 64 and 256 tokens. transformers draws decays
  that forget within one token, and training does not repair them.
- The experts of each layer are kept equally busy by themselves. Over all layers together a layer
  lets experts die whose numbers another layer likes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, Qwen3NextConfig, Qwen3NextForCausalLM

EXPERTS, CHOSEN = 8, 2
BALANCE = 0.01
"""What keeping experts busy counts beside a nat of cross entropy."""
SMALL = ("embed_tokens", "conv1d", "in_proj_ba", "mlp.gate.weight", "shared_expert_gate")
"""Parameters with two dimensions and more that are no weight matrices for Muon."""


def make_hybrid(vocab_size: int) -> Qwen3NextForCausalLM:
    """The model with random weights."""
    config = Qwen3NextConfig(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=576,
        num_hidden_layers=4,
        full_attention_interval=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        moe_intermediate_size=96,
        shared_expert_intermediate_size=192,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        },
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model = Qwen3NextForCausalLM(config)
    model.set_experts_implementation("grouped_mm")  # trains on a CPU, and faster than one by one
    begin_with_memory(model)
    return model


@torch.no_grad()
def begin_with_memory(model: Qwen3NextForCausalLM) -> None:
    """Let head h of each state forget by a factor of e in 4 ** (h + 1) tokens.

    A state decays by exp(-A * softplus(a + dt_bias)) a token, with a near 0 at the start.
    """
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            state = layer.linear_attn
            tokens = 4.0 ** torch.arange(1, len(state.dt_bias) + 1)
            state.A_log.zero_()
            state.dt_bias.copy_(torch.expm1(1 / tokens).log())


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether Muon takes a parameter: a weight matrix, or a stack of them."""
    return weight.ndim >= 2 and not any(part in name for part in SMALL)


def busy(router_logits: Tensor) -> tuple[Tensor, Tensor]:
    """How unevenly a layer loads its experts (1 is even), and the share of each.

    Args:
        router_logits: [tokens, experts].

    Source: Switch Transformers, equations 4 to 6 (arxiv.org/abs/2101.03961), for several experts
    a token.
    """
    probabilities = F.softmax(router_logits.float(), dim=-1)
    chosen = probabilities.topk(CHOSEN, dim=-1).indices
    share = F.one_hot(chosen, EXPERTS).float().mean(dim=(0, 1))
    return EXPERTS * (share * probabilities.mean(dim=0)).sum(), share


def hidden_and_balance(model: PreTrainedModel, inputs: Tensor) -> tuple[Tensor, Tensor, Any]:
    """The last hidden states, what the experts' balance costs, and the shares by layer."""
    out = model.model(input_ids=inputs, use_cache=False, output_router_logits=True)
    layers = [busy(logits) for logits in out.router_logits]
    uneven = torch.stack([cost for cost, _ in layers]).mean()
    return out.last_hidden_state, BALANCE * uneven, torch.stack([share for _, share in layers])


@torch.no_grad()
def expert_shares(model: PreTrainedModel, inputs: Tensor) -> list[list[float]]:
    """Of each layer, the share of the tokens' choices that each expert gets; even is 0.125."""
    return [
        [round(share, 3) for share in row] for row in hidden_and_balance(model, inputs)[2].tolist()
    ]
