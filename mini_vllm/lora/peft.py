"""Reads an adapter's config and the names of its tensors, by PEFT's rules.

An adapter adds ``scale * B (A x)`` to the output ``W x`` of a linear layer. A is ``[r, in]``, B is
``[out, r]``, and the scale follows from the config::

    adapter_config.json   {"r": 8, "lora_alpha": 16, "target_modules": [...], ...}
    tensors               base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight  [8, 192]
                          base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight  [256, 8]
                                           └──────── module of the base ───────┘
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.errors import show
from mini_vllm.json_files import parse_json

PREFIX = "base_model.model."

# Keys that are not supported, because the adapter is then more than a product, and why.
UNSUPPORTED = {
    "use_dora": "DoRA scales each row by a norm that depends on the base's weights",
    "modules_to_save": "it replaces whole modules of the base",
    "lora_bias": "it adds a bias",
    "layer_replication": "it repeats layers of the base",
    "fan_in_fan_out": "its weights are transposed",
    "trainable_token_indices": "it replaces rows of the embedding",
    "target_parameters": "it changes parameters that belong to no linear layer",
    "use_qalora": "it averages groups of the input before A",
    "use_bdlora": "its matrices are block-diagonal",
    "alora_invocation_tokens": "it is active for a part of the tokens only",
    "kasa_config": "it was trained beside a base from which a part of each weight was taken",
    "arrow_config": "it chooses among several adapters for each token",
}


# Initialisations that move a part of the base's weights into the adapter. Such an adapter fits only
# the remaining weights, unless PEFT converts it when it is saved.
SPLIT_OFF = ("pissa", "olora", "corda", "loftq", "lora_ga")


def _is_number(value: Any, kind: Any = (int, float)) -> bool:
    is_kind = isinstance(value, kind) and not isinstance(value, bool)
    return is_kind and abs(value) <= sys.float_info.max  # neither NaN nor infinite


def check_alpha_pattern(patterns: Any) -> None:
    """Refuse an ``alpha_pattern`` that is not regular expressions with a finite number each."""
    if not isinstance(patterns, dict):
        raise ValueError(
            f"adapter_config.json: alpha_pattern is {show(patterns)}; it must be an object of "
            "numbers"
        )
    for pattern, alpha in patterns.items():
        if not _is_number(alpha):
            raise ValueError(
                f"adapter_config.json: alpha_pattern has {show(alpha)} for {pattern!r}; it must "
                "be a finite number"
            )
        try:
            re.compile(whole_name(pattern))
        except re.error as error:
            raise ValueError(
                f"adapter_config.json: {pattern!r} in alpha_pattern is no regular expression: "
                f"{error}"
            ) from error


def whole_name(pattern: str) -> str:
    """A regular expression for a module's whole name, from one for its last parts."""
    return rf"(.*\.)?({pattern})$"


@dataclass(frozen=True)
class PEFTHelper:
    """The fields of ``adapter_config.json`` that determine what an adapter computes.

    Source: vllm/lora/peft_helper.py#L20-L128 (PEFTHelper) @ v0.22.1
    """

    r: int
    lora_alpha: float
    use_rslora: bool = False
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    bias: str = "none"
    peft_type: str = "LORA"
    init_lora_weights: Any = True
    unsupported: Mapping[str, Any] = field(default_factory=dict)
    """Keys of :data:`UNSUPPORTED` that are set, with their values."""

    @classmethod
    def from_json(cls, text: bytes) -> PEFTHelper:
        """Read a config.

        Raises:
            ValueError: if it is no JSON object, or ``r`` or ``lora_alpha`` is missing or no
                number above 0, or a switch is neither true nor false.
        """
        try:
            config = parse_json(text)
        except ValueError as error:
            raise ValueError(f"adapter_config.json is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise ValueError("adapter_config.json must hold a JSON object")
        for name, kind in (("r", int), ("lora_alpha", (int, float))):
            value: Any = config.get(name)
            if not _is_number(value, kind) or value <= 0:
                shown = show(value) if name in config else "missing"
                wanted = "whole number" if name == "r" else "number"
                raise ValueError(
                    f"adapter_config.json: {name} is {shown}; it must be a {wanted} > 0"
                )
        if not isinstance(config.get("use_rslora"), bool | None):
            raise ValueError(
                f"adapter_config.json: use_rslora is {show(config['use_rslora'])}; it must be true "
                "or false"
            )
        check_alpha_pattern(config.get("alpha_pattern") or {})
        return cls(
            r=config["r"],
            lora_alpha=config["lora_alpha"],
            use_rslora=bool(config.get("use_rslora")),
            alpha_pattern=config.get("alpha_pattern") or {},
            bias="none" if config.get("bias") is None else config["bias"],
            peft_type=config.get("peft_type", "LORA"),
            init_lora_weights=config.get("init_lora_weights"),
            unsupported={key: config[key] for key in UNSUPPORTED if config.get(key)},
        )

    def validate_legal(self) -> None:
        """Refuse an unsupported adapter, with all reasons in one message.

        Ranks are not checked here: the rank of a module is the number of rows of its A, whatever
        the config says.

        Raises:
            ValueError: for another ``peft_type``, a bias, an adapter that was split off the
                base's weights, or any of :data:`UNSUPPORTED`.

        Source: vllm/lora/peft_helper.py#L111-L128 (PEFTHelper.validate_legal) @ v0.22.1
        """
        reasons = [f"{key} is set: {UNSUPPORTED[key]}" for key in self.unsupported]
        if self.peft_type != "LORA":
            reasons.append(f"peft_type is {self.peft_type!r}; only LORA is supported")
        if self.bias != "none":
            reasons.append(f"bias is {self.bias!r}; only 'none' is supported")
        if str(self.init_lora_weights).lower().startswith(SPLIT_OFF):
            reasons.append(
                f"init_lora_weights is {show(self.init_lora_weights)}: its base is not the one "
                "that it was saved for; let PEFT convert it to a plain LoRA"
            )
        if reasons:
            raise ValueError("; ".join(reasons))

    def scaling(self, module_name: str, rank: int) -> float:
        """What B A x is multiplied by in one module.

        alpha / rank, or alpha / sqrt(rank) with ``use_rslora``. Alpha is ``lora_alpha``, unless a
        key of ``alpha_pattern`` fits the module: the first regular expression that matches its
        whole name, or the end of its name behind a dot.

        Args:
            module_name: of the base, as in ``model.layers.0.self_attn.q_proj``.
            rank: rows of this module's A. A rank pattern makes it differ from the config's ``r``.

        Source: vllm/lora/peft_helper.py#L52-L58 (PEFTHelper.__post_init__) @ v0.22.1, which knows
        no patterns.
        """
        alpha = self.lora_alpha
        for pattern, value in self.alpha_pattern.items():
            if re.match(rf"(.*\.)?({pattern})$", module_name):
                alpha = value
                break
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def parse_fine_tuned_lora_name(name: str) -> tuple[str, str]:
    """The module that a tensor belongs to, and which of its pair it is.

    ``"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"`` ->
    ``("model.layers.0.self_attn.q_proj", "A")``. The prefix ``base_model.model.`` is cut first:
    once, at the beginning, if it is there.

    Raises:
        ValueError: that shows the name, if its rest ends neither in ``.lora_A.weight`` nor in
            ``.lora_B.weight``.

    Source: vllm/lora/utils.py#L155-L196 (parse_fine_tuned_lora_name) @ v0.22.1
    """
    module = name.removeprefix(PREFIX)
    for part in ("A", "B"):
        suffix = f".lora_{part}.weight"
        if module.endswith(suffix):
            return module.removesuffix(suffix), part
    raise ValueError(
        f"tensor {name!r} is not supported; an adapter of linear layers has only names that end "
        "in '.lora_A.weight' or '.lora_B.weight'"
    )
