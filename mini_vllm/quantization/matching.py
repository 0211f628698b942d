"""Which layers a rule of a checkpoint matches: rules name its modules; ours may stack several.

    rule               "re:.*v_proj"
    the checkpoint's   model.layers.0.self_attn.q_proj, ....k_proj, ....v_proj    one matches
    ours               model.layers.0.self_attn.qkv_proj                          stacks all three

A pattern is matched with the parts of a stacked layer, and not with its own name, which is unknown
to checkpoints: "re:.*v_proj" would match "qkv_proj". All parts must be quantised in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mini_vllm.model.families.names import renamed
from mini_vllm.model.moe.expert_names import common_name

Stacked = Mapping[str, Sequence[str]]
"""The projections in one matrix, {"qkv_proj": ["q_proj", ...]}: `stacked` of a model."""
InFile = Callable[[str], str]
"""The checkpoint's name of one of our projections, where a family's files have other names."""


def shards_of(prefix: str, stacked: Stacked, in_file: InFile = str) -> list[str]:
    """The checkpoint's names of the layer `prefix`: one, or those stacked in it."""
    parent, _, name = prefix.rpartition(".")
    parts = stacked.get(name, [name])
    return [in_file(f"{parent}.{part}" if parent else part) for part in parts]


def file_names(names: Iterable[str], pieces: Mapping[str, str]) -> InFile:
    """The function that gives a checkpoint's name of our projection.

    Args:
        names: of the checkpoint's tensors; none: only `pieces` count.
        pieces: of our names, and what a family's files have in their place.
    """
    layers = {name.rpartition(".")[0] for name in names}
    theirs = {common_name(f"{layer}.").removesuffix("."): layer for layer in layers}

    def in_file(name: str) -> str:
        other = renamed(f"{name}.", pieces).removesuffix(".")
        stack, _, _ = other.partition(".experts.")  # all experts in one tensor
        without_head = other.removeprefix("model.")  # as files of a decoder alone have it
        found = (theirs.get(one) for one in (other, without_head, f"{stack}.experts"))
        return next(filter(None, found), other)

    return in_file


def means(rule: str, name: str) -> bool:
    """Whether a rule matches the module `name`: a whole name, or a pattern after "re:" that matches
    its beginning."""
    if rule.startswith("re:"):
        return re.match(rule.removeprefix("re:"), name) is not None
    return rule == name


def is_layer_skipped(
    prefix: str,
    ignored: Sequence[str],
    stacked: Stacked,
    by_substring: bool = False,
    in_file: InFile = str,
) -> bool:
    """Whether the layer `prefix` is listed as one that is not quantised.

    With `by_substring` it is enough that a name contains an entry.

    Raises ValueError for a stacked layer that is listed in part.

    Source: vllm/model_executor/layers/quantization/utils/quant_utils.py#L464-L518
    (is_layer_skipped) @ v0.22.1.
    """

    def is_listed(name: str) -> bool:
        return any(means(rule, name) or (by_substring and rule in name) for rule in ignored)

    if prefix in ignored:
        return True
    names = shards_of(prefix, stacked, in_file)
    listed = [is_listed(name) for name in names]
    if any(listed) and not all(listed):
        raise ValueError(
            f"{prefix!r} is one matrix here, and the checkpoint leaves only a part of {names} "
            "unquantised; quantise all of it or nothing"
        )
    return all(listed)


def find_matched_target(name: str, targets: Iterable[str]) -> str | None:
    """The one of `targets` that means the checkpoint's linear layer `name`, or None.

    A whole name goes before a pattern, and both before the class, "Linear"; of several patterns the
    first in alphabetical order counts, as in compressed-tensors, whose library wrote the file.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/utils.py#L113-L153
    (find_matched_target) @ v0.22.1. Difference: there the class goes before the names of the parts
    of a stacked layer, and patterns in the order of the file.
    """
    ordered = sorted(targets, key=lambda target: (target.startswith("re:"), target))
    named = [target for target in ordered if means(target, name)]
    return next(iter(named + [target for target in ordered if target.lower() == "linear"]), None)


def find_group(
    prefix: str, groups: Mapping[str, Mapping[str, Any]], stacked: Stacked, in_file: InFile = str
) -> Mapping[str, Any] | None:
    """The group of compressed-tensors' `config_groups`, by target, that the layer `prefix` belongs
    to; None if it is not quantised.

    Raises ValueError for a stacked layer whose parts belong to groups that differ.
    """
    if prefix in groups:
        return groups[prefix]
    names = shards_of(prefix, stacked, in_file)
    targets = [find_matched_target(name, groups) for name in names]
    found = [None if target is None else groups[target] for target in targets]
    if any(group != found[0] for group in found):
        by = ", ".join(f"{name} by {why!r}" for name, why in zip(names, targets, strict=True))
        raise ValueError(
            f"{prefix!r} is one matrix here, and config_groups of the checkpoint hold its parts in "
            f"different ways: {by}; quantise all of it in one way"
        )
    return found[0]
