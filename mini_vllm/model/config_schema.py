"""The legal values of each entry of a `config.json`, in one table that is checked before a model is
built.

Without this check, a damaged or foreign file would fail somewhere inside the model, or run with
another meaning: a sliding window of 0, a rope factor of "2", an end token of "2". So every known
entry is checked, also those that inference does not read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mini_vllm.errors import show
from mini_vllm.model.config_rules import (
    BOOLEAN,
    NOTHING,
    OBJECT,
    STRING,
    Rule,
    as_list,
    check_entries,
    integer,
    is_integer,
    list_of,
    misspelt,
    number,
    one_of,
)
from mini_vllm.model.families import FAMILIES, family, table
from mini_vllm.model.families.tripwire import EFFECTS, check_effects

MAX_SIZE = 2**24
"""The largest size of any dimension. A larger number is an error and would exhaust the memory."""
MAX_LAYERS = 1024
MAX_POSITIONS = 2**31 - 1

_SIZE = integer(1, MAX_SIZE)
_NEEDED_SIZE = integer(1, MAX_SIZE, required=True)
_TOKEN_ID = integer(0, MAX_SIZE)
_TOKEN_IDS = Rule(
    lambda value: value is None or all(map(_TOKEN_ID.legal, as_list(value))),
    "it must be a token id, a list of token ids, or null",
)
_LAYER_TYPE = one_of("full_attention", "sliding_attention")
_THETA = number(1.0001, 1e30)
_ORIGINAL = integer(2, MAX_POSITIONS)
"""Positions before the stretching; longrope divides by the logarithm."""
_FACTORS = list_of(number(1e-6, 1e6), "numbers of at least 1e-06 and at most 1e+06")

CONFIG: dict[str, Rule] = {
    "architectures": list_of(STRING, "class names"),
    "vocab_size": _NEEDED_SIZE,
    "hidden_size": _NEEDED_SIZE,
    "intermediate_size": _NEEDED_SIZE,
    "num_hidden_layers": integer(1, MAX_LAYERS, required=True),
    "num_attention_heads": _NEEDED_SIZE,
    "num_key_value_heads": _SIZE.or_null(),
    "head_dim": integer(2, MAX_SIZE).or_null(),
    "max_position_embeddings": integer(1, MAX_POSITIONS),
    "original_max_position_embeddings": _ORIGINAL.or_null(),
    "hidden_act": one_of("silu", "gelu_pytorch_tanh"),
    "hidden_activation": one_of("silu", "gelu_pytorch_tanh").or_null(),
    "rms_norm_eps": number(1e-30, 1),
    "rope_theta": _THETA,
    "rope_local_base_freq": _THETA,
    "partial_rotary_factor": number(0.01, 1),
    "query_pre_attn_scalar": number(1e-6, 1e9),
    "rope_parameters": OBJECT.or_null(),
    "rope_scaling": OBJECT.or_null(),
    "tie_word_embeddings": BOOLEAN,
    "attention_bias": BOOLEAN,
    "mlp_bias": BOOLEAN,
    "use_sliding_window": BOOLEAN.or_null(),
    "sliding_window": integer(1, MAX_POSITIONS).or_null(),
    "max_window_layers": integer(0, MAX_SIZE).or_null(),
    "sliding_window_pattern": integer(1, MAX_LAYERS).or_null(),
    "attn_logit_softcapping": NOTHING,
    "final_logit_softcapping": NOTHING,
    "use_bidirectional_attention": Rule(lambda value: not value, "only false is supported"),
    "num_experts": integer(0, MAX_SIZE),
    "num_experts_per_tok": _SIZE,
    "moe_intermediate_size": _SIZE,
    "decoder_sparse_step": _SIZE,
    "mlp_only_layers": list_of(integer(0, MAX_LAYERS), "layer numbers").or_null(),
    "norm_topk_prob": BOOLEAN,
    "layer_types": list_of(_LAYER_TYPE, "'full_attention' and 'sliding_attention'").or_null(),
    "eos_token_id": _TOKEN_IDS,
    "dtype": STRING.or_null(),
    "torch_dtype": STRING.or_null(),
    "quantization_config": OBJECT.or_null(),
    # Inference does not read these. A wrong type still says that the file is damaged.
    "model_type": STRING,
    "bos_token_id": _TOKEN_IDS,
    "pad_token_id": Rule(
        lambda value: _TOKEN_IDS.legal(value) or (is_integer(value) and value == -1),
        "it must be a token id, -1, or null",
    ),
    "attention_dropout": number(0, 1),
    "initializer_range": number(0, 1e30),
    "transformers_version": STRING.or_null(),
    "use_cache": BOOLEAN,
}

ROPE: dict[str, Rule] = {
    "rope_type": STRING,
    "type": STRING,
    "rope_theta": _THETA,
    "factor": number(1, 1e30),
    "low_freq_factor": number(1e-6, 1e6),
    "high_freq_factor": number(1e-6, 1e6),
    "original_max_position_embeddings": _ORIGINAL.or_null(),
    "beta_fast": number(1e-6, 1e6).or_null(),
    "beta_slow": number(1e-6, 1e6).or_null(),
    "attention_factor": number(1e-6, 1e6).or_null(),
    "mscale": number(0, 1e6).or_null(),
    "mscale_all_dim": number(0, 1e6).or_null(),
    "partial_rotary_factor": number(0.01, 1),
    "short_factor": _FACTORS,
    "long_factor": _FACTORS,
    "truncate": BOOLEAN,
    "max_position_embeddings": integer(1, MAX_POSITIONS).or_null(),
}

NEEDED_BY_ROPE_TYPE: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
    "longrope": ("short_factor",),
    "su": ("short_factor",),
}
READ_BY_TYPE = frozenset(name for names in NEEDED_BY_ROPE_TYPE.values() for name in names)
"""Entries that have no effect on a rotation without a type."""
_RAMPS = {
    "llama3": (("low_freq_factor", 1), ("high_freq_factor", 4)),
    "yarn": (("beta_slow", 1), ("beta_fast", 32)),
}
"""The two ends of the blend between scaled and unscaled frequencies, with the defaults."""

_STRINGS = list_of(STRING, "strings").or_null()
_WIDTH = integer(1, MAX_SIZE)
_GROUP_SIZE = Rule(
    lambda value: value == -1 or _WIDTH.legal(value),
    "it must be an integer of at least 1, or -1 for one scale a row",
)

QUANTIZATION: dict[str, Rule] = {
    "group_size": _GROUP_SIZE,
    "sym": BOOLEAN,
    "desc_act": BOOLEAN,
    "zero_point": BOOLEAN,
    "lm_head": BOOLEAN,
    "weight_block_size": list_of(_WIDTH, "integers of at least 1").or_null(),
    "ignore": _STRINGS,
    "ignored_layers": _STRINGS,
    "modules_to_not_convert": _STRINGS,
    "config_groups": OBJECT.or_null(),
    "kv_cache_scheme": Rule(
        lambda value: value in (None, "static") or OBJECT.legal(value),
        'it must be an object, null, or "static", as AutoFP8 writes it',
    ),
}
"""Entries that several formats have in common; each format checks its own entries."""
QUANTIZATION_GROUP: dict[str, Rule] = {
    "targets": Rule(list_of(STRING, "").legal, "it must be a list of strings", required=True),
    "weights": OBJECT.or_null(),
    "input_activations": OBJECT.or_null(),
    "output_activations": OBJECT.or_null(),
}
QUANTIZATION_WEIGHTS: dict[str, Rule] = {
    "num_bits": integer(1, 64),
    "group_size": _GROUP_SIZE.or_null(),
    "symmetric": BOOLEAN,
    "block_structure": list_of(_WIDTH, "integers of at least 1").or_null(),
}

GENERATION_CONFIG: dict[str, Rule] = {"eos_token_id": _TOKEN_IDS}


COUNTS = {"num_experts", "num_local_experts"}
"""Two names of one entry, which only some families read."""


def check_config(config: Mapping[str, Any], source: str) -> None:
    """Raise ValueError that names the file, the key, its value and what is allowed."""
    own = table(family(config))
    spelled = {name: CONFIG[ours] for name, ours in own.spelled.items()}
    rules = {**spelled, **CONFIG, **own.rules}
    if config.get("hidden_activation"):  # then the other is not read: Gemma's once was wrong
        rules["hidden_act"] = STRING.or_null()
    check_entries(config, rules, source)
    if name := family(config):
        read = {*own.rules, *own.defaults, *FAMILIES.get(name, ())}
        read |= COUNTS if read & COUNTS else set()
        check_effects(config, CONFIG.keys() - COUNTS | read, name, source)
    for key in ("rope_parameters", "rope_scaling"):
        for where, rope in _ropes(config, key):
            _check_rope(config, rope, source, where)
    _check_quantization(config.get("quantization_config") or {}, source)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(
            f"{source}: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    _check_head_dim(config, source)
    kinds = config.get("layer_types")
    if kinds is not None and len(kinds) != config["num_hidden_layers"]:
        raise ValueError(
            f"{source}: layer_types has {len(kinds)} entries; it must have one for each of the "
            f"num_hidden_layers {config['num_hidden_layers']}"
        )


def misspelt_entries(config: Mapping[str, Any]) -> dict[str, str]:
    """Entries of a `config.json` that look like a misspelt entry: the family does not read them,
    but reads one with a similar name that is missing. Maps each to that name, and the factors of a
    rotation without a type to "rope_type": no type means no scaling, as in transformers.

    vLLM and transformers accept any entry silently, because a file may have more than is read; of
    factors without a type transformers warns.
    """
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, Mapping) else config
    own = table(family(config))
    read = {*CONFIG, *own.rules, *own.defaults, *own.spelled, *FAMILIES.get(family(config), ())}
    found = misspelt(config, read | EFFECTS.keys())
    for key in ("rope_parameters", "rope_scaling"):
        for where, rope in _ropes(config, key):
            in_rope = misspelt(rope, ROPE).items()
            found |= {f"{where}.{name}": f"{where}.{meant}" for name, meant in in_rope}
            if not in_rope and not rope.keys() & {"rope_type", "type"}:
                scales = sorted(rope.keys() & READ_BY_TYPE)
                found |= {f"{where}.{name}": f"{where}.rope_type" for name in scales}
    return found


def _check_head_dim(config: Mapping[str, Any], source: str) -> None:
    """Check that head_dim is even, because pairs of features are rotated."""
    head_dim, heads = config.get("head_dim"), config["num_attention_heads"]
    has_default = "Qwen3ForCausalLM" in (config.get("architectures") or ())
    if head_dim is None and not has_default and config["hidden_size"] % (2 * heads):
        raise ValueError(
            f"{source}: hidden_size is {config['hidden_size']}; without a head_dim it must be a "
            f"multiple of 2 * num_attention_heads, which is {2 * heads}"
        )
    if head_dim is not None and head_dim % 2:
        raise ValueError(f"{source}: head_dim is {head_dim}; it must be even")


def _ropes(config: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The rotation's parameters with their names; one entry per layer type if a family has that."""
    rope = config.get(key) or {}
    if not rope or not table(family(config)).has_ropes_by_layer or "full_attention" not in rope:
        return [(key, rope)] if rope else []
    return [(f"{key}.{kind}", value) for kind, value in rope.items() if isinstance(value, dict)]


def _check_rope(
    config: Mapping[str, Any], rope: Mapping[str, Any], source: str, where: str
) -> None:
    check_entries(rope, ROPE, source, prefix=f"{where}.")
    nested = [key for key, value in rope.items() if isinstance(value, dict)]
    if nested:
        raise ValueError(
            f"{source}: {where}.{nested[0]} is {show(rope[nested[0]])}; rope parameters by layer "
            "type are not supported; it must be a number or a string"
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in NEEDED_BY_ROPE_TYPE:
        raise ValueError(
            f"{source}: {where}: rope_type {show(kind)} is not supported; use "
            f"{_listed([name for name in NEEDED_BY_ROPE_TYPE if name != 'su'])}"
        )
    for key in NEEDED_BY_ROPE_TYPE[kind]:
        if key not in rope:
            raise ValueError(
                f"{source}: {where} lacks {key!r}; rope_type {kind!r} needs {key!r}; "
                f"{ROPE[key].says}"
            )
    if "short_factor" in NEEDED_BY_ROPE_TYPE[kind]:
        _check_factors(config, rope, source, where)
    if kind in _RAMPS:
        (low, low_default), (high, high_default) = _RAMPS[kind]
        start, end = rope.get(low) or low_default, rope.get(high) or high_default
        may_be_equal = kind == "yarn"  # a ramp of one pair, as Kimi K2 has it
        if not (start < end or (start == end and may_be_equal)):
            least = "at least" if may_be_equal else "above"
            raise ValueError(
                f"{source}: {where}.{high} is {end}; it must be {least} {low}, which is {start}"
            )


def _check_factors(
    config: Mapping[str, Any], rope: Mapping[str, Any], source: str, where: str
) -> None:
    """Check that there is one factor for each rotated pair of features."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    pairs = int(head_dim * share) // 2
    if len(rope["short_factor"]) != pairs:
        raise ValueError(
            f"{source}: {where}.short_factor has {len(rope['short_factor'])} numbers; it must have "
            f"{pairs}, one for each rotated pair of features"
        )


def _check_quantization(quantization: Mapping[str, Any], source: str) -> None:
    check_entries(quantization, QUANTIZATION, source, "quantization_config.")
    for name, group in (quantization.get("config_groups") or {}).items():
        path = f"quantization_config.config_groups.{name}"
        if not isinstance(group, dict):
            raise ValueError(f"{source}: {path} is {show(group)}; {OBJECT.says}")
        check_entries(group, QUANTIZATION_GROUP, source, f"{path}.")
        for numbers in ("weights", "input_activations"):
            rules = QUANTIZATION_WEIGHTS
            entries = group.get(numbers) or {}
            check_entries(entries, rules, source, f"{path}.{numbers}.")
            if entries.get("strategy") == "group" and entries.get("group_size") is None:
                raise ValueError(
                    f"{source}: {path}.{numbers}.group_size is None; strategy 'group' needs it; "
                    f"{_GROUP_SIZE.says}"
                )


def _listed(names: Collection[str]) -> str:
    """`default, linear, llama3 or yarn`."""
    *others, last = names
    return f"{', '.join(others)} or {last}"
