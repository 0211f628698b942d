"""The config entries of the layers in this folder, under the names of config files."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GatedDeltaArgs:
    """A layer with the gated delta rule; see `gated_delta_net.py`.

    Args:
        num_key_heads, num_value_heads: each key head serves num_value_heads / num_key_heads value
            heads.
        key_head_dim, value_head_dim: rows and columns of a head's matrix.
        conv_kernel_dim: tokens that the convolution mixes.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_dim: int

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_size + self.value_size

    def share(self, num_value_heads: int) -> GatedDeltaArgs:
        """The args of a rank with `num_value_heads` value heads, and the key heads that serve
        them."""
        served = self.num_value_heads // self.num_key_heads
        keys = num_value_heads // served
        return replace(self, num_key_heads=keys, num_value_heads=num_value_heads)


@dataclass(frozen=True)
class Mamba2Args:
    """A layer with Mamba2's state space; see `mamba2_mixer.py`.

    Args:
        num_heads, head_dim: x is `[num_heads, head_dim]`.
        state_size: numbers of B and of C for each group of heads.
        n_groups: groups of heads that share B and C.
        conv_kernel: tokens that the convolution mixes.
        use_conv_bias, use_bias: of the convolution, and of both projections.
    """

    num_heads: int
    head_dim: int
    state_size: int
    n_groups: int
    conv_kernel: int
    use_conv_bias: bool
    use_bias: bool

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: x, B and C."""
        return sum(self.conv_sizes)

    @property
    def conv_sizes(self) -> list[int]:
        shared = self.n_groups * self.state_size
        return [self.inner_size, shared, shared]

    def share(self, num_heads: int) -> Mamba2Args:
        """The args of a rank with `num_heads` heads and their groups, or the group that all
        share."""
        groups = max(1, self.n_groups * num_heads // self.num_heads)
        return replace(self, num_heads=num_heads, n_groups=groups)


@dataclass(frozen=True)
class LatentArgs:
    """Multi-head latent attention; see `latent_attention.py`.

    Args:
        kv_lora_rank: numbers of a latent, C.
        q_lora_rank: numbers of the latent of queries; None: queries come from the hidden state.
        qk_nope_head_dim, qk_rope_head_dim: of a head's key, without (P) and with rotation (R).
        v_head_dim: of a head's value, V.
    """

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_size(self) -> int:
        """Numbers of a token in a layer's cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim
