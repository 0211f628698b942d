"""Checks of callers' parameters and of lengths. Each error says what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from numbers import Integral, Rational
from typing import Any

from mini_vllm.errors import RequestError, bad_value, show

MAX_INT64 = 2**63 - 1
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MIN_FLOAT32 = 2.0**-126
"""Ranges of the sampler's tensors: a number outside, in one row, would make the whole step fail."""

MAX_N = 16384
"""Most completions of one prompt, and most beams."""

FORMER_NAMES = {
    "guided_decoding": "use structured_outputs",
    "logits_processors": "classes of your own are given to LLM(logits_processors=[...])",
    "best_of": "draw n, and choose by cumulative_logprob",
    "use_beam_search": "call LLM.beam_search",
    "length_penalty": "it is a parameter of LLM.beam_search",
    "early_stopping": "beams run to max_tokens or their ends; leave it out",
    "truncate_prompt_tokens": "cut the prompt's token ids yourself",
}
"""Parameters of older versions of vLLM, which many scripts still have: what to do instead."""


def is_text(text: str) -> bool:
    """Whether UTF-8 can encode it. A `str` may have half of a surrogate pair, which UTF-8 cannot
    encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_context(
    max_model_len: int,
    num_prompt_tokens: int,
    num_output_tokens: int = 0,
    details: str = "",
    least_output: int = 1,
) -> None:
    """Refuse a prompt that does not fit ``max_model_len`` together with its output.

    Args:
        num_output_tokens: output tokens of the request; 0: as many as fit, which must be at least
            ``least_output``.
        details: text for the message, after the prompt's length.

    Raises:
        RequestError: with both numbers and the limit.

    Source: vllm/renderers/params.py#L415-L440 (TokenizeParams._token_len_check) @ v0.22.1
    """
    if num_prompt_tokens == max_model_len:
        num_output_tokens = max(num_output_tokens, least_output)
    total = num_prompt_tokens + num_output_tokens
    if total > max_model_len:
        raise context_overflow(
            max_model_len,
            num_output_tokens,
            f"{num_prompt_tokens} input tokens{details}, for a total of {total} tokens",
            param="input_tokens",
            value=num_prompt_tokens,
        )


def context_overflow(
    max_model_len: int, num_output_tokens: int, contents: str, param: str, value: int
) -> RequestError:
    """The error for a prompt that is too long. The wording is vLLM's, because clients recognise the
    error by it."""
    return RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{num_output_tokens} output tokens and your prompt contains {contents}. Please reduce "
        "the length of the input prompt or the number of requested output tokens.",
        param=param,
        value=value,
    )


_PYTHONS_OWN: dict[bool, Callable[[Any], float]] = {True: int, False: float}


def check_scalar(
    name: str,
    value: Any,
    kind: type,
    optional: bool,
    legal: Callable[[Any], bool],
    limit: str,
    fix: str,
) -> Any:
    """`value` as a plain int or float.

    Raises a `ValueError` unless it is of `kind` (and not a bool, a fraction or the like) and in
    range.
    """
    if value is None and optional:
        return value
    is_integer, is_fraction = isinstance(value, Integral), isinstance(value, Rational)
    if isinstance(value, bool) or not isinstance(value, kind) or is_fraction > is_integer:
        noun = "an integer" if kind is Integral else "a number, int or float"
        raise RequestError(
            f"{name} is {show(value)} ({type(value).__name__}); it must be {noun} ({limit})",
            param=name.partition("[")[0],
            value=value,
            fix=fix,
        )
    plain = _PYTHONS_OWN[is_integer](value)
    if not legal(plain):
        too_big = abs(plain) > (MAX_INT64 if kind is Integral else MAX_FLOAT32)
        holder = "int64" if kind is Integral else "float32"
        limit += f", and {holder} must hold it" if too_big else ""
        raise bad_value(name, plain, f"it must be {limit}", param=name.partition("[")[0], fix=fix)
    return plain


def check_list(
    name: str, values: Any, kind: type, noun: str, param: str | None = None
) -> list[Any]:
    if not isinstance(values, list) or not all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    ):
        raise bad_value(name, values, f"it must be a list of {noun}", param=param or name)
    return list(values)


def check_token_ids(name: str, values: Any) -> list[int]:
    return [int(token_id) for token_id in check_list(name, values, Integral, "token ids")]


def token_id_key(key: Any) -> int:
    is_integer = isinstance(key, Integral) and not isinstance(key, bool)
    if is_integer or (isinstance(key, str) and key.isdecimal()):
        return int(key)
    raise RequestError(
        f"logit_bias has the key {show(key)}; keys must be token ids", param="logit_bias"
    )


def unknown_names(
    cls: type[Any], names: Collection[str], kind: str = "sampling parameter"
) -> str | None:
    """The error message for the first name that is not a field, or None."""
    known = [field.name for field in fields(cls)]
    for name in names:
        if name in FORMER_NAMES and name not in known:
            return f"{kind} {name!r} was vLLM's: {FORMER_NAMES[name]}"
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(known)}"
            return f"unknown {kind} {name!r}; {hint}"
    return None


def spellings(words: Iterable[str], tokenizer: Any) -> list[list[int]]:
    """The tokens of each word at the beginning of a text, and of those after a space that end
    otherwise."""
    found: list[list[int]] = []
    for word in words:
        plain, spaced = (
            list(tokenizer.encode(space + word.lstrip(), add_special_tokens=False))
            for space in ("", " ")
        )
        found.append(plain)
        if spaced[-len(plain) :] != plain:  # else `plain` forbids it already
            found.append(spaced)
    return found
