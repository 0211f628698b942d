"""A bracket inside of a string argument closes nothing."""

from vllm.tool_parsers.gemma4_tool_parser import STRING_DELIM, _parse_gemma4_args
from vllm.tool_parsers.utils import UnexpectedAstError, make_valid_python


def whole(text):
    try:
        found = make_valid_python(text)
    except UnexpectedAstError as error:
        raise AssertionError(f"{text!r}: {error}") from None
    return found and found[0]


def the_bug(draw):
    quote, bracket = draw.choice("'\""), draw.choice("[](){}")
    text = f"[f(x={quote}a{bracket}b"
    assert whole(text) == f"{text}{quote})]", f"{text!r} becomes {whole(text)!r}"
    text = f"[f(x={quote}{bracket}{quote}, y={quote}ab"
    assert whole(text) == f"{text}{quote})]", f"{text!r} becomes {whole(text)!r}"


def neighbour_quotes_and_backslashes():
    assert whole("[f(x='ab") == "[f(x='ab')]"
    assert whole("[f(x='a\"b") == "[f(x='a\"b')]", "another quote is a letter"
    assert whole("[f(x='a\\'b") == "[f(x='a\\'b')]", "an escaped quote is a letter"
    assert whole("[f(x='a\\\\', y='c") == "[f(x='a\\\\', y='c')]", (
        "an escaped backslash escapes no quote"
    )


def neighbour_brackets_outside_of_strings():
    assert whole('[f(x=["a", "b') == '[f(x=["a", "b"])]'
    for wrong in ("[f(x=1])", "f(x=1))", "[f(x={1)"):
        try:
            make_valid_python(wrong)
        except UnexpectedAstError:
            continue
        raise AssertionError(f"{wrong!r} is taken")


def the_sibling(draw):
    """A bracket inside of a string does not end another parser's list."""
    for word in (draw.choice(["a]", "]b", "x[y", "]["]), "plain"):
        text = f"{STRING_DELIM}{word}{STRING_DELIM}"
        found = _parse_gemma4_args(f"items:[{text},{text}],n:3")
        assert found == {"items": [word, word], "n": 3}, found
