"""How the layers of a model share the blocks of one pool.

Layers that remember alike are a group with a block table of its own. All groups take their blocks
from one pool, so a block has the same bytes in every group. Its tensors stand at *positions*, and
at each position one layer of every group::

                     position 0   position 1
    group 0, full    layer 5      layer 11        a block is a page at every position;
    group 1, window  layer 0      layer 6         the group that holds it writes to
    group 2, window  layer 1      layer 7         the pages of its own layers

A page has one plane for keys and one for values. A state takes the page of a block, too: its
tensors lie one in each plane, at its beginning. The plane of a block may be too small for that;
then blocks get more tokens.

Source: vllm/v1/core/kv_cache_utils.py#L1057-L1176 (_get_kv_cache_groups_uniform_page_size)
@ v0.22.1
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_vllm.config import EngineConfig
from mini_vllm.core.cache_groups import (
    GroupSpec,
    group_layers,
    longest_sequence,
    peak_blocks,
)
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.model.interface import FULL, KVCacheSpec, LayerSpec, StateTensor

logger = logging.getLogger(__name__)

ALIGNMENT = 16
"""Bytes at whose multiples the tensors of a state begin; and tokens by which blocks grow."""


@dataclass(frozen=True)
class CacheLayout:
    """Groups of layers over one pool.

    Args:
        spec: of the model.
        groups: what each group remembers. A cache whose layers all remember everything has one.
        layers: of each group, by position.
        plane_bytes: of one plane of a page.
    """

    spec: KVCacheSpec
    groups: tuple[GroupSpec, ...]
    layers: tuple[tuple[int, ...], ...]
    plane_bytes: int

    @classmethod
    def single(cls, spec: KVCacheSpec, block_size: int) -> CacheLayout:
        """One table for all layers, which keep everything: windows are a matter of attention."""
        plane = block_size * spec.num_kv_heads * spec.width * spec.dtype.itemsize
        group = GroupSpec("full", block_size)
        return cls(spec, (group,), (tuple(range(spec.num_layers)),), plane)

    @classmethod
    def of(cls, spec: KVCacheSpec, config: EngineConfig) -> CacheLayout:
        """The layout for a model under a configuration.

        Raises:
            ValueError: for a budget of tokens below a block that a state has to fill.
        """
        kinds = [narrowed(layer, config) for layer in spec.layers]
        single = cls.single(spec, config.cache.block_size)
        if all(kind == FULL for kind in kinds):
            return single
        block_size, plane = page_size(spec, config.cache.block_size)
        if spec.keeps_states:
            check_state_blocks(config, block_size)
        dealt = group_layers(kinds)
        groups = (group_of(kinds[layers[0]], block_size, config) for layers in dealt)
        return cls(spec, tuple(groups), tuple(map(tuple, dealt)), plane)

    @property
    def is_single(self) -> bool:
        """Whether one table holds all that is ever written."""
        return len(self.groups) == 1 and self.groups[0].kind == "full"

    @property
    def block_size(self) -> int:
        """Tokens of the scheduler's block, which is that of group 0."""
        return self.groups[0].block_size

    @property
    def num_positions(self) -> int:
        return max(map(len, self.layers))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all positions."""
        return self.num_positions * self.spec.planes * self.plane_bytes

    def layer_groups(self) -> list[int]:
        """The group of each layer."""
        found = {layer: group for group, own in enumerate(self.layers) for layer in own}
        return [found[layer] for layer in range(self.spec.num_layers)]

    def peak_blocks(self, num_tokens: int, config: EngineConfig) -> int:
        """The most blocks that a request of so many tokens holds at once."""
        limits = config.scheduler
        return peak_blocks(
            self.groups, num_tokens, limits.max_num_batched_tokens, limits.max_model_len
        )

    def longest_sequence(self, num_blocks: int, config: EngineConfig) -> int:
        """The most tokens of a request that so many blocks hold, up to ``max_model_len``."""
        limits = config.scheduler
        return longest_sequence(
            self.groups, num_blocks, limits.max_num_batched_tokens, limits.max_model_len
        )

    def most_blocks(self, config: EngineConfig) -> int:
        """Blocks that all running requests could fill at full length if none were given back: what
        has left a window stays findable until its block is taken."""
        limits = config.scheduler
        each = sum(cdiv(limits.max_model_len, group.block_size) for group in self.groups)
        return each * limits.max_num_seqs

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor | tuple[Tensor, ...]]:
        """What each layer sees of the tensors at the positions.

        Returns:
            Of a layer of attention the tensor itself, of one with a state ``[blocks, *shape]`` for
            each of its tensors.
        """
        views: dict[int, Tensor | tuple[Tensor, ...]] = {}
        for own in self.layers:
            for layer, tensor in zip(own, tensors, strict=False):
                states = self.spec.layers[layer].states if self.spec.layers else ()
                views[layer] = state_views(tensor, states) if states else tensor
        return [views[layer] for layer in range(self.spec.num_layers)]


def narrowed(layer: LayerSpec, config: EngineConfig) -> LayerSpec:
    """Treat a window or chunk as full attention if no text is longer than it, if all layers share
    one table, or if the chunk ends inside a block."""
    if layer.kind not in ("sliding_window", "chunked_local"):
        return layer
    if config.scheduler.disable_hybrid_kv_cache_manager or layer.chunk % config.cache.block_size:
        return FULL
    return FULL if max(layer.window, layer.chunk) >= config.scheduler.max_model_len else layer


def group_of(layer: LayerSpec, block_size: int, config: EngineConfig) -> GroupSpec:
    """What a group of such layers remembers. Without a prefix cache a state has one block."""
    if layer.kind != "mamba":
        return GroupSpec(layer.kind, block_size, layer.window, layer.chunk)
    if config.cache.enable_prefix_caching:
        return GroupSpec("mamba", block_size, mode="align")
    return GroupSpec("mamba", config.scheduler.max_model_len, mode="none")


def page_size(spec: KVCacheSpec, block_size: int) -> tuple[int, int]:
    """Tokens of a block whose planes hold the largest state, and bytes of such a plane.

    Blocks keep ``block_size`` if that suffices; else they grow, to the next multiple of 16.

    Upstream does the same, and pads the page of a state where ours is cut into planes.
    """
    needed = max((state_plane_bytes(layer.states, spec.planes) for layer in spec.layers), default=0)
    if all(layer.kind == "mamba" for layer in spec.layers):
        return block_size, needed
    token = spec.num_kv_heads * spec.width * spec.dtype.itemsize
    if block_size * token < needed:
        grown = cdiv(needed, ALIGNMENT * token) * ALIGNMENT
        logger.info(
            "block_size is raised from %d to %d tokens: a block of keys and values must hold the "
            "state of a layer, %d bytes in each plane", block_size, grown, needed
        )  # fmt: skip
        block_size = grown
    return block_size, block_size * token


def check_state_blocks(config: EngineConfig, block_size: int) -> None:
    """A state is kept if a step ends at the end of a block, so a step must be able to fill one.

    Source: vllm/config/vllm.py#L2132-L2144 (VllmConfig.validate_mamba_block_size) @ v0.22.1
    """
    limits = config.scheduler
    if not config.cache.enable_prefix_caching:
        return
    for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        if 0 < (value := getattr(limits, name)) < block_size:
            raise ValueError(
                f"{name} is {value}; a block of {block_size} tokens holds the state of a layer, "
                f"and a step must be able to fill a block; set it to at least {block_size}, or set "
                "enable_prefix_caching=False"
            )


def state_places(states: Sequence[StateTensor], planes: int) -> list[tuple[int, int]]:
    """The plane of each tensor, and the byte in it where the tensor begins."""
    ends = [0] * planes
    places = []
    for index, state in enumerate(states):
        plane = index % planes
        places.append((plane, ends[plane]))
        ends[plane] += cdiv(state.num_bytes, ALIGNMENT) * ALIGNMENT
    return places


def state_plane_bytes(states: Sequence[StateTensor], planes: int) -> int:
    """Bytes that the fullest plane needs."""
    places = zip(states, state_places(states, planes), strict=True)
    return max((start + state.num_bytes for state, (_, start) in places), default=0)


def state_views(tensor: Tensor, states: Sequence[StateTensor]) -> tuple[Tensor, ...]:
    """``[blocks, *shape]`` for each tensor of a state, over a position's ``[planes, blocks, ...]``.

    The inner part of a view is contiguous; from block to block it is a page's plane.
    """
    pages = tensor.view(torch.int8).flatten(2)
    views = []
    for state, (plane, start) in zip(states, state_places(states, len(pages)), strict=True):
        numbers = pages[plane, :, start : start + state.num_bytes].view(state.dtype)
        views.append(numbers.unflatten(1, state.shape))
    return tuple(views)
