"""One step accepts the end token and tokens behind it: that is no error of the request."""

import xgrammar
from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from labkit.maintain.rig import MODEL

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
END = TOKENIZER.eos_token_id


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def new(regex):
    info = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=len(TOKENIZER))
    compiled = xgrammar.GrammarCompiler(info).compile_regex(regex)
    matcher = xgrammar.GrammarMatcher(compiled, max_rollback_tokens=16)
    return XgrammarGrammar(matcher=matcher, vocab_size=len(TOKENIZER), ctx=compiled)


def the_bug(draw):
    word = draw.choice(["ab", "cat", "no", "fox"])
    text, behind = encode(word), encode("zzz")[: draw.randint(1, 3)]
    grammar = new(word)
    assert grammar.accept_tokens("r", [*text, END, *behind]), (
        "tokens behind the end token end the request with an error"
    )
    assert grammar.is_terminated()
    assert grammar.accept_tokens("r", behind), "what comes later is ignored"
    assert new(word).validate_tokens([*text, END, *behind]) == [*text, END], (
        "drafts are good up to the end"
    )


def neighbour_a_wrong_token_is_refused():
    assert not new("ab").accept_tokens("r", encode("zb"))
    assert not new("ab").accept_tokens("r", [END]), "the end before the text"
    assert new("ab").validate_tokens(encode("zb")) == []


def neighbour_validation_does_not_advance():
    grammar, text = new("ab"), encode("ab")
    assert grammar.validate_tokens([*text, END]) == [*text, END]
    assert (
        not grammar.is_terminated()
        and grammar.accept_tokens("r", [*text, END])
        and grammar.is_terminated()
    )
    grammar.rollback(1)
    assert not grammar.is_terminated() and grammar.accept_tokens("r", [END])
