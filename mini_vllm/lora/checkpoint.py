"""Loads an adapter's folder into matrices for our modules, and refuses matrices that do not fit.

A checkpoint has a pair for each projection; we keep several projections in one matrix. Each of its
parts ("slices") has its own pair, or none::

    checkpoint                        ours: model.layers.0.self_attn.qkv_proj
    ...q_proj  A [r, in], B [q, r] -> slice 0
    ...k_proj  (not adapted)       -> slice 1: None, adds nothing
    ...v_proj  A [r, in], B [k, r] -> slice 2
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from safetensors.torch import load
from torch import Tensor

from mini_vllm.config import LoRAConfig
from mini_vllm.lora.peft import PREFIX, PEFTHelper, parse_fine_tuned_lora_name
from mini_vllm.lora.registry import WEIGHTS_FILE, AdapterFiles, read_adapter
from mini_vllm.model.checkpoint import FLOATS, read_shapes
from mini_vllm.model.layout import Part
from mini_vllm.model.moe.expert_names import common_name


class LoRAPair(NamedTuple):
    """An adapter's pair for one projection, to which it adds B (A x). B includes the scale."""

    a: Tensor
    """``[r, in]``"""
    b: Tensor
    """``[out, r]``"""


@dataclass(frozen=True, slots=True)
class LoRATarget:
    """The place of an adaptable projection in the base model."""

    module: str
    """Our module, as in ``model.layers.0.self_attn.qkv_proj``."""
    index: int
    """The slice of the module."""
    num_slices: int
    whole: Part
    """The rows and columns of the projection."""
    part: Part
    """The rows and columns on this rank."""


Targets = Mapping[str, LoRATarget]
"""By the checkpoint's name of the projection: ``model.layers.0.self_attn.q_proj``."""


WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.", "model.", "")
"""Prefixes of a decoder's layers, which depend on the class that an adapter was trained with. An
adapter of the language model alone fits the vision-language model, too, and vice versa; that of a
model without a head, as for embeddings, has no prefix."""


def own_name(module: str, start: str) -> str:
    """A module's name in the base's checkpoint, where the layers have the prefix ``start``."""
    for wrapper in (start, *WRAPPERS):
        if module.startswith(f"{wrapper}layers."):
            return start + module.removeprefix(wrapper)
    return module


def our_name(module: str, start: str, targets: Targets) -> str:
    """A module's name among the targets, where the base's files have other names for the parts of a
    mixture of experts than we do (``shared_experts``)."""
    own = own_name(module, start)
    return own if own in targets else common_name(f"{own}.").removesuffix(".")


@dataclass(frozen=True)
class LoRAModel:
    """One adapter, ready to be copied into a slot.

    Attributes:
        key: its identity; see :mod:`mini_vllm.lora.registry`.
        weights: a list for each of our modules that it changes; a pair or None for each slice.
    """

    key: str
    weights: dict[str, list[LoRAPair | None]]

    @property
    def rank(self) -> int:
        """The largest rank among its pairs."""
        return max(len(pair.a) for pairs in self.weights.values() for pair in pairs if pair)

    @property
    def num_bytes(self) -> int:
        pairs = (pair for pairs in self.weights.values() for pair in pairs if pair)
        return sum(t.numel() * t.itemsize for pair in pairs for t in pair)

    @classmethod
    def from_tensors(
        cls, key: str, tensors: Mapping[str, Tensor], config: PEFTHelper, targets: Targets
    ) -> LoRAModel:
        """Pair the tensors of a checkpoint and put each pair where the base keeps its projection.

        The scale (:meth:`PEFTHelper.scaling`, by the projection's own rank) is multiplied into B,
        in float32; A stays as it is, in its own dtype. A slice without a pair stays None.

        Args:
            tensors: by the checkpoint's names, complete pairs, all of them in ``targets``.
            targets: where each projection is kept.

        Source: vllm/lora/lora_model.py#L116-L164 (LoRAModel.from_lora_tensors) @ v0.22.1
        """
        weights: dict[str, list[LoRAPair | None]] = {}
        for name, (a, b) in pair_tensors(tensors).items():
            target = targets[name]
            slices = weights.setdefault(target.module, [None] * target.num_slices)
            slices[target.index] = LoRAPair(a, b.float() * config.scaling(name, len(a)))
        return cls(key, weights)

    @classmethod
    def from_local_checkpoint(
        cls,
        key: str,
        path: str | Path,
        targets: Targets,
        lora_config: LoRAConfig,
        dtype: torch.dtype = torch.float32,
        elsewhere: tuple[str, ...] = (),
    ) -> LoRAModel:
        """Load and check the adapter in folder ``path``; its matrices get ``dtype``.

        Args:
            key: ``name@digest``; the files must still have this digest. Without ``@`` it is not
                checked.
            elsewhere: prefixes of modules on other pipeline stages.

        Raises:
            ValueError: for an adapter that cannot be used: see section "Bad adapters" of the guide
                of phase 11. The message has the folder, what was found and what was expected.
        """
        files = read_adapter(path)
        name, digest = key.rsplit("@", 1) if "@" in key else (key, "")
        try:
            if digest and files.digest != digest:
                raise ValueError(
                    "its files have changed since it was asked for; ask again, with "
                    "load_inplace=True"
                )
            config = PEFTHelper.from_json(files.config)
            config.validate_legal()
            tensors = read_tensors(files, Path(path) / WEIGHTS_FILE)
            check_no_embedding(tensors)
            start = next(iter(targets), "").partition("layers.")[0]
            named = {n: parse_fine_tuned_lora_name(n)[0] for n in tensors}
            tensors = {
                name: tensor
                for name, tensor in tensors.items()
                if not own_name(named[name], start).startswith(elsewhere)
            }
            # By the adapter's names, because its alpha_pattern uses them, too.
            given = {our_name(module, start, targets): module for module in named.values()}
            targets = {given.get(name, name): target for name, target in targets.items()}
            check_pairs(tensors, targets, lora_config.max_lora_rank)
            adapter = cls.from_tensors(key, tensors, config, targets)
            for module, target in targets.items():
                if slices := adapter.weights.get(target.module):
                    pair = slices[target.index]
                    slices[target.index] = pair and shard_lora(pair, target.part, dtype)
                    check_finite(module, slices[target.index])
        except ValueError as error:
            raise ValueError(f"adapter {name!r} ({path}) cannot be used: {error}") from error
        return adapter


def shard_lora(pair: LoRAPair, part: Part, dtype: torch.dtype) -> LoRAPair:
    """The shard of a pair for a rank that has only ``part`` of the projection.

    A rank with some of the rows of W needs those rows of B and all of A. A rank with some of the
    columns of W gets these columns of x: it needs these columns of A and all of B, and its delta
    is a partial sum, like its W x.

    Source: vllm/lora/layers/row_parallel_linear.py#L24-L40 (RowParallelLinearWithLoRA.slice_lora_a)
    @ v0.22.1
    """
    a, b = pair.a[:, part.in_], pair.b[part.out]
    return LoRAPair(a.to(dtype).contiguous(), b.to(dtype).contiguous())


def check_finite(module: str, pair: LoRAPair | None) -> None:
    """Raise ValueError if numbers of a pair overflow its dtype, as in B with a large scale."""
    for part, tensor in zip("AB", pair or (), strict=False):
        if not tensor.isfinite().all():
            raise ValueError(
                f"{module}.lora_{part}.weight has numbers beyond what {tensor.dtype} holds, once "
                "its scale is in it; is lora_alpha right?"
            )


def pair_tensors(tensors: Mapping[str, Tensor]) -> dict[str, LoRAPair]:
    """The pair of each adapted projection, by the projection's name.

    Raises:
        ValueError: for a name that is not of an adapter's kind, or half a pair: "<module> has
            lora_A but no lora_B", or the other way round.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, part = parse_fine_tuned_lora_name(name)
        halves.setdefault(module, {})[part] = tensor
    for module, found in halves.items():
        if len(found) < 2:
            missing = "B" if "A" in found else "A"
            raise ValueError(f"{module} has lora_{min(found)} but no lora_{missing}")
    return {module: LoRAPair(found["A"], found["B"]) for module, found in halves.items()}


def read_tensors(files: AdapterFiles, file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file whose bytes have been read already.

    Raises:
        ValueError: if it is cut off (with the bytes found), damaged or empty.
    """
    try:
        tensors = dict(sorted(load(files.weights).items()))  # they may be in any order
    except safetensors.SafetensorError as error:
        read_shapes(file)  # says it better, if the file is too short
        raise ValueError(f"{file} is damaged: {error}") from error
    if not tensors:
        raise ValueError(f"{file} holds no tensors")
    return tensors


def check_no_embedding(names: Iterable[str]) -> None:
    """Refuse all tensors that PEFT saves of an embedding or a head: pairs and whole matrices.

    Raises:
        ValueError: with the name of the tensor.
    """
    for name in names:
        if re.search(r"(^|\.)(embed_tokens|lm_head|wte)\.(base_layer\.)?\w+$", name):
            raise ValueError(
                f"{name}: adapters of the embedding or the head are not supported; train it "
                "without them, and save it with save_embedding_layers=False"
            )


def check_pairs(tensors: Mapping[str, Tensor], targets: Targets, max_lora_rank: int) -> None:
    """Refuse an adapter that does not fit the base.

    Raises:
        ValueError: for a module that the base lacks or that cannot be adapted, half a pair, two of
            one name, a wrong shape, a rank above ``max_lora_rank``, or numbers that are not finite.
    """
    for name in tensors:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in tensors:
            raise ValueError(f"{name} is there twice, with and without {PREFIX!r}")
    for module, pair in pair_tensors(tensors).items():
        if module not in targets:
            raise ValueError(unknown_module(module, targets))
        target = targets[module]
        rank = pair.a.shape[0] if pair.a.dim() == 2 else 1
        for part, tensor, shape in zip(
            "AB",
            pair,
            ((rank, target.whole.input_size), (target.whole.output_size, rank)),
            strict=True,
        ):
            name = f"{module}.lora_{part}.weight"
            if tensor.dtype not in FLOATS.values():
                raise ValueError(
                    f"{name} is {tensor.dtype}; it must hold floating-point numbers of 16 bits or "
                    "more"
                )
            if tuple(tensor.shape) != shape or rank < 1:
                raise ValueError(
                    f"{name} is {list(tensor.shape)}, the base asks for {list(shape)}; was it "
                    "trained for another base?"
                )
            if not tensor.isfinite().all():
                raise ValueError(f"{name} holds NaN or infinite numbers")
        if rank > max_lora_rank:
            raise ValueError(
                f"{module} has rank {rank}, above max_lora_rank={max_lora_rank}; raise it to {rank}"
            )


def unknown_module(module: str, targets: Targets) -> str:
    """The message for a module that cannot be adapted, with those that can."""
    last = module.rpartition(".")[2]
    if last in ("embed_tokens", "lm_head", "wte"):
        return f"{module}: adapters of the embedding or the head are not supported"
    if ".experts." in module:
        return f"{module}: adapters of experts are not supported; train it without them"
    layers = [int(n) for t in targets for n in re.findall(r"\.layers\.(\d+)\.", t)]
    numbers = re.findall(r"\.layers\.(\d+)\.", module)
    if numbers and layers and int(numbers[0]) > max(layers):
        return f"{module}: the base has {max(layers) + 1} layers; was it trained for another base?"
    known = sorted({target.rpartition(".")[2] for target in targets})
    return f"the base has no module {module!r}; those that can be adapted are {', '.join(known)}"
