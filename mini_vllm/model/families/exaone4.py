"""EXAONE 4: norms after attention and MLP, and a norm of each head's query and key.

If some layers have a window, the others have no rotation.
Source: vllm/model_executor/models/exaone4.py#L111-L218 (Exaone4Attention) @ v0.22.1.
"""

from mini_vllm.model.config_rules import Rule, is_integer
from mini_vllm.model.families.table import POST_NORM, Config, Family, Parts, windows_by_layer


def windows(config: Config) -> tuple[int | None, ...]:
    if config["sliding_window"] is None:
        return (None,) * config["num_hidden_layers"]
    pattern = config.get("sliding_window_pattern") or 4
    if isinstance(pattern, str):  # "LLLG": full attention in each G, and in the last layer
        num_layers, window = config["num_hidden_layers"], config["sliding_window"]
        kinds = (pattern * num_layers)[: num_layers - 1] + "G"
        by_pattern = tuple(window if kind == "L" else None for kind in kinds)
        return windows_by_layer(every=1)(config) if config.get("layer_types") else by_pattern
    return windows_by_layer(pattern)(config)


def parts(config: Config) -> Parts:
    has_windows = config["sliding_window"] is not None
    rotates = [window is not None for window in windows(config)] if has_windows else ()
    return Parts(norms=POST_NORM, qk_norm="head", rotates=rotates)


PATTERN = Rule(
    lambda value: (
        (is_integer(value) and 0 <= value <= 1024)
        or (isinstance(value, str) and bool(value) and set(value) <= set("LG"))
    ),
    "it must be an integer of at least 0 and at most 1024, or letters L and G such as 'LLLG'",
)
EXAONE4 = Family(
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    rules={"sliding_window_pattern": PATTERN.or_null()},
    windows=windows,
    parts=parts,
)
