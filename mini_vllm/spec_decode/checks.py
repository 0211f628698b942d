"""Whether a drafter was made for the model: its `config.json` tells, before weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm import hub
from mini_vllm.config import EngineConfig
from mini_vllm.errors import show
from mini_vllm.model.config import ModelArgs, load_config, read_config
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
    args = _read_args(folder, speculative.method)
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


def _read_args(folder: Path, method: str | None) -> ModelArgs:
    """The shape of a drafter. An EAGLE head has an architecture of its own; if another entry is
    wrong, that one is named."""
    try:
        return load_config(folder)
    except ValueError as error:
        if method == "eagle" and isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise


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


MOST_HEADS = 128
"""Of Medusa; a request may have so many drafts in a step. And layers of a head."""


def _check_heads(folder: Path, target: ModelArgs, k: int) -> None:
    heads = read_config(folder)
    if heads.get("hidden_size") != target.hidden_size:
        raise ValueError(
            f"the heads in {str(folder)!r} read hidden states of "
            f"{show(heads.get('hidden_size'))} numbers; the model's have {target.hidden_size}; use "
            "heads that were trained for this model"
        )
    for name, default in (("num_heads", None), ("num_hidden_layers", 1)):
        value: Any = heads.get(name, default)
        if not is_integer(value) or not 1 <= value <= MOST_HEADS:
            raise ValueError(
                f"{folder / 'config.json'}: {name} is {show(value)}; it must be a whole number of "
                f"1 to {MOST_HEADS}; is this a folder of Medusa heads?"
            )
    num_heads: Any = heads["num_heads"]
    if k > num_heads:
        raise ValueError(
            f"num_speculative_tokens is {k}, but {str(folder)!r} has {num_heads} heads, one for "
            f"each draft; use at most {num_heads}"
        )
