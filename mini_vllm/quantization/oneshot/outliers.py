"""Add outliers to a model that has none. It computes the same function, but is harder to quantise.

Large models have channels whose activations are a hundred times as large as others; the bundled
model has none. Here the weight of each norm is multiplied in some channels, and the columns that
read these channels are divided. In float32 the logits stay the same.
"""

from __future__ import annotations

from pathlib import Path

from mini_vllm import bundled
from mini_vllm.model.build import resolve_dtype
from mini_vllm.model.config import load_config
from mini_vllm.quantization.oneshot.writer import write_folder


def plant_outliers(
    model: str | Path, output_dir: str | Path, factor: float = 64.0, every: int = 24
) -> Path:
    """Write a copy of a checkpoint with outlier channels into the new folder `output_dir`.

    Args:
        model: a bundled model's name, or a folder with a checkpoint in full precision.
        factor: by which each `every`-th channel is multiplied. A power of two changes no logit at
            all.
    """
    from mini_vllm.quantization.oneshot import load_original, original_tensors, readers

    source = bundled.path(str(model)) if str(model) in bundled.NAMES else Path(model)
    fresh = load_original(source)
    for _, norm, linear in readers(fresh):
        norm.weight.data[::every] *= factor
        linear.weight.data[:, ::every] /= factor
    dtype = resolve_dtype("auto", load_config(source))
    write_folder(source, Path(output_dir), original_tensors(fresh, dtype), {})
    return Path(output_dir)
