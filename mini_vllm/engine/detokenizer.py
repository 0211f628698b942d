"""Tokens to text, a few at a time: never half a character, never a character taken back.

Two things make this harder than decoding each token on its own:

* One character can be spread over several tokens, and a decoder may add or drop a space that
  depends on the token before. So a short *window* of recent tokens is decoded together, and what
  was already given out is subtracted.
* A stop string can be spread over several tokens. So text that could be the beginning of one is
  *held back* until the next tokens decide.

        decoded text     "... the end of the st"
        given out         "... the end of the "
        held back                             "st"       stop = ["stop"]

The window slides, so the work per token does not grow with the length of the output. The
`DecodeStream` of the `tokenizers` library has a similar window, but it raises an error or goes
silent for good when a model writes bytes that are not UTF-8.

Source: vllm/v1/engine/detokenizer.py#L65-L162 (BaseIncrementalDetokenizer) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.sampling_params import SamplingParams

REPLACEMENT = "\ufffd"
"""What a decoder prints for bytes that are not, or not yet, a character."""
PROMPT_TOKENS = 6
"""How many prompt tokens the first window holds, so that the first space comes out right."""
MAX_WINDOW = 24
"""Tokens in the window before it slides."""
MIN_WINDOW = 8
"""Tokens that stay in the window; a character is at most 4 bytes, so at most 4 tokens."""
MAX_HELD_REPLACEMENTS = 4 * MAX_WINDOW
"""More replacement characters than this at the end are broken bytes, not a character to come."""


class IncrementalDetokenizer:
    """The text of one request.

    `append` and `flush` return new text; `text` is all of it so far. With `tokenizer=None` or
    `detokenize=False` all text is empty. When nobody reads the text token by token and there are
    no stop strings, give all tokens to one `append` at the end: it decodes them together.

    Args:
        tokenizer: a fast Hugging Face tokenizer (or anything with the same `decode`), or None.
        prompt_token_ids: the last few are decoded as context and never printed.
        sampling_params: stop, include_stop_str_in_output, min_tokens, skip_special_tokens,
            detokenize.

    Attributes:
        num_output_tokens: tokens taken in so far.
        stop_reason: the stop string that ended the text, or None.
    """

    def __init__(
        self, tokenizer: Any, prompt_token_ids: Sequence[int], sampling_params: SamplingParams
    ) -> None:
        self._stop = list(sampling_params.stop or [])
        if self._stop and tokenizer is None:
            raise ValueError(
                f"stop is {self._stop!r} but the engine has no tokenizer; use stop_token_ids"
            )
        self._include_stop = sampling_params.include_stop_str_in_output
        self._min_tokens = sampling_params.min_tokens
        self.num_output_tokens = 0
        self.stop_reason: str | None = None
        self._pieces: list[str] = []
        self._held = ""
        self._window: TokenWindow | None = None
        if tokenizer is not None and sampling_params.detokenize:
            self._window = TokenWindow(
                tokenizer, prompt_token_ids, sampling_params.skip_special_tokens
            )

    @property
    def text(self) -> str:
        """Everything that `append` and `flush` have returned."""
        return "".join(self._pieces)

    def append(self, token_ids: Sequence[int], stop_terminated: bool = False) -> str:
        """Take in new tokens; return the text that is now certain.

        Once a stop string has matched, `stop_reason` is set and further tokens are ignored.

        Args:
            stop_terminated: the last token is the EOS or stop token that ended the request. It
                is left out of the text unless include_stop_str_in_output is set.
        """
        released = ""
        printable = len(token_ids) - (stop_terminated and not self._include_stop)
        if not self._stop and token_ids:
            self.num_output_tokens += len(token_ids)
            released = self._decode(token_ids[:printable])
        elif self._stop:
            for index, token_id in enumerate(token_ids):
                if self.stop_reason is not None:
                    break
                self.num_output_tokens += 1
                if index < printable:
                    released += self._search_stop(self._decode([token_id]))
        if released:
            self._pieces.append(released)
        return released

    def flush(self) -> str:
        """The request has finished: return the text that was held back for a stop string.

        Bytes of a last character that never became complete are dropped.
        """
        released, self._held = self._held, ""
        self._pieces.append(released)
        return released

    def _decode(self, token_ids: Sequence[int]) -> str:
        return "" if self._window is None else self._window.append(token_ids)

    def _search_stop(self, new_text: str) -> str:
        """Pass on the text of one new token, up to a stop string or to what could begin one."""
        text = self._held + new_text
        match = None
        if self.num_output_tokens > self._min_tokens:
            match = find_stop_string(text, len(new_text), self._stop)
        if match is not None:
            self.stop_reason, start = match
            end = start + (len(self.stop_reason) if self._include_stop else 0)
            self._held = ""
            return text[:end]
        certain = len(text) - (0 if self._include_stop else possible_stop_length(text, self._stop))
        self._held = text[certain:]
        return text[:certain]


class TokenWindow:
    """The recent tokens of one request, and how much of their text is already printed.

    tokens     [ " the" " price" " is" " " <E2> <82> ]      the sign's last byte is to come
    decoded    " the price is ?"                            ? is a replacement character
    printed    " the price is "
    """

    def __init__(
        self, tokenizer: Any, prompt_token_ids: Sequence[int], skip_special_tokens: bool
    ) -> None:
        # The wrapper's decode costs about three times the backend's.
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._skip_special_tokens = skip_special_tokens
        self._tokens = list(prompt_token_ids[-PROMPT_TOKENS:])
        self._printed = settled_length(self._decode())
        self._boundary = 0
        self._last_complete = len(self._tokens)

    def append(self, token_ids: Sequence[int]) -> str:
        """Take in tokens; return the text that no later token can change."""
        self._tokens.extend(token_ids)
        text = self._decode()
        settled = settled_length(text, self._printed)
        new_text = text[self._printed : settled]
        self._printed += len(new_text)
        if new_text and settled == len(text):
            self._boundary, self._last_complete = self._last_complete, len(self._tokens)
        if len(self._tokens) > MAX_WINDOW:
            self._slide(len(text) - self._printed)
        return new_text

    def _slide(self, num_unprinted: int) -> None:
        """Forget old tokens.

        The cut is where the text was complete, and the tokens after it are still context for
        the next one. If no such place is near, cut a little before the end.
        """
        cut = self._boundary or max(len(self._tokens) - MIN_WINDOW, 0)
        self._tokens = self._tokens[cut:]
        self._printed = max(len(self._decode()) - num_unprinted, 0)
        self._boundary = 0
        self._last_complete = max(self._last_complete - cut, 0)

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(
            self._tokens, skip_special_tokens=self._skip_special_tokens
        )
        return text


def settled_length(text: str, printed: int = 0) -> int:
    """How many leading characters of a decoded text no later token can change.

    Replacement characters at the end may be the first bytes of a character, so they wait. If
    there are too many of them to be one, all but the last three are settled: broken bytes.

    Args:
        text: a window of tokens, decoded.
        printed: how many characters of it are printed; those are settled.
    """
    settled = max(len(text.rstrip(REPLACEMENT)), printed)
    if len(text) - settled > MAX_HELD_REPLACEMENTS:
        settled = len(text) - 3
    return settled


def find_stop_string(text: str, num_new_chars: int, stop: Sequence[str]) -> tuple[str, int] | None:
    """The first string of `stop`, in the order of the list, that ends inside the new characters.

    Characters before the new ones were searched when they were new. A match may begin among
    them, but one that ends there was refused (min_tokens) and stays refused.

    Args:
        text: text that is not printed yet; its last `num_new_chars` characters are new.

    Returns:
        The stop string and the index where it starts, or None.

    Source: vllm/v1/engine/detokenizer.py#L309-L344 (check_stop_strings) @ v0.22.1.
    """
    num_old_chars = len(text) - num_new_chars
    for string in stop:
        start = text.find(string, max(num_old_chars - len(string) + 1, 0))
        if start != -1:
            return string, start
    return None


def possible_stop_length(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a stop string, or 0.

    Example: text "a sto" with stop ["stop"] gives 3; text "a store" gives 0.
    """
    longest = min(len(text), max(map(len, stop)) - 1)
    for length in range(longest, 0, -1):
        if any(string.startswith(text[-length:]) for string in stop if length < len(string)):
            return length
    return 0
