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

Source: vllm/v1/engine/detokenizer.py#L68-L164 (BaseIncrementalDetokenizer) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mini_vllm.engine.vocabulary import vocabulary_of
from mini_vllm.errors import RequestError
from mini_vllm.sampling_params import SamplingParams

REPLACEMENT = "\ufffd"
"""What a decoder prints for bytes that are not, or not yet, a character."""
REAL_REPLACEMENT = "\udffd"
"""Replaces, in a window's text, a U+FFFD at the end that the tokens really spell: that one is a
finished character. This is half of a surrogate pair, which no decoder prints."""
PROMPT_TOKENS = 6
"""How many prompt tokens the first window holds, so that the first space comes out right."""
MAX_WINDOW = 24
"""Tokens in the window before it slides."""
MAX_WAITING = 3
"""Most tokens, and bytes, of a character that is not finished."""
MAX_BROKEN_WINDOW = 4 * MAX_WINDOW
"""Tokens in the window before it slides although its end is not a character."""
MIN_WINDOW = 8
"""Tokens that stay in the window then; more than a character can have."""


class IncrementalDetokenizer:
    """The text of one request.

    `append` and `flush` return new text; `text` is all of it so far. With `tokenizer=None` or
    `detokenize=False` all text is empty. When the text is not read token by token and there are
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
            raise RequestError(
                f"stop is {self._stop!r} but the engine has no tokenizer; use stop_token_ids",
                param="stop",
                value=self._stop,
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
        num_printable = len(token_ids) - (stop_terminated and not self._include_stop)
        if self._stop:
            released = self._append_one_by_one(token_ids, num_printable)
        else:
            self.num_output_tokens += len(token_ids)
            released = self._decode(token_ids[:num_printable])
        if released:
            self._pieces.append(released)
        return released

    def _append_one_by_one(self, token_ids: Sequence[int], num_printable: int) -> str:
        """Look for stop strings after every token, so that the size of a step does not matter.

        Each token counts in `num_output_tokens`. The first `num_printable` are decoded and
        searched. Once `stop_reason` is set, the rest is ignored and not counted.

        Returns:
            The text that is now certain.
        """
        released = ""
        for index, token_id in enumerate(token_ids):
            if self.stop_reason is not None:
                break
            self.num_output_tokens += 1
            if index < num_printable:
                released += self._search_stop(self._decode([token_id]))
        return released

    def flush(self) -> str:
        """The request has finished: return the text that was held back for a stop string.

        Bytes of a last character that never became complete are dropped.
        """
        released, self._held = self._held, ""
        self._pieces.append(released)
        return released

    def _decode(self, token_ids: Sequence[int]) -> str:
        """New text, the same however many tokens come at once.

        A window that overflows with broken bytes is shown as it is, so there the text would depend
        on the number of tokens. These go in one by one, as for a reader of the stream.
        """
        if self._window is None:
            return ""
        if self._window.overflows_with(token_ids):
            return "".join(self._window.take([token_id]) for token_id in token_ids)
        return self._window.take(token_ids)

    def _search_stop(self, new_text: str) -> str:
        """Pass on the text of one new token, up to a stop string or to what could begin one.

            held back " st", new "op!"   stop = ["stop"]   ->  " ", and the request ends
            held back " st", new "ay"    stop = ["stop"]   ->  " stay"

        No match counts that ends in one of the first `min_tokens` tokens. One that counts sets
        `stop_reason` and cuts the text before the stop string, or behind it if it is to be
        included. Without a match the end of the text that may begin a stop string waits in `_held`.
        """
        text = self._held + new_text
        match = None
        if self.num_output_tokens > self._min_tokens:
            match = find_stop_string(text, len(new_text), self._stop)
        if match is not None:
            self.stop_reason, start = match
            end = start + (len(self.stop_reason) if self._include_stop else 0)
            self._held = ""
            return text[:end]
        certain = len(text) - possible_stop_length(text, self._stop)
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
        self._vocabulary = vocabulary_of(tokenizer)
        self._skip_special_tokens = skip_special_tokens
        self._tokens = self._end_of_prompt(prompt_token_ids)
        self._printed = len(complete_text(self._tokens, self.decode)[1])
        # Of a character that the prompt began. It is the prompt's, unless the output completes it.
        self._unfinished = len(self.decode(self._tokens)) - self._printed
        # Text was complete before this token; the tokens after it are the last printed chunk.
        self._chunk_start = 0
        self._chunk_end = len(self._tokens)

    def _end_of_prompt(self, token_ids: Sequence[int]) -> list[int]:
        """The last PROMPT_TOKENS of the prompt, and those before them that begin their first
        character: without its beginning some decoders show the good bytes behind it as broken."""
        for length in range(PROMPT_TOKENS, PROMPT_TOKENS + MAX_WAITING + 1):
            tokens = list(token_ids[-length:])
            text = complete_text(tokens, self.decode)[1] or self.decode(tokens)
            if not text.startswith(REPLACEMENT):
                return tokens
        return list(token_ids[-PROMPT_TOKENS:])

    def take(self, token_ids: Sequence[int]) -> str:
        """Take in tokens of the output; return the text of the output that is now certain.

        A character that the prompt began is the output's if the output ends it. If it does not,
        what the decoder shows for it belongs to the prompt.
        """
        text = self.append(token_ids)
        if text and self._unfinished:
            text = text.removeprefix(REPLACEMENT * self._unfinished)
            self._unfinished = 0
        return text.replace(REAL_REPLACEMENT, REPLACEMENT)

    def append(self, token_ids: Sequence[int]) -> str:
        """Take in tokens; return the text that no later token can change.

        New text is what `complete_text` of the window has beyond the `_printed` characters. When
        there is some, and the text ends with a token (not inside one), the old end of the chunk
        becomes its start, and the end of the text's last token its end: `_slide` keeps everything
        from the start on.

        More than `MAX_BROKEN_WINDOW` tokens without a complete end are broken bytes. Then the
        window's text is shown as it is, except for its last `MAX_WAITING` characters.
        """
        self._tokens.extend(token_ids)
        num_complete, text = complete_text(self._tokens, self.decode)
        if not num_complete and len(self._tokens) > MAX_BROKEN_WINDOW:
            text = self.decode(self._tokens)[:-MAX_WAITING]
        new_text = text[self._printed :]
        self._printed += len(new_text)
        if num_complete and new_text:
            self._chunk_start, self._chunk_end = self._chunk_end, num_complete
        self._slide(num_complete)
        return new_text

    def overflows_with(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens make the window too long without a complete character at its end."""
        tokens = [*self._tokens, *token_ids]
        return len(tokens) > MAX_BROKEN_WINDOW and complete_text(tokens, self.decode)[0] == 0

    def _slide(self, num_complete: int) -> None:
        """Forget old tokens when there are many; keep the last chunk as context for the next."""
        if num_complete and len(self._tokens) > MAX_WINDOW and self._chunk_start:
            cut = self._chunk_start
            self._printed = len(self.decode(self._tokens[cut:num_complete]))
        elif len(self._tokens) > MAX_BROKEN_WINDOW:
            cut = len(self._tokens) - MIN_WINDOW
            num_unprinted = len(self.decode(self._tokens)) - self._printed
            self._printed = len(self.decode(self._tokens[cut:])) - num_unprinted
        else:
            return
        self._tokens = self._tokens[cut:]
        self._chunk_start, self._chunk_end = 0, max(self._chunk_end - cut, 0)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The tokenizer's text of these tokens alone.

        A U+FFFD at its end says that a character is not finished. One that is written out in the
        tokens' bytes is finished, and given as REAL_REPLACEMENT. A tokenizer that does not tell how
        its tokens are spelled is taken for one whose texts have none.
        """
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=self._skip_special_tokens
        )
        if not text.endswith(REPLACEMENT) or self._vocabulary is None:
            return text
        is_real = self._vocabulary.spell_replacement(token_ids)
        return text[:-1] + REAL_REPLACEMENT if is_real else text


def complete_text(
    token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> tuple[int, str]:
    """The text of the tokens, as far as it does not end inside a character.

    There are two ways to leave a started character out, and the longer text is the right one:

    * Drop the last tokens. A character has at most 4 bytes, so at most 3 tokens of it are here.
    * Drop the replacement characters at the end. This is better when one token holds the end of
      a character and the start of the next, or when the bytes are broken. It is worse when the
      decoder shows a whole run of good bytes as broken because the last byte is missing.

    Args:
        decode: turns token ids into text.

    Returns:
        How many tokens the text is made of (0 if it ends inside a token), and the text.
    """
    text = decode(token_ids)
    if not text.endswith(REPLACEMENT):
        return len(token_ids), text
    stripped = text.rstrip(REPLACEMENT)
    for length in range(len(token_ids) - 1, max(len(token_ids) - MAX_WAITING, 0) - 1, -1):
        text = decode(token_ids[:length])
        if not text.endswith(REPLACEMENT) and len(text) >= len(stripped):
            return length, text
    return 0, stripped


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
