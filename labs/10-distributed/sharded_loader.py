"""Load this rank's part of a checkpoint, with weights in any format.

`loader.load_weights` copies whole tensors into rows, which is enough for a whole model in its own
dtype. This loader handles all other cases: it reads only the slice of each tensor that the layer's
`Part` and the parameter's `ParamSpec` name, and copies it to the rows of its projection. It uses
the functions of `loader` to check names and to copy whole tensors, but has its own loop: a correct
`load_weights` may read files in any order and open them all at once, so it cannot read slices.

    k_proj.qweight in the file [in / 8, out]      rank 1 of 2, rows 32 .. 64 of the matrix
    out_dim = 1, in_dim = 0, in_pack = 8       -> columns 32 .. 64, behind those of q_proj
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.model.checkpoint import TensorInfo, check_dtype, tensor_files
from mini_vllm.model.families import family, table
from mini_vllm.model.families.names import projections
from mini_vllm.model.layout import ParamSpec
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.loader import STACKED_PARAMS, check_names, copy_weight
from mini_vllm.model.memory import copy_in_pieces
from mini_vllm.model.moe.experts import Experts, GroupedLinear
from mini_vllm.model.moe.files import one_by_one

logger = logging.getLogger(__name__)

KV_SCALES = (".k_scale", ".v_scale")


@dataclass(frozen=True)
class Target:
    """The destination of a tensor of the checkpoint.

    Args:
        view: of our parameter.
        cuts: for each dimension that is split, this rank's entries of the tensor.
        shape: of the whole tensor.
        optional: whether the checkpoint may leave it out.
        rows: if given, `view` is its first row, and is copied to all other rows.
        sections: this rank's slices of the tensor's first dimension, if there are several.
    """

    view: Tensor
    cuts: dict[int, slice]
    shape: list[int]
    optional: bool = False
    rows: Tensor | None = None
    sections: tuple[slice, ...] = ()


def part_targets(model: LlamaForCausalLM) -> dict[str, Target]:
    """The target of each tensor name in the checkpoint."""
    targets = {
        model.checkpoint_prefix(name.replace(".backend.", ".")): Target(buffer, {}, [], True)
        for name, buffer in model.named_buffers()
        if name.endswith(KV_SCALES)
    }
    for name, parameter in model.named_parameters():
        names = names_in_file(model, name)
        module = model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, GroupedLinear):
            targets.update(_expert_targets(model, name, module))
            continue
        if _is_stacked_in_file(model, name):
            module.is_stacked_in_file = True
            targets[names[0]] = _stacked_target(module, parameter)
            continue
        targets.update(zip(names, projection_targets(module, parameter), strict=True))
    return targets


def _expert_targets(
    model: LlamaForCausalLM, name: str, module: GroupedLinear
) -> Iterator[tuple[str, Target]]:
    """The targets of each expert's projections in the stack `name`; see `moe/files.py`."""
    parameter = model.get_parameter(name)
    base, _, projection = name.rpartition(".experts.")
    places = list(enumerate(model.get_submodule(f"{base}.experts").local_experts))
    for place, expert in reversed(places):  # the last target counts: that of the first place
        own = parameter.data[place]
        own.spec = parameter.spec  # type: ignore[attr-defined]
        names = names_in_file(model, f"{base}.experts.{expert}.{projection}")
        yield from zip(names, projection_targets(module, own), strict=True)


def absent_experts(model: LlamaForCausalLM) -> Iterator[str]:
    """Names of the experts of other ranks."""
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            for expert in set(range(module.num_experts)).difference(module.local_experts):
                yield f"{name}.{expert}"


def names_in_file(model: LlamaForCausalLM, name: str) -> list[str]:
    """The checkpoint's names of the tensors in the parameter `name`."""
    parts = projections(name, {**STACKED_PARAMS, **model.stacked})
    return [model.checkpoint_prefix(part) for part in parts]


def _stacked_target(module: nn.Module, parameter: nn.Parameter) -> Target:
    """The target of projections that are one tensor in the file.

    They share the tensors that separate projections have each. Blocks of rows are those of the
    whole tensor, which may be fewer than for separate projections. A rank has a piece of each
    projection.
    """
    spec: ParamSpec = getattr(parameter, "spec", ParamSpec(out_dim=None))
    if spec.per_part:
        view = parameter.data[0]
        return Target(view, {}, list(view.shape), spec.optional, parameter.data)
    view = parameter.data
    if spec.out_dim is not None:
        num_rows = sum(part.output_size for part in module.parts)
        view = view.narrow(spec.out_dim, 0, -(-num_rows // spec.out_pack))
    if spec.out_dim is None or module.parts == module.whole_parts:
        return Target(view, {}, list(view.shape), spec.optional)
    assert spec.out_dim == 0 and spec.out_pack == 1, "packed projections of one tensor are not cut"
    starts = list(accumulate((whole.output_size for whole in module.whole_parts), initial=0))
    pieces = zip(starts[:-1], (part.out for part in module.parts), strict=True)
    sections = tuple(slice(start + rows.start, start + rows.stop) for start, rows in pieces)
    shape = [starts[-1], *view.shape[1:]]
    return Target(view, {}, shape, spec.optional, sections=sections)


def _is_stacked_in_file(model: LlamaForCausalLM, name: str) -> bool:
    """Whether a checkpoint has the projections of this parameter in one tensor, as we do."""
    return any(
        list(parts) == [stacked] and f".{stacked}." in name
        for stacked, parts in model.stacked.items()
    )


def projection_targets(module: nn.Module, parameter: nn.Parameter) -> Iterator[Target]:
    """A target for each projection that `parameter` holds, in their order.

    `module.parts` says which rows and columns of each projection are here, `module.whole_parts`
    which there are; `parameter.spec` translates both into entries. Projections follow one another
    along `out_dim`, each with as many entries as it has here; or, with `per_part`, each has a
    tensor of its own. What the spec calls optional, the target does. A parameter without a `spec`
    is a norm: one target, uncut.

        q, k, v with 4, 2 and 2 rows, rank 1 of 2      parameter  0 1 | 2 | 3
                                                       in the file  2 3   1   1
    """
    # TODO 10.6
    raise NotImplementedError(
        "TODO 10.6: write projection_targets in labs/10-distributed/sharded_loader.py"
        " (phase 10, 02-mini-build.md#task-6)"
    )


def load_parts(
    model: LlamaForCausalLM,
    folder: Path,
    rename: Callable[[str], Sequence[str]] | None = None,
    blocks: Collection[str] = (),
) -> None:
    """Copy this rank's part of every tensor of the folder's safetensors files, or a GGUF file's.

    `rename` gives our names of a tensor in the file; `blocks` names the tensors of a GGUF file that
    stay in blocks. Scales of the KV cache are ignored if the cache is not quantised. Raises
    ValueError for a missing or unexpected tensor, a wrong shape or dtype, or a damaged file.
    """
    targets = part_targets(model)
    needless = () if any(name.endswith(KV_SCALES) for name in targets) else KV_SCALES
    name = family({"architectures": list(model.config.architectures)})
    ignored = (*table(name).ignores, *model.config.ignored_tensors)
    absent_names = (*model.absent, *absent_experts(model))
    absent = (model.checkpoint_prefix(f"{name}.") for name in absent_names)
    elsewhere = (*absent, *ignored)  # layer 1. is not layer 11.
    files = tensor_files(folder, model.dtype, blocks)
    if model.config.moe is not None:
        files = one_by_one(files, model.config.moe)
    ours = {
        name: [
            our
            for our in (rename(name) if rename else [name])
            if our in targets or not (our.endswith(needless) or our.startswith(elsewhere))
        ]
        for file in files
        for name, info in file.header.items()
        if 0 not in info.shape or name in targets  # as of a shared expert of no size
    }
    _log_ignored([name for name in ours if name.startswith(ignored)], folder)
    found = {our for names in ours.values() for our in names}
    needed = [name for name, target in targets.items() if name in found or not target.optional]
    check_names(needed, found, folder, tied=model.config.tie_word_embeddings)
    for file in files:
        with file.open() as tensors:
            for name, info in file.header.items():
                for our in ours.get(name, ()):
                    if our in targets:
                        _copy_part(targets[our], tensors, info, name, file.path)


def _log_ignored(names: Sequence[str], folder: Path) -> None:
    if names:
        logger.info(
            "%s: %d tensors are left out, the first of them %s: they draft several tokens at once "
            "(MTP), which is not supported; the model's output does not depend on them",
            folder, len(names), names[0],
        )  # fmt: skip


def _copy_part(target: Target, tensors: Any, info: TensorInfo, name: str, file: Path) -> None:
    check_dtype(info, target.view.dtype, name, file)
    shape = [] if info.shape == [1] and not target.shape else info.shape  # one number, both ways
    if shape != target.shape:
        raise ValueError(
            f"{name!r} in {file} has shape {info.shape}; config.json asks for {target.shape}"
        )
    if target.sections:
        pieces = [tensors.get_slice(name)[(rows,)] for rows in target.sections]
        copy_weight(target.view, torch.cat(pieces), name, file)
    elif any(cut != slice(0, shape[dim]) for dim, cut in target.cuts.items()):
        copy_slice(target, tensors, name, file)
    else:
        copy_in_pieces(target.view, tensors.get_tensor(name).reshape(shape))
    if target.rows is not None:
        target.rows.copy_(target.view.clone())


def copy_slice(target: Target, tensors: Any, name: str, file: Path) -> None:
    """Read from a file the entries that are here, and no others, into their place.

    `tensors.get_slice(name)` reads nothing yet; indexed with a tuple, one slice a dimension, it
    reads just that. `target.shape` is the tensor's. A cut may end behind it, and even begin there:
    a padded vocabulary. Read nothing behind its end: what is not there is zero. `copy_weight`
    converts the dtype.
    """
    # TODO 10.6
    raise NotImplementedError(
        "TODO 10.6: write copy_slice in labs/10-distributed/sharded_loader.py"
        " (phase 10, 02-mini-build.md#task-6)"
    )
