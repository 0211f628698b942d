"""The mask of a finished grammar allows the end token, so accepting it is no error."""

from types import SimpleNamespace

from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_outlines import OutlinesBackend
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from labkit.maintain.rig import MODEL

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
END = TOKENIZER.eos_token_id


def new(regex):
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=8))
    backend = OutlinesBackend(vllm_config=config, tokenizer=TOKENIZER, vocab_size=len(TOKENIZER))
    return backend.compile_grammar(StructuredOutputOptions.REGEX, regex)


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def the_bug(draw):
    word = draw.choice(["ab", "cat", "no", "fox"])
    grammar = new(word)
    assert grammar.accept_tokens("r", encode(word))
    assert not grammar.is_terminated(), "the end token is still to come"
    assert grammar.accept_tokens("r", [END]), (
        "the end token is refused: the request ends with an error"
    )
    assert grammar.is_terminated() and grammar.is_terminated(), (
        "it has ended, however often one asks"
    )
    assert new(word).accept_tokens("r", [*encode(word), END]), "also with the text in one step"


def neighbour_the_end_before_the_text():
    assert not new("ab").accept_tokens("r", [END])
    assert not new("ab").accept_tokens("r", encode("zb"))


def neighbour_drafts_and_rollback():
    grammar, text = new("ab"), encode("ab")
    assert grammar.validate_tokens([*text, END]) == [*text, END]
    assert grammar.accept_tokens("r", [*text, END])
    grammar.rollback(1)
    assert (
        not grammar.is_terminated()
        and grammar.accept_tokens("r", [END])
        and grammar.is_terminated()
    )
    grammar.reset()
    assert not grammar.is_terminated() and grammar.accept_tokens("r", text)


def the_sibling(draw):
    """Another backend: its matcher has no step for the end token, so a rollback takes none back."""
    options = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
    backend = GuidanceBackend(
        vllm_config=SimpleNamespace(structured_outputs_config=options),
        tokenizer=TOKENIZER,
        vocab_size=len(TOKENIZER),
    )
    word = draw.choice(["ab", "cat", "no", "fox"])
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, word)
    assert grammar.accept_tokens("r", encode(word)) and grammar.accept_tokens("r", [END])
    grammar.rollback(1)
    assert not grammar.is_terminated()
    assert grammar.validate_tokens(encode(word)[-1:]) == [], (
        "after the end token is taken back, the text has lost its last token, too"
    )
