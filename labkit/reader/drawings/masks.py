"""Phase 12: an automaton over bytes, and the row of tokens that each of its states lets through."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, CARD, GREEN, GREY, ORANGE, PALE, Canvas

PATTERN = "ab*c"
TEXTS = [b"a", b"b", b"c", b"ab", b"abc", b""]
END = 5
"""The guide's worked state: six tokens, of which the last is the end and no text."""
LEFT, CELL, TOP, HEIGHT = 330.0, 56.0, 62.0, 74.0


def rows() -> Canvas:
    """On the left who reads what, on the right what may come next; both of the engine's making."""
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions
    from mini_vllm.structured_output.native import NativeBackend
    from mini_vllm.structured_output.regex_automaton import DEAD
    from mini_vllm.structured_output.token_index import TokenTable, lift_state, set_bits

    tokens = TokenTable(TEXTS)
    grammar = NativeBackend(tokens, [END]).compile_grammar(StructuredOutputOptions.REGEX, PATTERN)
    automaton = grammar.index.automaton
    canvas = Canvas(760, 340, f"The automaton of {PATTERN}, and the mask of each of its states")
    canvas.text(20, 26, f"bytes: the automaton of {PATTERN}", bold=True)
    canvas.text(LEFT, 26, "tokens: the state after each", bold=True)
    for place, text in enumerate(TEXTS):
        canvas.text(
            LEFT + place * CELL + 23, 48, text.decode() or "end", anchor="middle", mono=True
        )
    canvas.text(LEFT + len(TEXTS) * CELL + 12, 48, "mask", size=12, colour=GREY)
    seen = [automaton.start]
    for state in seen:  # it grows
        after = {automaton.next(state, byte) for byte in range(256)}
        seen += [target for target in sorted(after) if target not in {DEAD, *seen}]
    for number, state in enumerate(seen):
        for byte in range(256):
            if (target := automaton.next(state, byte)) != DEAD:
                _move(canvas, number, seen.index(target), chr(byte))
        row = grammar.index.row(state).copy()
        if automaton.is_accepting(state):
            set_bits(row, [END])
        _state(canvas, number, automaton.is_accepting(state))
        _mask(canvas, number, int(row[0]), lift_state(automaton, tokens, state).tolist(), seen)
    words = "A token's bit is 1 if every byte of it can be read, one after the other."
    canvas.text(20, TOP + 3 * HEIGHT + 12, words, size=12, colour=GREY)
    words = "The lowest bit, the last digit, is the first token."
    canvas.text(20, TOP + 3 * HEIGHT + 30, words, size=12, colour=GREY)
    return canvas


def _mask(canvas: Canvas, number: int, word: int, after: list[int], seen: list[int]) -> None:
    """One row: where each token leads, and the bits packed into a number."""
    y = TOP + number * HEIGHT
    for place, target in enumerate(after):
        x = LEFT + place * CELL
        if not word >> place & 1:
            canvas.box(x, y + 8, 46, 30, colour=PALE, fill=CARD)
        elif place == END:
            canvas.box(x, y + 8, 46, 30, "yes", colour=ORANGE)
        else:
            canvas.box(x, y + 8, 46, 30, str(seen.index(target)), colour=GREEN, mono=True)
    x = LEFT + len(after) * CELL + 10
    canvas.text(x, y + 23, f"{word:06b}", mono=True, size=13)


def _state(canvas: Canvas, number: int, accepting: bool) -> None:
    y = TOP + number * HEIGHT
    words = f"state {number}" + (", may end" if accepting else "")
    canvas.box(60, y + 8, 130, 30, words, colour=ORANGE if accepting else BLUE)
    canvas.line([(200, y + 23), (LEFT - 16, y + 23)], colour=PALE, dashed=True)


def _move(canvas: Canvas, source: int, target: int, byte: str) -> None:
    """An arrow down to the next state, or a loop at the side of its own."""
    y = TOP + source * HEIGHT
    if source == target:
        canvas.line([(60, y + 14), (34, y + 14), (34, y + 32), (58, y + 32)], arrow=True)
        canvas.text(22, y + 23, byte, mono=True, anchor="middle", bold=True)
    else:
        canvas.line([(125, y + 40), (125, TOP + target * HEIGHT + 6)], arrow=True)
        canvas.text(138, (y + 40 + TOP + target * HEIGHT + 6) / 2, byte, mono=True, bold=True)
