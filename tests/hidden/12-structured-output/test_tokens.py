"""Vocabulary, rows, one request's place, and whose mask is whose: random problems beside loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=25)
INDEX = "mini_vllm.structured_output.token_index:"
NATIVE = "mini_vllm.structured_output.native:NativeGrammar"
UTILS = "mini_vllm.structured_output.utils:"
REQUEST = "mini_vllm.structured_output.request:"
MANAGER = "mini_vllm.structured_output.manager:StructuredOutputManager"
PUSHDOWN = "mini_vllm.structured_output.pushdown:Pushdown"
DEAD = -1
texts = st.lists(
    st.binary(max_size=4).map(lambda b: bytes(97 + x % 3 for x in b)), min_size=2, max_size=40
)


def as_bytes(p: Program, data: bytes) -> Any:
    return p.call("builtins:bytes", list(data))


def namespace(p: Program, **values: Any) -> Any:
    return p.new("types:SimpleNamespace", **values)


def tables(draw: Any) -> tuple[list[list[int]], list[bool]]:
    """A random automaton over a, b, c."""
    size = draw(st.integers(1, 5))
    rows = [[draw(st.integers(DEAD, size - 1)) for _ in range(3)] for _ in range(size)]
    return rows, [draw(st.booleans()) for _ in range(size)]


def automaton(p: Program, rows: list[list[int]], accepting: list[bool]) -> Any:
    """The engine's own class with a table that is complete, so that it computes nothing."""
    walk = p.call(f"{PUSHDOWN}.__new__", p.name(PUSHDOWN))
    table = [[DEAD] * 97 + row + [DEAD] * (256 - 100) for row in rows]
    p.set(walk, "table", p.call("numpy:array", table, dtype=p.name("numpy:int32")))
    p.set(walk, "_configurations", [(0,) if flag else () for flag in accepting])
    p.set(walk, "start", 0)
    return walk


def go(rows: list[list[int]], state: int, text: bytes) -> int:
    for byte in text:
        state = rows[state][byte - 97] if state != DEAD else DEAD
    return state if text else DEAD


@many
@given(data=st.data())
def test_12_5_random_vocabularies(subject: Any, data: st.DataObject) -> None:
    """Byte-level and SentencePiece vocabularies, with special and added tokens in between."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = dict(zip(visible, map(chr, visible), strict=True))
    alphabet |= {
        b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in alphabet)
    }
    words = data.draw(
        st.lists(st.binary(min_size=1, max_size=4), min_size=3, max_size=12, unique=True)
    )
    by_bytes = data.draw(st.booleans())
    if by_bytes:
        spelled = ["".join(alphabet[b] for b in word) for word in words]
    else:
        words = [word for word in words if len(word) == 1] + ["日 x".encode(), b" a"]
        spelled = [
            f"<0x{w[0]:02X}>" if len(w) == 1 else w.decode().replace(" ", "\u2581") for w in words
        ]
    spelled += ["<|end|>", "tool é", "<|pad|>"]
    end, added, pad = len(words), len(words) + 1, len(words) + 2
    size = len(spelled) + data.draw(st.integers(0, 3))
    p = Program()
    decoder = {added: ("tool é", False), pad: ("<|pad|>", True)}
    tokenizer = namespace(
        p,
        get_vocab=p.call("functools:partial", p.name("builtins:dict"),
                         p.call("builtins:dict", [(s, i) for i, s in enumerate(spelled)])),
        all_special_ids=[end],
        added_tokens_decoder=p.call("builtins:dict", [
            (i, namespace(p, content=content, special=special))
            for i, (content, special) in [*decoder.items(), (end, ("<|end|>", True))]
        ]),
    )  # fmt: skip
    found = p.call(f"{INDEX}token_bytes", tokenizer, size)
    p.see(p.call("builtins:list", p.call("builtins:map", p.name("builtins:list"), found)))
    wanted = [*words, b"", "tool é".encode(), b""] + [b""] * (size - len(spelled))
    assert [bytes(token) for token in subject.run(p)[0]] == wanted


@pytest.mark.parametrize("by_bytes", [False, True])
def test_12_5_what_looks_like_a_byte(subject: Any, by_bytes: bool) -> None:
    """In SentencePiece <0x41> is one byte, with more behind it, it is text; in byte-level BPE it is
    six letters. Of several borders each is a space. An added token is not special by its look."""
    spelled = ["<0x41>", "<0x41>b", "A<0x41>", "<|think|>"] + (
        [] if by_bytes else ["\u2581\u2581x\u2581"]
    )
    added = {3: ("<|think|>", False)}
    p = Program()
    tokenizer = namespace(
        p,
        get_vocab=p.call("functools:partial", p.name("builtins:dict"),
                         p.call("builtins:dict", [(s, i) for i, s in enumerate(spelled)])),
        all_special_ids=[],
        added_tokens_decoder=p.call("builtins:dict", [
            (i, namespace(p, content=content, special=special))
            for i, (content, special) in added.items()
        ]),
    )  # fmt: skip
    found = p.call(f"{INDEX}token_bytes", tokenizer, len(spelled))
    p.see(p.call("builtins:list", p.call("builtins:map", p.name("builtins:list"), found)))
    text = [token.encode() for token in spelled[:4]]
    wanted = text if by_bytes else [b"A", *text[1:], b"  x "]
    assert [bytes(token) for token in subject.run(p)[0]] == wanted


def test_12_5_special_by_either_list(subject: Any) -> None:
    """One that only `all_special_ids` names, one that is only marked, and others that are neither,
    white space among them."""
    spelled = ["<s>", "<|tool|>", "<|think|>", "a", "  ", " b\n"]
    marked = {1: ("<|tool|>", True), 2: ("<|think|>", False), 4: ("  ", False), 5: (" b\n", False)}
    p = Program()
    tokenizer = namespace(
        p,
        get_vocab=p.call("functools:partial", p.name("builtins:dict"),
                         p.call("builtins:dict", [(s, i) for i, s in enumerate(spelled)])),
        all_special_ids=[0],
        added_tokens_decoder=p.call("builtins:dict", [
            (i, namespace(p, content=content, special=special))
            for i, (content, special) in marked.items()
        ]),
    )  # fmt: skip
    found = p.call(f"{INDEX}token_bytes", tokenizer, 6)
    p.see(p.call("builtins:list", p.call("builtins:map", p.name("builtins:list"), found)))
    wanted = [b"", b"", b"<|think|>", b"a", b"  ", b" b\n"]
    assert [bytes(token) for token in subject.run(p)[0]] == wanted


VOCABULARY_OF_32K = """
from types import SimpleNamespace
from mini_vllm.structured_output.token_index import token_bytes

spelled = [f"w{number}" for number in range(32_000)] + ["\u00e9"] + last
tokenizer = SimpleNamespace(
    get_vocab=lambda: {text: i for i, text in enumerate(spelled)},
    all_special_ids=[], added_tokens_decoder={},
)
found = token_bytes(tokenizer, 32_064)
told = [len(found), list(map(list, found[31_999:32_002])), len(token_bytes(tokenizer, 100))]
"""


@pytest.mark.parametrize(
    ("last", "of_e9"),
    [([], b"\xe9"), (["日"], "é".encode())],
    ids=["byte-level", "SentencePiece"],
)
def test_12_5_the_last_of_32000_decides(subject: Any, last: list[str], of_e9: bytes) -> None:
    """One token that is not spelled in the byte alphabet, behind 32,000 that could be: then all are
    SentencePiece's. And a model with fewer ids than the tokenizer."""
    p = Program()
    names = p.execute(VOCABULARY_OF_32K, last=last)
    p.see(names["told"])
    [(size, texts, small)] = subject.run(p)
    assert (size, small) == (32_064, 100)
    assert [bytes(text) for text in texts] == [b"w31999", of_e9, "".join(last).encode()]


@many
@given(vocabulary=texts, data=st.data())
def test_12_6_random_automata(subject: Any, vocabulary: list[bytes], data: st.DataObject) -> None:
    """Every token of a random vocabulary, walked byte by byte; and rows in any order."""
    rows, accepting = tables(data.draw)
    p = Program()
    walk = automaton(p, rows, accepting)
    tokens = p.new(f"{INDEX}TokenTable", [as_bytes(p, text) for text in vocabulary])
    for state in range(len(rows)):
        p.see(p.call(f"{INDEX}lift_state", walk, tokens, state))
    words = -(-len(vocabulary) // 32)
    room = data.draw(st.integers(1, 3))
    index = p.new(f"{INDEX}TokenIndex", walk, tokens, 4 * words * room)
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    for state in asked:
        p.see(index.row(state))
    p.see(p.call("builtins:sorted", index._rows))
    *arrays, kept = subject.run(p)
    assert all(array.dtype == np.int32 for array in arrays)
    seen = [*(array.tolist() for array in arrays), kept]
    after = [[go(rows, state, text) for text in vocabulary] for state in range(len(rows))]
    assert seen[: len(rows)] == after
    for state, row in zip(asked, seen[len(rows) : -1], strict=True):
        assert row == pack([target != DEAD for target in after[state]])
    recent = list(dict.fromkeys(reversed(asked)))[:room]
    assert seen[-1] == sorted(recent)


LONG_TOKENS = """
import numpy as np
from mini_vllm.structured_output.token_index import TokenIndex, TokenTable, lift_state

class Letters:
    nbytes = calls = walked = 0

    def next(self, state, byte):
        self.calls, self.walked = self.calls + 1, self.walked + 1
        return state + 1 if byte == 97 else -1

    def step(self, states, data):
        self.calls, self.walked = self.calls + 1, self.walked + len(states)
        return np.where(data == 97, states + 1, -1).astype(np.int32)

sizes = [1, 2, 16, 17, 32, 33, 63, 64, 65, 150]
texts = [b"b%05d" % number for number in range(39_990)] + [b"a" * size for size in sizes]
tokens, walk = TokenTable(texts), Letters()
after = lift_state(walk, tokens, 100_000)
told = [np.flatnonzero(after != -1).tolist(), after[-10:].tolist(), walk.calls, walk.walked]
index = TokenIndex(walk, tokens)
index.row(0)
calls = walk.calls
index.row(0)
told += [walk.calls - calls]
"""


def test_12_6_tokens_of_64_bytes(subject: Any) -> None:
    """And of more. 40,000 tokens, of which the last ten go on, from state 100,000: a column at a
    time, and only those that are alive. A row that is there, also that of state 0, is not lifted
    again."""
    p = Program()
    names = p.execute(LONG_TOKENS)
    p.see(names["told"])
    [(ids, states, calls, walked, again)] = subject.run(p)
    assert ids == [*range(39_990, 40_000)]
    assert states == [100_000 + size for size in (1, 2, 16, 17, 32, 33, 63, 64, 65, 150)]
    assert calls <= 64 * 64 and walked <= 2 * 40_000, f"{calls} steps of {walked:,} tokens"
    assert again == 0


def test_12_6_the_row_that_was_used_last_stays(subject: Any) -> None:
    """Room for two rows: 2, 0, 2 again, then 1."""
    p = Program()
    walk = automaton(p, [[0, 1, 2]] * 3, [True] * 3)
    tokens = p.new(f"{INDEX}TokenTable", [as_bytes(p, b"a"), as_bytes(p, b"b")])
    index = p.new(f"{INDEX}TokenIndex", walk, tokens, 2 * 4)
    for state in (2, 0, 2, 1):
        index.row(state)
    p.see(p.call("builtins:sorted", index._rows))
    assert subject.run(p) == [[1, 2]]


def test_12_6_a_row_without_tokens_is_a_row(subject: Any) -> None:
    """Nothing may follow state 1. It is asked for twice, and so state 0 goes before it."""
    p = Program()
    walk = automaton(p, [[0, 1, 2], [DEAD] * 3, [0, 1, 2]], [True] * 3)
    tokens = p.new(f"{INDEX}TokenTable", [as_bytes(p, b"a"), as_bytes(p, b"b")])
    index = p.new(f"{INDEX}TokenIndex", walk, tokens, 2 * 4)
    for state in (1, 0, 1, 2):
        index.row(state)
    p.see(p.call("builtins:sorted", index._rows))
    p.see(p.call("operator:is_", index.row(1), index.row(1)))
    assert subject.run(p) == [[1, 2], True]


def pack(allowed: list[bool]) -> list[int]:
    words = [0] * -(-len(allowed) // 32)
    for token, flag in enumerate(allowed):
        words[token // 32] |= flag << (token % 32)
    return [word - 2**32 if word >= 2**31 else word for word in words]


@many
@given(allowed=st.lists(st.booleans(), min_size=1, max_size=140), data=st.data())
def test_12_7_random_masks(subject: Any, allowed: list[bool], data: st.DataObject) -> None:
    """Packed, and then changed: several tokens at once, of the same word, and one twice."""
    some = st.lists(st.integers(0, len(allowed) - 1), max_size=6)
    changes = data.draw(st.lists(st.tuples(some, st.booleans()), max_size=4))
    p = Program()
    words = p.call(f"{INDEX}pack_bits", p.call("numpy:array", allowed))
    p.see(words)
    own = words.copy()
    for tokens, flag in changes:
        p.call(f"{INDEX}set_bits", own, tokens, flag)
    p.see(own.tolist())
    before, after = subject.run(p)
    assert before.tolist() == pack(allowed) and before.dtype == np.int32
    for tokens, flag in changes:
        for token in tokens:
            allowed[token] = flag
    assert after == pack(allowed)


def test_12_7_whole_words_and_none(subject: Any) -> None:
    """31, 32 and 33 tokens, 64, and a vocabulary without tokens; and a change of no token."""
    sizes = [0, 1, 31, 32, 33, 63, 64, 65]
    p = Program()
    for size in sizes:
        p.see(p.call(f"{INDEX}pack_bits", p.call("numpy:ones", size, dtype="bool")))
    words = p.call("numpy:array", [5], dtype=p.name("numpy:int32"))
    p.call(f"{INDEX}set_bits", words, [])
    p.see(words)
    *rows, same = subject.run(p)
    assert [row.tolist() for row in rows] == [pack([True] * size) for size in sizes]
    assert all(row.dtype == np.int32 for row in rows) and same.tolist() == [5]


@pytest.mark.parametrize("allowed", [True, False])
def test_12_7_all_tokens_of_a_word_at_once(subject: Any, allowed: bool) -> None:
    """Tokens 3, 31, 3 again and 32, in a row of a larger mask."""
    p = Program()
    mask = p.call("numpy:full", [3, 2], 0 if allowed else -1, dtype=p.name("numpy:int32"))
    p.call(f"{INDEX}set_bits", mask[1], [3, 31, 3, 32], allowed)
    p.see(mask.tolist())
    other, changed = [0, 0], [8 - 2**31, 1]
    if not allowed:
        other, changed = [[-1 - word for word in words] for words in (other, changed)]
    assert subject.run(p) == [[other, changed, other]]


VOCABULARY, ENDS = [b"", b"a", b"b", b"ab", b"c", b"ca", b""], (0, 6)


def states_after(rows: list[list[int]]) -> list[list[int]]:
    """Of each state: where each token leads."""
    return [[go(rows, state, text) for text in VOCABULARY] for state in range(len(rows))]


def grammar_of(p: Program, rows: list[list[int]], accepting: list[bool]) -> Any:
    """A request's place in an automaton, with tokens 0 and 6 as its ends."""
    after = states_after(rows)
    walk, int32 = automaton(p, rows, accepting), p.name("numpy:int32")
    packed = [p.call("numpy:array", pack([t != DEAD for t in row]), dtype=int32) for row in after]
    row = p.call("functools:partial", p.name("operator:getitem"), packed)
    tokens = p.new(f"{INDEX}TokenTable", [as_bytes(p, text) for text in VOCABULARY])
    index = namespace(p, automaton=walk, row=row, tokens=tokens,
                      walk=p.call("numpy:array", after).item)  # fmt: skip
    return p.new(NATIVE, index, list(ENDS))


def seventy(p: Program) -> Any:
    """A vocabulary of 70 tokens: three words a row."""
    return p.new(f"{INDEX}TokenTable", [as_bytes(p, b"a")] * 70)


def test_12_8_ends_and_corners(subject: Any) -> None:
    """Nothing stands behind an end, an end is taken back, and an empty mask is an error."""
    p = Program()
    grammar = grammar_of(p, [[1, DEAD, DEAD], [1, DEAD, DEAD]], [False, True])
    p.see(grammar.accept_tokens("r", [1, 0, 1]))
    p.see(grammar.is_terminated())
    p.see(grammar.validate_tokens([1, 6, 1]))
    tokens = p.call("builtins:list", [1, 6])
    p.see(grammar.accept_tokens("r", tokens))
    p.see([grammar.state, tokens])  # an end leads to no other state
    p.see(grammar.accept_tokens("r", []))
    p.see(grammar.is_terminated())
    words = p.call("numpy:zeros", [1, 1], dtype=p.name("numpy:int32"))
    for _ in range(2):  # at the end, and when it was taken back
        grammar.fill_bitmask(words, 0)
        p.see(words[0].tolist())
        grammar.rollback(1)
        p.see(grammar.is_terminated())
    corner = grammar_of(p, [[DEAD, DEAD, DEAD]], [False])
    p.refuse("ValueError", corner.fill_bitmask, words, 0, says="no token")
    open_again = pack([True, True, *[False] * 4, True])
    told = [False, False, [1, 6], True, [1, [1, 6]], True, True, [0], False, open_again, False]
    assert subject.run(p) == told


def test_12_8_a_row_of_its_own(subject: Any) -> None:
    """Rows of other requests stay as they are, and so does what the index keeps for all of them;
    too many tokens are not taken back, and nothing is."""
    p = Program()
    grammar = grammar_of(p, [[1, DEAD, DEAD], [DEAD, DEAD, DEAD]], [False, True])
    words = p.call("numpy:full", [3, 1], -1, dtype=p.name("numpy:int32"))
    grammar.accept_tokens("r", [1])
    grammar.fill_bitmask(words, 2)
    p.see(words.tolist())
    p.see(grammar.index.row(1).tolist())
    grammar.accept_tokens("r", [6])
    grammar.fill_bitmask(words, 1)
    p.see(words.tolist())
    p.refuse("ValueError", grammar.rollback, 3, says=r"\b3\b.*\b2\b|\b2\b.*\b3\b")
    p.see([grammar.is_terminated(), grammar.num_processed_tokens])
    ends = pack([True, *[False] * 5, True])
    assert subject.run(p) == [[[-1], [-1], ends], [0], [[-1], [0], ends], [True, 2]]


@pytest.mark.parametrize("may_end", [False, True])
def test_12_8_a_mask_of_several_words(subject: Any, may_end: bool) -> None:
    """Of 70 tokens, 65 may come next, and 66 is an end; behind the end none may come."""
    p = Program()
    legal = p.call("numpy:array", pack([t == 65 for t in range(70)]), dtype=p.name("numpy:int32"))
    row = p.call("functools:partial", p.name("operator:getitem"), [legal])
    walk = automaton(p, [[DEAD, DEAD, DEAD]], [may_end])
    grammar = p.new(NATIVE, namespace(p, automaton=walk, row=row, tokens=seventy(p)), [66])
    words = p.call("numpy:full", [1, 3], -1, dtype=p.name("numpy:int32"))
    grammar.fill_bitmask(words, 0)
    p.see(words[0].tolist())
    p.see(grammar.accept_tokens("r", [66]))
    p.call("numpy:copyto", words, -1)
    grammar.fill_bitmask(words, 0)
    p.see(words[0].tolist())
    after = [0, 0, 0 if may_end else 2]
    assert subject.run(p) == [[0, 0, 2 + 4 * may_end], may_end, after]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_12_8_the_last_token_of_a_word_alone(subject: Any, kind: str) -> None:
    """Only token 31 may come: its word is a negative number. Masks are arrays or tensors."""
    p = Program()
    legal = p.call("numpy:array", [-(2**31)], dtype=p.name("numpy:int32"))
    row = p.call("functools:partial", p.name("operator:getitem"), [legal])
    walk = automaton(p, [[DEAD, DEAD, DEAD]], [False])
    tokens = p.new(f"{INDEX}TokenTable", [as_bytes(p, b"a")] * 32)
    grammar = p.new(NATIVE, namespace(p, automaton=walk, row=row, tokens=tokens), [3])
    words = p.call(f"{kind}:ones", [2, 1], dtype=p.name(f"{kind}:int32"))
    grammar.fill_bitmask(words, 1)
    p.see(words.tolist())
    assert subject.run(p) == [[[1], [-(2**31)]]]


def test_12_8_hundreds_of_tokens_are_taken_back(subject: Any) -> None:
    """None at all; 500 a's in ones; two more and the end in one go; and all but one taken back."""
    p = Program()
    grammar = grammar_of(p, [[1, DEAD, DEAD], [1, DEAD, DEAD]], [False, True])
    p.see([grammar.accept_tokens("r", []), grammar.is_terminated()])
    for _ in range(500):
        grammar.accept_tokens("r", [1])
    p.see(grammar.accept_tokens("r", [1, 1, 6]))
    for count in (2, 500):
        grammar.rollback(count)
        p.see([grammar.is_terminated(), grammar.num_processed_tokens])
    grammar.rollback(1)
    p.see(grammar.accept_tokens("r", [6]))
    assert subject.run(p) == [[True, False], True, [False, 501], [False, 1], False]


@pytest.mark.parametrize("end", [96, 70_000])
def test_12_8_an_end_beyond_the_row(subject: Any, end: int) -> None:
    """Of 70 tokens, 65 may come next and 66 is an end. The other end has no bit in three words."""
    p = Program()
    legal = p.call("numpy:array", pack([t == 65 for t in range(70)]), dtype=p.name("numpy:int32"))
    row = p.call("functools:partial", p.name("operator:getitem"), [legal])
    walk = automaton(p, [[DEAD, DEAD, DEAD]], [True])
    grammar = p.new(NATIVE, namespace(p, automaton=walk, row=row, tokens=seventy(p)), [66, end])
    words = p.call("numpy:full", [1, 3], -1, dtype=p.name("numpy:int32"))
    grammar.fill_bitmask(words, 0)
    p.see(words[0].tolist())
    assert subject.run(p) == [[0, 0, 2 + 4]]


@many
@given(data=st.data())
def test_12_8_random_stories(subject: Any, data: st.DataObject) -> None:
    """Tokens come, are looked at, and are taken back; after each move the mask is right."""
    ends = ENDS
    rows, accepting = tables(data.draw)
    after = states_after(rows)
    p = Program()
    grammar = grammar_of(p, rows, accepting)
    words = p.call("numpy:zeros", (1, 1), dtype=p.name("numpy:int32"))
    history, ended, expected = [0], False, []

    def walked(tokens: list[int]) -> list[int]:
        states, state, over = [], history[-1], ended
        for token in tokens:
            if over:
                break
            if token in ends:
                if not accepting[state]:
                    break
                over = True
            else:
                state = after[state][token]
                if state == DEAD:
                    break
            states.append(state)
        return states

    for _ in range(data.draw(st.integers(1, 10))):
        move = data.draw(st.sampled_from(["accept", "validate", "rollback", "mask"]))
        tokens = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
        states = walked(tokens)
        if move == "accept":
            p.see(grammar.accept_tokens("r", tokens))
            expected.append(len(states) == len(tokens))
            if expected[-1]:
                history += states
                ended = ended or bool(set(tokens) & set(ends))
        elif move == "validate":
            p.see(grammar.validate_tokens(tokens))
            expected.append(tokens[: len(states)])
        elif move == "rollback":
            count = data.draw(st.integers(0, len(history) - 1))
            grammar.rollback(count)
            if count:
                del history[-count:]
                ended = False
        else:
            mask = [t != DEAD for t in after[history[-1]]]
            if ended:
                mask = [False] * 7
            elif accepting[history[-1]]:
                mask = [flag or t in ends for t, flag in enumerate(mask)]
            elif not any(mask):
                continue
            grammar.fill_bitmask(words, 0)
            p.see(words[0].tolist())
            expected.append(pack(mask))
        p.see(grammar.is_terminated())
        expected.append(ended)
    may_end = bool(walked([ends[0]]))  # the end, and then nothing is taken back
    p.see(grammar.accept_tokens("r", [ends[0]]))
    grammar.rollback(0)
    p.see(grammar.is_terminated())
    expected += [may_end, ended or may_end]
    if ended or may_end:
        grammar.fill_bitmask(words, 0)
        p.see(words[0].tolist())
        expected.append([0])
    assert subject.run(p) == expected


@many
@given(legal=st.lists(st.booleans(), max_size=5), padding=st.integers(0, 9))
def test_12_12_random_drafts(subject: Any, legal: list[bool], padding: int) -> None:
    """Which row is filled in which place, and that the grammar stands where it stood."""
    drafts = [7 + i for i in range(len(legal))]
    if padding < len(drafts):
        drafts[padding] = -1
    good = 0
    while good < len(drafts) and drafts[good] != -1 and legal[good]:
        good += 1
    p = Program()
    p.see(filled(p, drafts, [d for d, flag in zip(drafts, legal, strict=True) if flag])["told"])
    rows = [4 << place for place in range(good + 1)] + [-1] * (len(drafts) - good)
    assert subject.run(p) == [[rows, 0, {}]]


def test_12_12_token_0_is_a_draft(subject: Any) -> None:
    """Two drafts, the first of them token 0: three rows, and both are taken back."""
    p = Program()
    p.see(filled(p, [0, 7], [0, 7])["told"])
    assert subject.run(p) == [[[4, 8, 16], 0, {}]]


def test_12_12_twenty_drafts(subject: Any) -> None:
    """All of them are right: 21 rows."""
    drafts = [*range(7, 27)]
    p = Program()
    p.see(filled(p, drafts, drafts)["told"])
    assert subject.run(p) == [[[4 << place for place in range(21)], 0, {}]]


def test_12_12_an_error_behind_a_draft(subject: Any) -> None:
    """It is kept for its request, nothing is raised, and the draft is taken back."""
    p = Program()
    p.see(filled(p, [7, 8], [7, 8], corner=1)["told"])
    ((rows, place, broken),) = subject.run(p)
    assert (rows[0], place, broken) == (4, 0, {"r": "a corner"})


def test_12_12_an_error_of_the_engine_is_raised(subject: Any) -> None:
    """It is no corner of the grammar, and no mistake of the request."""
    p = Program()
    names = filled(p, [7], [7])
    error = p.new("builtins:RuntimeError", "a mistake of ours")
    p.set(names["grammar"], "fill_bitmask", p.new("unittest.mock:Mock", side_effect=error))
    p.refuse("RuntimeError", names["manager"].fill_rows, names["request"], [7], names["words"])
    assert subject.run(p) == []


STORY = """
from types import SimpleNamespace

import numpy as np
from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.structured_output.backend_types import StructuredOutputGrammar
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.token_index import TokenTable

class Grammar(StructuredOutputGrammar):
    place = 0

    def validate_tokens(self, tokens):
        there = zip(tokens, drafts[self.place :])
        wrong = [i for i, (a, b) in enumerate(there) if a != b or a not in legal]
        return tokens[: min([*wrong, len(drafts) - self.place])]

    def accept_tokens(self, request_id, tokens):
        is_legal = len(self.validate_tokens(tokens)) == len(tokens)
        self.place += len(tokens) * is_legal
        return is_legal

    def rollback(self, num_tokens):
        if not 0 <= num_tokens <= self.place:
            raise ValueError("so many were not accepted")
        self.place -= num_tokens

    def fill_bitmask(self, bitmask, batch_index):
        if self.place == corner:
            raise ValueError("a corner")
        bitmask[batch_index] = 4 << self.place

    def is_terminated(self):
        return False

    def reset(self):
        self.place = 0

grammar = Grammar()
request = SimpleNamespace(
    request_id="r", stop_token_ids=(), num_output_tokens=0,
    sampling_params=SimpleNamespace(ignore_eos=False, min_tokens=0),
    structured_output_request=SimpleNamespace(grammar=grammar),
)
tokens = TokenTable([b"a", b""])
manager = StructuredOutputManager(StructuredOutputsConfig(), lambda: tokens, [1])
words = np.full((len(drafts) + 1, 1), -1, dtype=np.int32)
manager.fill_rows(request, drafts, words)
told = [words[:, 0].tolist(), grammar.place, manager._broken]
"""


def filled(p: Program, drafts: list[int], legal: list[int], corner: int = -1) -> Any:
    """Fill the rows of a request. Its grammar lets the drafts that are `legal` through, in their
    order, and writes 4 << n where it stands behind n of them, or is in a corner there.

    Returns:
        A namespace: "told" has the rows, the place afterwards, and the manager's reasons.
    """
    names = p.execute(STORY, drafts=drafts, legal=legal, corner=corner)
    return names


def test_12_12_every_end_of_a_compilation(subject: Any) -> None:
    """Pending, done, failed, cancelled, running, and none: only one of them is ready."""
    p = Program()
    manager = p.new(MANAGER, p.new("mini_vllm.config:StructuredOutputsConfig"), None, [1])
    futures = [p.new("concurrent.futures:Future") for _ in range(5)]
    futures[1].set_result(5)
    futures[2].set_exception(p.new("builtins:ValueError", "bad"))
    futures[3].cancel()
    futures[4].set_running_or_notify_cancel()
    for future in [*futures, None]:
        constraint = p.new(f"{REQUEST}StructuredOutputRequest", None, future)
        p.see(manager.is_ready(namespace(p, structured_output_request=constraint)))
    p.see(manager.is_ready(namespace(p, structured_output_request=None)))
    assert subject.run(p) == [False, True, False, False, False, False, False]


@pytest.mark.parametrize(("rows", "paired"), [(1, 1), (3, 2), (0, 0)])
def test_12_13_unequal_counts(subject: Any, rows: int, paired: int) -> None:
    """a has two masks for 1, 3 or no rows of logits: b's rows and its mask are b's all the same."""
    p = Program()
    p.see(p.call(f"{UTILS}mask_rows", ["a", "b"], [rows, 2], {"a": (0, 2), "b": (2, 2)}))
    found = [list(part) for part in subject.run(p)[0]]
    assert found == [[*range(paired), rows, rows + 1], [*range(paired), 2, 3]]


@many
@given(data=st.data())
def test_12_13_random_batches(subject: Any, data: st.DataObject) -> None:
    """Requests with and without masks, with and without drafts, in two orders; and some with more
    rows of masks than of logits, or fewer."""
    names = data.draw(st.permutations("abcdef").map(lambda x: x[:4]))
    counts = [data.draw(st.integers(1, 4)) for _ in names]
    masked = data.draw(st.permutations([n for n in "abcdefg" if data.draw(st.booleans())]))
    masks, first = {}, 0
    for name in masked:
        size = counts[names.index(name)] if name in names else 2
        size = max(size + data.draw(st.sampled_from([0, 0, 1, -1, -4])), 0)
        masks[name] = (first, size)
        first += size
    p = Program()
    p.see(p.call(f"{UTILS}mask_rows", list(names), counts, masks))
    found = [list(part) for part in subject.run(p)[0]]
    wanted: list[list[int]] = [[], []]
    start = 0
    for name, count in zip(names, counts, strict=True):
        for offset in range(min(count, masks.get(name, (0, 0))[1])):
            wanted[0].append(start + offset)
            wanted[1].append(masks[name][0] + offset)
        start += count
    assert found == wanted
