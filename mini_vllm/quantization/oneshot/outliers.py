"""Plant outliers into a model that has none: the same function, and harder to round.

Large models have channels a hundred times as loud as the others; the bundled one has not. Each
norm's weight is multiplied in some channels, and the columns that read them are divided: every
logit stays what it was, in float32. Rounding then meets loud activations.
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
    """Write a copy of a checkpoint with loud channels into the new folder `output_dir`.

    Args:
        model: a bundled model's name, or a folder with a checkpoint in full precision.
        factor: how much louder each `every`-th channel becomes. A power of two changes no logit
            at all.
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
