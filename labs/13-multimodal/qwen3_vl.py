"""Qwen3-VL: a vision encoder in front of Qwen3.

    picture -> patches [P, C*2*p*p] -> encoder, P rows -> each 2 x 2 become one -> P/4 rows [H]
                                          |                                           |
                 DeepStack: rows from inside the encoder                 take the places of
                                          v                          placeholders     v
                 decoder layers 0, 1, ...  <------------------------------ embeddings [T, H]

The encoder processes each picture by itself, without the text and without other pictures. Patches
are in *merge order*: the 2 x 2 patches that become one token follow one another.

Source: vllm/model_executor/models/qwen3_vl.py#L520-L834 (Qwen3_VisionTransformer) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import PLAIN, Build, Linear, to_compute_dtype
from mini_vllm.model.qwen3 import Qwen3ForCausalLM
from mini_vllm.model.rope import RotaryEmbedding
from mini_vllm.model.vision_config import VisionArgs

EPS = 1e-6


def patch_positions(grid_h: int, grid_w: int, merge: int) -> Tensor:
    """Row and column of each patch of a picture, in merge order: `[grid_h * grid_w, 2]` int64.

        grid 4 x 4, merge 2      0  1 | 4  5       patch 0 is at (0, 0), patch 1 at (0, 1),
                                 2  3 | 6  7       patch 2 at (1, 0), patch 4 at (0, 2)
                                 -----+------
                                 8  9 | 12 13      `merge * merge` neighbours follow one another;
                                10 11 | 14 15      so do the blocks of a row of blocks

    Both sides are multiples of `merge`.
    Source: vllm/model_executor/models/qwen3_vl.py#L633-L658 (Qwen3_VisionTransformer.rot_pos_ids)
    @ v0.22.1.
    """
    # TODO 13.11
    raise NotImplementedError(
        "TODO 13.11: write patch_positions in labs/13-multimodal/qwen3_vl.py"
        " (phase 13, 02-mini-build.md#task-11)"
    )


def attend_within_pictures(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Attention without a mask inside each picture, and none between pictures. Scores are divided
    by the square root of D, and may be in the thousands.

    All are `[P, heads, D]`, the patches of several pictures one after another; `lengths` says how
    many belong to each. Returns `[P, heads, D]` in the dtype of `query`.
    """
    # TODO 13.11
    raise NotImplementedError(
        "TODO 13.11: write attend_within_pictures in labs/13-multimodal/qwen3_vl.py"
        " (phase 13, 02-mini-build.md#task-11)"
    )


class VisionAttention(nn.Module):
    def __init__(self, args: VisionArgs) -> None:
        super().__init__()
        self.num_heads = args.num_heads
        self.qkv = Linear(args.hidden_size, 3 * args.hidden_size, bias=True)
        self.proj = Linear(args.hidden_size, args.hidden_size, bias=True)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], lengths: Sequence[int]) -> Tensor:
        query, key, value = self.qkv(x).view(len(x), 3, self.num_heads, -1).unbind(1)
        query, key = rotate(query, *rope), rotate(key, *rope)
        out = attend_within_pictures(query, key, value, lengths)
        return self.proj(out.flatten(1))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` `[P, heads, D]` by the angles with `cos` and signed `sin` `[P, 1, D]`."""
    turned = x.float() * cos + x.float().roll(x.shape[-1] // 2, dims=-1) * sin
    return turned.to(x.dtype)


class VisionMLP(nn.Module):
    def __init__(self, args: VisionArgs) -> None:
        super().__init__()
        self.linear_fc1 = Linear(args.hidden_size, args.intermediate_size, bias=True)
        self.linear_fc2 = Linear(args.intermediate_size, args.hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class VisionBlock(nn.Module):
    def __init__(self, args: VisionArgs) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(args.hidden_size, eps=EPS)
        self.norm2 = nn.LayerNorm(args.hidden_size, eps=EPS)
        self.attn = VisionAttention(args)
        self.mlp = VisionMLP(args)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], lengths: Sequence[int]) -> Tensor:
        x = x + self.attn(self.norm1(x), rope, lengths)
        return x + self.mlp(self.norm2(x))


class PatchMerger(nn.Module):
    """Makes one row for the decoder from each 2 x 2 patches: `[P, C] -> [P / 4, H]`.

    The last merger norms each patch and then concatenates four; those of DeepStack concatenate
    first.
    """

    def __init__(self, args: VisionArgs, norm_merged: bool) -> None:
        super().__init__()
        self.merged_size = args.hidden_size * args.spatial_merge_size**2
        self.norm_merged = norm_merged
        self.norm = nn.LayerNorm(self.merged_size if norm_merged else args.hidden_size, eps=EPS)
        self.linear_fc1 = Linear(self.merged_size, self.merged_size, bias=True)
        self.linear_fc2 = Linear(self.merged_size, args.out_hidden_size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_merged:
            x = self.norm(x.view(-1, self.merged_size))
        else:
            x = self.norm(x).view(-1, self.merged_size)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class PatchEmbed(nn.Module):
    """One row for each patch. The checkpoint's 3D convolution has a stride equal to its size, so it
    is one product."""

    def __init__(self, args: VisionArgs) -> None:
        super().__init__()
        size = (args.temporal_patch_size, args.patch_size, args.patch_size)
        self.proj = nn.Conv3d(args.in_channels, args.hidden_size, size, stride=size)

    def forward(self, pixels: Tensor) -> Tensor:
        return F.linear(pixels, self.proj.weight.flatten(1), self.proj.bias)


class Qwen3VisionModel(nn.Module):
    """The encoder: patches of several pictures in, rows for the decoder out."""

    def __init__(self, args: VisionArgs) -> None:
        super().__init__()
        self.args = args
        self.patch_embed = PatchEmbed(args)
        self.pos_embed = nn.Embedding(args.num_position_embeddings, args.hidden_size)
        self.blocks = nn.ModuleList(VisionBlock(args) for _ in range(args.depth))
        self.merger = PatchMerger(args, norm_merged=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(args, norm_merged=True) for _ in args.deepstack_visual_indexes
        )
        quarter = args.hidden_size // args.num_heads // 4  # pairs for rows, and as many for columns
        # Not a buffer: casting the model to bfloat16 must not round the frequencies.
        self.inv_freq = args.rope_theta ** -(torch.arange(quarter).float() / quarter)

    def process_weights_after_loading(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.LayerNorm | nn.Embedding | nn.Conv3d):
                for parameter in module.parameters():
                    parameter.data = to_compute_dtype(parameter)

    def forward(self, pixel_values: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        """Rows `[P / 4, H * (1 + levels)]`: the embedding, then DeepStack's, side by side.

        `pixel_values` is `[P, patch_dim]`, the patches of all pictures in merge order; `grids` says
        how many patches each has in height and width.
        Source: vllm/model_executor/models/qwen3_vl.py#L793-L834 (Qwen3_VisionTransformer.forward)
        @ v0.22.1.
        """
        merge, device = self.args.spatial_merge_size, pixel_values.device
        positions = [patch_positions(h, w, merge).to(device) for h, w in grids]
        rope = self._rope(torch.cat(positions))
        x = self.patch_embed(pixel_values.to(self.pos_embed.weight.dtype))
        x = x + torch.cat([self._learned(p, g) for p, g in zip(positions, grids, strict=True)])
        lengths = [len(p) for p in positions]
        levels = []
        for index, block in enumerate(self.blocks):
            x = block(x, rope, lengths)
            if index in self.args.deepstack_visual_indexes:
                level = self.args.deepstack_visual_indexes.index(index)
                levels.append(self.deepstack_merger_list[level](x))
        return torch.cat([self.merger(x), *levels], dim=1)

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin `[P, 1, D]`: a quarter of a head is rotated by the row, a quarter by
        the column, and the other half by the same angles."""
        angles = (positions[:, :, None].float() * self.inv_freq).flatten(1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _learned(self, positions: Tensor, grid: tuple[int, int]) -> Tensor:
        """The learned position vectors `[P, C]` of a picture.

        They were learned on a square grid, which is scaled to the picture's size with bilinear
        interpolation.
        Source: vllm/model_executor/models/qwen3_vl.py#L278-L345 (pos_embed_interpolate_native)
        @ v0.22.1.
        """
        side = int(self.args.num_position_embeddings**0.5)
        sizes = torch.tensor(grid, device=positions.device)
        places = positions.float() * (side - 1) / (sizes - 1).clamp(min=1)
        low = places.floor().long()
        high = (low + 1).clamp(max=side - 1)
        share = places - low
        vectors = torch.zeros(1, device=positions.device)
        for rows, row_share in ((low[:, 0], 1 - share[:, 0]), (high[:, 0], share[:, 0])):
            for columns, share_of in ((low[:, 1], 1 - share[:, 1]), (high[:, 1], share[:, 1])):
                weight = (row_share * share_of)[:, None]
                vectors = vectors + self.pos_embed(rows * side + columns) * weight
        return vectors.to(self.pos_embed.weight.dtype)


class MRotaryEmbedding(RotaryEmbedding):
    """Rotary embedding for positions in time, height and width.

    Each pair of features uses one of the three. They are interleaved, so that each has fast and
    slow pairs: T H W T H W ... T T T. A text token has the same position in all three, and is
    rotated as without this class.

    Source: vllm/model_executor/layers/rotary_embedding/mrope.py#L190-L198
    (apply_interleaved_rope) @ v0.22.1.
    """

    def __init__(self, args: ModelArgs, section: Sequence[int]) -> None:
        super().__init__(args)
        pairs = torch.arange(len(self.inv_freq))
        row = pairs % 3
        row[pairs >= 3 * torch.tensor(section)[row]] = 0
        self.row_of_pair = row

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """As in the base class; `positions` are `[T]`, or `[3, T]` in a step with pictures."""
        if positions.ndim == 1:
            return super().forward(positions, dtype)
        angles = positions[self.row_of_pair].T[:, None].float() * self.inv_freq
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


class Qwen3VLForConditionalGeneration(Qwen3ForCausalLM):
    """Qwen3 with a vision encoder.

    Source: vllm/model_executor/models/qwen3_vl.py#L1602-L1765 (Qwen3VLForConditionalGeneration)
    @ v0.22.1.
    """

    supports = frozenset({"images", "lora", "quantization"})

    def __init__(self, args: ModelArgs, build: Build = PLAIN) -> None:
        super().__init__(args, build)
        assert args.vision is not None, "config.json has no vision_config"
        self.model.rotary = MRotaryEmbedding(args, args.vision.mrope_section)
        self.visual = Qwen3VisionModel(args.vision)

    def checkpoint_prefix(self, name: str) -> str:
        if name.startswith("visual."):
            return f"model.{name}"
        return name.replace("model.", "model.language_model.", 1)

    def embed_multimodal(self, *, pixel_values: Tensor, image_grid_thw: Tensor) -> list[Tensor]:
        """The rows of each picture, `[tokens, H * (1 + levels)]`: embedding and DeepStack features.

        Args:
            pixel_values: `[P, patch_dim]`, the patches of all pictures one after another.
            image_grid_thw: `[pictures, 3]`, patches in time (1), height and width.

        Source: vllm/model_executor/models/qwen3_vl.py#L2676-L2704
        (Qwen3VLForConditionalGeneration.embed_multimodal) @ v0.22.1.
        """
        grids = [(h, w) for _, h, w in image_grid_thw.tolist()]
        rows = self.visual(pixel_values, grids)
        merge = self.visual.args.spatial_merge_size
        return list(rows.split([h * w // merge**2 for h, w in grids]))
