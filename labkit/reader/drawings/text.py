"""Phase 06: tokens become text; what is certain, what waits, and for what."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, ORANGE, RED, Canvas
from mini_vllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer
from mini_vllm.sampling_params import SamplingParams

TOKENS = [b"30", b" ", b"\xe2", b"\x82", b"\xac", b" sto", b"ry"]
STOP = "stop here"
LEFT, CHAR = 330.0, 17.0


class _Bytes:
    """A tokenizer whose tokens are the byte strings above."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return b"".join(TOKENS[token] for token in token_ids).decode("utf-8", "replace")


def promise() -> Canvas:
    """One row a token: what was printed, what is printed now, what waits."""
    canvas = Canvas(760, 356, "Seven tokens, and which text is certain after each")
    for x, words in (
        (20.0, "token"),
        (150.0, "its bytes"),
        (LEFT, "the text, as far as it is known"),
    ):
        canvas.text(x, 26, words, bold=True)
    detokenizer = IncrementalDetokenizer(_Bytes(), [], SamplingParams(stop=[STOP]))
    for number, token in enumerate(TOKENS):
        y = 46 + number * 34
        _row(canvas, y, number, token, detokenizer)
    legend = (
        (GREEN, "printed before"),
        (BLUE, "printed now"),
        (ORANGE, f'held: may begin "{STOP}"'),
        (RED, "a character that is not complete"),
    )
    x = 20.0
    for colour, words in legend:
        canvas.box(x, 316, 16, 16, colour=colour)
        canvas.text(x + 24, 324, words, size=12)
        x += 44 + 6.7 * len(words)
    return canvas


def _row(
    canvas: Canvas, y: float, number: int, token: bytes, detokenizer: IncrementalDetokenizer
) -> None:
    before = detokenizer.text
    new = detokenizer.append([number])
    known = _Bytes().decode(range(number + 1))
    printed = len(before) + len(new)
    started = len(known) - len(known.rstrip(REPLACEMENT))
    canvas.text(20, y + 14, str(number), size=12, colour=GREY, mono=True)
    plain = token.isascii()
    canvas.text(50, y + 14, repr(token.decode()) if plain else "", mono=True, size=13)
    canvas.text(150, y + 14, token.hex(" ").upper(), mono=True, size=13)
    for place, character in enumerate(known):
        colour = GREEN if place < len(before) else BLUE if place < printed else ORANGE
        if place >= len(known) - started:
            colour, character = RED, "?"
        canvas.box(LEFT + place * CHAR, y, CHAR, 28, character, colour=colour, mono=True, radius=0)
    held = len(known) - started - printed
    words = f"{held} held" if held else "waits for its last bytes" if started else ""
    canvas.text(LEFT + len(known) * CHAR + 12, y + 14, words, size=12, colour=GREY)
