"""After a reset a grammar begins anew."""

from types import SimpleNamespace

import xgrammar
from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_outlines import OutlinesBackend
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from labkit.maintain.rig import MODEL

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)


def ended(word):
    """A grammar that has taken a word and the end, and the tokens of both."""
    info = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=len(TOKENIZER))
    compiled = xgrammar.GrammarCompiler(info).compile_regex(word)
    grammar = XgrammarGrammar(
        matcher=xgrammar.GrammarMatcher(compiled, max_rollback_tokens=8),
        vocab_size=len(TOKENIZER),
        ctx=compiled,
    )
    tokens = [*TOKENIZER.encode(word, add_special_tokens=False), TOKENIZER.eos_token_id]
    assert grammar.accept_tokens("r", tokens) and grammar.is_terminated()
    return grammar, tokens


def the_bug(draw):
    grammar, tokens = ended(draw.choice(["ab", "cat", "no", "fox", "yes"]))
    grammar.reset()
    assert not grammar.is_terminated(), "after reset() it says that it has ended"
    assert grammar.accept_tokens("r", tokens) and grammar.is_terminated()


def neighbour_it_counts_anew():
    grammar, tokens = ended("ab")
    assert grammar.num_processed_tokens == len(tokens)
    grammar.reset()
    assert grammar.num_processed_tokens == 0


def neighbour_an_end_stays_the_end():
    grammar, _ = ended("ab")
    assert grammar.is_terminated() and grammar.is_terminated()
    grammar.rollback(1)
    assert not grammar.is_terminated()


def the_sibling(draw):
    """Another backend's grammar that is reset has not ended either."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=8))
    backend = OutlinesBackend(vllm_config=config, tokenizer=tokenizer, vocab_size=len(tokenizer))
    word = draw.choice(["ab", "cat", "no", "fox"])
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, word)
    assert grammar.accept_tokens("r", tokenizer.encode(word, add_special_tokens=False))
    grammar.is_terminated()
    grammar.reset()
    assert not grammar.is_terminated(), "nothing of it is accepted, and it has ended"
