"""Task 06.7: tokens to text, never half a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.testing import expect
from mini_vllm.engine.detokenizer import MAX_BROKEN_WINDOW, REPLACEMENT, complete_text


def decode_bytes(token_ids: Sequence[int]) -> str:
    """Tokens are bytes here."""
    return bytes(token_ids).decode(errors="replace")


def decode_pairs(pairs: Sequence[bytes]) -> str:
    """Tokens are strings of bytes here."""
    return decode_bytes(b"".join(pairs))


def test_06_7_whole_text_is_complete() -> None:
    """Complete: text that ends with a character is given as it is."""
    expect(complete_text(b"ab", decode_bytes), (2, "ab"), at="tokens a, b")
    expect(complete_text(b"", decode_bytes), (0, ""), at="no tokens")


def test_06_7_a_started_character_is_left_out() -> None:
    """Complete: 1 to 3 tokens of a character that is not finished are dropped."""
    for text, number in (("é", 1), ("€", 2), ("😀", 3)):
        tokens = b"ab" + text.encode()[:number]
        at = f"a, b and {number} of the {len(text.encode())} bytes of {text}"
        expect(complete_text(tokens, decode_bytes), (2, "ab"), at=at)


def test_06_7_a_token_may_end_one_character_and_start_another() -> None:
    """Complete: then no number of whole tokens is right; the text is, with count 0."""
    pairs = [b"a\xc3", b"\xa9\xc3"]
    at = "the second token holds the end of é and the start of another character"
    expect(complete_text(pairs, decode_pairs), (0, "aé"), at=at)


def test_06_7_good_characters_behind_a_broken_display_are_kept() -> None:
    """Complete: a decoder may show a whole run of bytes as broken because of its last one."""

    def decode_run(data: Sequence[int]) -> str:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(data)

    at = "é, and the first byte of another: the decoder shows three replacement characters"
    expect(complete_text("éé".encode()[:3], decode_run), (2, "é"), at=at)


def test_06_7_broken_bytes_are_not_waited_for() -> None:
    """Complete: four broken bytes are no character to come; what stands before them is given."""
    at = "a, b and four bytes that no character begins with"
    expect(complete_text(b"ab\x80\x80\x80\x80", decode_bytes), (0, "ab"), at=at)


def test_06_7_a_character_of_several_tokens_comes_at_once(lab: Any) -> None:
    """Window: the bundled tokenizer cuts € into three tokens; nothing comes before the third."""
    tokenizer = lab.bundled_tokenizer()
    ids = tokenizer.encode("is 5 €.").ids
    yours = lab.pieces(lab.window(tokenizer), ids)
    single = [tokenizer.decode([i]) for i in ids]
    expect("".join(yours), "is 5 €.", at="the text as a whole", tokens=single)
    at = "€ is three tokens; decoded alone, each is a replacement character"
    expect([p for p in yours if "€" in p or REPLACEMENT in p], ["€"], at=at, tokens=single)


def test_06_7_the_pieces_make_up_the_text(lab: Any) -> None:
    """Window: long texts in many scripts come back, token by token and in larger steps."""
    tokenizer = lab.bundled_tokenizer()
    text = "Zoë paid 30 € 😀 for a 日本 tea — ok? " * 12
    ids = tokenizer.encode(text).ids
    for size in (1, 2, 7, len(ids)):
        window = lab.window(tokenizer)
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        expect("".join(map(window.append, chunks)), text, at=f"{len(ids)} tokens, {size} a step")


def test_06_7_the_prompt_is_context_and_is_not_printed(lab: Any) -> None:
    """Window: the prompt's end decides about the first space, and stays unprinted."""
    tokenizer = lab.byte_tokenizer()
    the, fox, s = (tokenizer.token_to_id(word) for word in ("▁the", "▁fox", "s"))
    expect(lab.pieces(lab.window(tokenizer, [the]), [fox, s]), [" fox", "s"], at="prompt 'the'")
    expect(lab.pieces(lab.window(tokenizer), [fox, s]), ["fox", "s"], at="no prompt")


def test_06_7_the_window_slides_without_losing_a_space(lab: Any) -> None:
    """Window: it stays short in a long output, and the text stays right."""
    tokenizer = lab.byte_tokenizer()
    the, fox, s = (tokenizer.token_to_id(word) for word in ("▁the", "▁fox", "s"))
    ids = ([the, fox, s, *lab.byte_tokens("é😀")] * 40)[:-2]
    window = lab.window(tokenizer, [the])
    printed, longest = "", 0
    for token_id in ids:
        printed += window.append([token_id])
        longest = max(longest, len(window._tokens))
    expected = (" the foxsé😀" * 40)[:-1]
    expect(printed, expected, at=f"{len(ids)} tokens, the last character is not finished")
    assert longest <= MAX_BROKEN_WINDOW, f"the window has grown to {longest} tokens"


def test_06_7_broken_bytes_do_not_hold_the_text_back_for_ever(lab: Any) -> None:
    """Window: a model may write bytes that are no text; they are shown, late."""
    window = lab.window(lab.bundled_tokenizer())
    lone = lab.bundled_tokenizer().encode("é").ids[0]
    printed = "".join(lab.pieces(window, [lone] * 300))
    at = "300 times the first byte of é"
    expect(set(printed) <= {REPLACEMENT} and len(printed) > 150, True, at=at, printed=len(printed))
    assert len(window._tokens) <= MAX_BROKEN_WINDOW, "the window must not grow for ever"
