"""Whether a drafter was made for the model: its `config.json` tells, before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm import hub
from mini_vllm.config import EngineConfig
from mini_vllm.errors import show
from mini_vllm.model.config import ModelArgs, load_config, read_json
from mini_vllm.model.config_rules import is_integer


def drafter_folder(config: EngineConfig) -> Path:
    """Raises FileNotFoundError if there is no such drafter."""
    assert config.speculative is not None and config.speculative.model is not None
    wanted = config.model
    return hub.folder(config.speculative.model, None, wanted.download_dir, wanted.hf_token)


def check_drafter(config: EngineConfig, target: ModelArgs) -> None:
    """Refuse a drafter that was made for a model of another shape.

    Raises:
        ValueError: if it does not fit the target; the message has both sizes.
        FileNotFoundError: if there is no such drafter.
    """
    speculative = config.speculative
    if speculative is None or speculative.model is None:
        return
    folder = drafter_folder(config)
    if speculative.method == "medusa":
        _check_heads(folder, target, speculative.num_speculative_tokens)
        return
    args = load_config(folder)
    if speculative.method == "eagle":
        for name in ("hidden_size", "vocab_size"):
            ours, wanted = getattr(args, name), getattr(target, name)
            if ours != wanted:
                raise ValueError(
                    f"the EAGLE head in {str(folder)!r} has {name}={ours} and the model {wanted}; "
                    "use a head that was trained for this model"
                )
    elif args.vocab_size != target.vocab_size:
        raise ValueError(
            f"the draft model in {str(folder)!r} has a vocabulary of {args.vocab_size} tokens and "
            f"the model one of {target.vocab_size}; the ids of drafts would be other "
            "words; use a draft model with the same tokenizer"
        )
    else:
        _check_can_draft(folder, args)


def _check_can_draft(folder: Path, args: ModelArgs) -> None:
    """Raises ValueError for a draft model whose class keeps more than keys and values of tokens, or
    that no class runs."""
    from mini_vllm.model.registry import resolve_model_class  # torch comes with it

    try:
        supports = resolve_model_class(args.architectures).supports
    except ValueError as error:
        hint = "; is it a head of method 'eagle'?" if "Eagle" in str(args.architectures) else ""
        raise ValueError(f"the draft model in {str(folder)!r}: {error}{hint}") from error
    for what, why in CANNOT_DRAFT.items():
        if what in supports:
            raise ValueError(
                f"the draft model in {str(folder)!r} is {args.architectures[0]}: {why}; use a "
                "draft model with attention in every layer, or method 'ngram'"
            )


CANNOT_DRAFT = {
    "states": "it keeps a state, from which a rejected draft cannot be removed",
    "images": "it sees pictures, which drafts have none of",
}
"""By what a model's class supports."""


def _check_heads(folder: Path, target: ModelArgs, k: int) -> None:
    heads = read_json(folder / "config.json")
    if heads.get("hidden_size") != target.hidden_size:
        raise ValueError(
            f"the heads in {str(folder)!r} read hidden states of {heads.get('hidden_size')} "
            f"numbers; the model's have {target.hidden_size}; use heads that were trained for "
            "this model"
        )
    num_heads: Any = heads.get("num_heads")
    if not is_integer(num_heads):
        raise ValueError(
            f"{folder / 'config.json'}: num_heads is {show(num_heads)}; it must be a whole number; "
            "is this a folder of Medusa heads?"
        )
    if k > num_heads:
        raise ValueError(
            f"num_speculative_tokens is {k}, but {str(folder)!r} has {num_heads} heads, one for "
            f"each draft; use at most {num_heads}"
        )
