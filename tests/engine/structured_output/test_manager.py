"""The manager on its own: rows for drafts, compiling once, and whose mask is whose."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams, StructuredOutputsParams
from mini_vllm.structured_output import token_index
from mini_vllm.structured_output.backend_types import (
    KeptRows,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.token_index import TokenTable, unpack_bits
from mini_vllm.structured_output.utils import (
    apply_grammar_bitmask,
    apply_token_bitmask_inplace,
    mask_rows,
)
from tests.engine.pace import PATIENCE

LETTERS = [bytes([byte]) for byte in range(ord("a"), ord("z") + 1)] + [b""]
EOS = 26


@pytest.fixture()
def manager() -> StructuredOutputManager:
    config = StructuredOutputsConfig(backend="native")
    return StructuredOutputManager(config, lambda: TokenTable(LETTERS), [EOS])


def add(
    manager: StructuredOutputManager, request_id: str, regex: str | None, **options: Any
) -> Request:
    structured = StructuredOutputsParams(regex=regex) if regex is not None else None
    params = SamplingParams(structured_outputs=structured, **options)
    request = Request(request_id, [1, 2], params, eos_token_id=EOS)
    manager.request_added(request)
    manager.wait(PATIENCE)
    return request


def letters(row: np.ndarray) -> str:
    allowed = np.flatnonzero(unpack_bits(row, 27))
    return (
        "all" if len(allowed) == 27 else "".join("abcdefghijklmnopqrstuvwxyz."[i] for i in allowed)
    )


def ids(text: str) -> list[int]:
    return [ord(char) - ord("a") if char != "." else EOS for char in text]


def test_a_grammar_that_was_compiled_costs_no_waiting(manager: StructuredOutputManager) -> None:
    first = add(manager, "a", "ab")
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="ab"))
    again = Request("b", [1], params, eos_token_id=EOS)
    manager.request_added(again)
    assert manager.is_ready(again)  # nothing was waited for
    grammars = [one.structured_output_request.grammar for one in (first, again)]
    assert grammars[0].accept_tokens("a", ids("a")) and grammars[0].state != grammars[1].state
    other = Request("c", [1], params.clone(), eos_token_id=EOS)
    other.sampling_params.structured_outputs = StructuredOutputsParams(regex="abc")
    manager.request_added(other)
    manager.wait(PATIENCE)
    assert manager.is_ready(other)


def test_moves_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "MAX_MOVES", 4)
    backend = NativeBackend(TokenTable(LETTERS), [EOS])
    grammar = backend.compile_grammar(StructuredOutputOptions.REGEX, "[a-z]{9}")
    for text in ("abcdefghi", "zyxwvutsr"):
        grammar.reset()
        assert grammar.accept_tokens("", ids(text)) and grammar.must_end()
        assert len(grammar.index._moves) <= 4
    assert not grammar.accept_tokens("", ids("a")) and grammar.accept_tokens("", [EOS])


class Slow(NativeBackend):
    """Takes `x+` for large, and compiles it when it may."""

    def __init__(self, may: threading.Event) -> None:
        super().__init__(TokenTable(LETTERS), [EOS])
        self.may = may

    def is_large(self, request_type: Any, grammar_spec: str) -> bool:
        return "x" in grammar_spec

    def compile_grammar(self, request_type: Any, grammar_spec: str) -> NativeGrammar:
        assert "x" not in grammar_spec or self.may.wait(PATIENCE)
        return super().compile_grammar(request_type, grammar_spec)


def test_small_grammars_pass_large_ones(manager: StructuredOutputManager) -> None:
    """Not the large one, nor its twin, nor another one behind it is in the way; and one that
    no request waits for any more is not begun."""
    may = threading.Event()
    manager._backends["native"] = Slow(may)
    large = [begin(manager, f"large {n}", regex) for n, regex in enumerate(("x", "x", "xx", "xxx"))]
    small = [begin(manager, f"small {n}", "a" * (n + 1)) for n in range(3)]
    for request in small:
        future(request).result(PATIENCE)
        assert manager.is_ready(request)
    assert not any(map(manager.is_ready, large)) and not manager.failures()
    manager.request_freed(large[3])
    may.set()
    for request in large[:3]:
        future(request).result(PATIENCE)
    assert future(large[3]).cancelled() and not manager._compiling


def test_a_manager_that_is_closed_begins_nothing_more(manager: StructuredOutputManager) -> None:
    may = threading.Event()
    manager._backends["native"] = Slow(may)
    requests = [begin(manager, str(n), "x") for n in range(3)]
    manager.clear_backend()
    may.set()
    deadline = time.monotonic() + PATIENCE
    while not all(future(request).done() for request in requests):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert future(requests[1]).cancelled() and future(requests[2]).cancelled()


def begin(manager: StructuredOutputManager, request_id: str, regex: str) -> Request:
    """A request with a constraint, which is not waited for."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex=regex))
    request = Request(request_id, [1, 2], params, eos_token_id=EOS)
    manager.request_added(request)
    return request


def future(request: Request) -> Future[StructuredOutputGrammar]:
    constraint = request.structured_output_request
    assert constraint is not None and constraint.future is not None
    return constraint.future


def test_a_request_waits_only_if_it_has_a_constraint(manager: StructuredOutputManager) -> None:
    free, held = add(manager, "free", None), add(manager, "held", "ab")
    assert free.status == RequestStatus.WAITING and free.structured_output_request is None
    assert held.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    assert manager.is_ready(held) and not manager.is_ready(free) and manager.failures() == {}


def test_a_failed_compilation_belongs_to_its_request(manager: StructuredOutputManager) -> None:
    bad, good = add(manager, "bad", ".*a.{20}"), add(manager, "good", "a")
    manager.wait(PATIENCE)
    assert not manager.is_ready(bad) and manager.is_ready(good)
    assert "needs more than" in str(manager.failures()["bad"]) and "good" not in manager.failures()
    assert bad.structured_output_request.grammar is None
    manager.request_freed(bad)
    assert manager.failures() == {}


@pytest.mark.parametrize("grammar, message", [
    ('root ::= "\\uD800"', "cannot be satisfied: no text matches"),
    ('root ::= root "a" | "b"', None),
])  # fmt: skip
def test_only_left_recursion_is_left_to_the_library(grammar: str, message: str | None) -> None:
    """It would write a text for a grammar that has none."""
    pytest.importorskip("xgrammar")
    manager = StructuredOutputManager(StructuredOutputsConfig(), lambda: TokenTable(LETTERS), [EOS])
    params = SamplingParams(structured_outputs=StructuredOutputsParams(grammar=grammar))
    manager.request_added(Request("r", [1, 2], params, eos_token_id=EOS))
    manager.wait(PATIENCE)
    found = {name: str(why) for name, why in manager.failures().items()}
    assert found == ({} if message is None else {"r": f"grammar {message}"})


def test_equal_constraints_compile_once(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    compile_rules = __import__("mini_vllm.structured_output.native", fromlist=["x"]).compile_rules
    monkeypatch.setattr(
        "mini_vllm.structured_output.native.compile_rules",
        lambda *args, **kwargs: calls.append(1) or compile_rules(*args, **kwargs),
    )
    requests = [add(manager, str(number), "[a-c]{3}") for number in range(6)]
    grammars = [request.structured_output_request.future.result(PATIENCE) for request in requests]
    assert len(calls) == 1 and len({id(grammar) for grammar in grammars}) == 6


def test_rows_for_drafts_and_the_bonus(manager: StructuredOutputManager) -> None:
    a, b = add(manager, "a", "ab*c"), add(manager, "b", "xy")
    drafts = {"a": ids("ab")}
    rows = manager.grammar_bitmask({"a": a, "b": b}, ["b", "a"], drafts)
    assert [letters(row) for row in rows] == ["x", "a", "bc", "bc"]
    again = manager.grammar_bitmask({"a": a, "b": b}, ["b", "a"], drafts)
    assert np.array_equal(rows, again), "drafts are taken back"


def test_rows_behind_a_wrong_or_missing_draft_are_open(manager: StructuredOutputManager) -> None:
    a = add(manager, "a", "abc")
    for drafts, expected in [(ids("ax"), ["a", "b", "all"]), ([0, -1, 2], ["a", "b", "all", "all"]),
                             (ids("abc."), ["a", "b", "c", ".", "all"])]:  # fmt: skip
        rows = manager.grammar_bitmask({"a": a}, ["a"], {"a": drafts})
        assert [letters(row) for row in rows] == expected
    assert (
        manager.limit_drafts(a, ids("abx")) == ids("ab")
        and letters(manager.grammar_bitmask({"a": a}, ["a"], {})[0]) == "a"
    )


def test_tokens_advance_and_wrong_ones_end_the_request(manager: StructuredOutputManager) -> None:
    a = add(manager, "a", "abc")
    assert manager.tokens_accepted("a", ids("ab")) is None
    assert "does not allow" in str(manager.tokens_accepted("a", ids("x")))
    assert letters(manager.grammar_bitmask({"a": a}, ["a"], {})[0]) == "c"
    assert manager.tokens_accepted("unknown", [5]) is None
    manager.request_freed(a)
    assert manager.tokens_accepted("a", ids("c")) is None


def test_ends_against_other_rules(manager: StructuredOutputManager) -> None:
    free = add(manager, "a", "ab*", ignore_eos=True)
    manager.tokens_accepted("a", ids("a"))
    assert letters(manager.grammar_bitmask({"a": free}, ["a"], {})[0]) == "b", "the end is ignored"
    done = add(manager, "b", "ab", ignore_eos=True)
    assert manager.tokens_accepted("b", ids("ab")) == RequestStatus.FINISHED_STOPPED
    assert done.stop_reason == "grammar_end"
    short = add(manager, "c", "ab", min_tokens=9)
    short.output_token_ids = ids("ab")
    assert manager.tokens_accepted("c", ids("ab")) == RequestStatus.FINISHED_STOPPED
    own = add(manager, "d", "ab*", stop_token_ids=[1])
    own.output_token_ids = ids("a")
    manager.tokens_accepted("d", ids("a"))
    assert letters(manager.grammar_bitmask({"d": own}, ["d"], {})[0]) == "b.", "b stops, as text"


def test_requests_with_the_same_end_tokens_share_one_row(
    manager: StructuredOutputManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, filled = NativeGrammar.fill_bitmask, []

    def note(grammar: NativeGrammar, words: Any, index: int) -> None:
        filled.append(grammar.state)
        fill(grammar, words, index)

    monkeypatch.setattr(NativeGrammar, "fill_bitmask", note)
    options: dict[str, dict[str, Any]] = {"a": {}, "b": {}, "c": {"ignore_eos": True},
                                          "d": {"stop_token_ids": [1]}}  # fmt: skip
    requests = {name: add(manager, name, "ab*", **options[name]) for name in options}
    for name in requests:
        manager.tokens_accepted(name, ids("a"))
    for _ in range(2):
        rows = manager.grammar_bitmask(requests, list(requests), {})
        assert [letters(row) for row in rows] == ["b.", "b.", "b", "b."]
        assert len(filled) == 3, "two say the same"
        rows[:] = 0  # what is kept does not change


def test_a_full_table_of_kept_rows_begins_anew() -> None:
    rows, row = KeptRows(2), np.array([1], dtype=np.int32)
    for key in "abc":
        rows.keep(key, row)
    assert list(rows) == ["c"]


# ---------------------------------------------------------------- masks meet logits
def test_drawn_drafts_keep_the_first_illegal_one() -> None:
    config = StructuredOutputsConfig(backend="native")
    for drawn, kept in ((False, "ab"), (True, "abx")):
        manager = StructuredOutputManager(config, lambda: TokenTable(LETTERS), [EOS], drawn)
        request = add(manager, "r", "abc")
        assert manager.limit_drafts(request, ids("abxy")) == ids(kept)
        assert manager.limit_drafts(request, ids("abc")) == ids("abc")


@pytest.mark.parametrize("options", [{"ignore_eos": True}, {"min_tokens": 10}])
def test_nothing_is_said_behind_a_text_that_may_not_end(
    manager: StructuredOutputManager, options: dict[str, Any]
) -> None:
    request = add(manager, "r", "abc", **options)
    words = np.full((4, 1), -1, dtype=np.int32)
    manager.fill_rows(request, ids("abc"), words)
    assert [letters(row) for row in words] == ["a", "b", "c", "all"]
    plan: Any = SimpleNamespace(scheduled_spec_decode_tokens={"r": ids("abc")})
    result = ModelRunnerOutput(sampled_token_ids={"r": ids("abcz")})
    assert manager.step_done(plan, result) == set()
    assert result.sampled_token_ids["r"] == ids("abc")
    assert request.structured_output_request.grammar.num_processed_tokens == 0


def test_whose_mask_is_whose() -> None:
    masks = {"a": (0, 3), "b": (3, 1)}
    assert mask_rows(["b", "a", "c"], [1, 3, 1], masks) == ([0, 1, 2, 3], [3, 0, 1, 2])
    assert mask_rows(["c", "b"], [2, 1], masks) == ([2], [3])
    assert mask_rows(["c"], [1], masks) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_the_mask_on_a_cpu(dtype: torch.dtype, share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 77, generator=generator).to(dtype)
    logits[0, 0] = float("nan")
    words = torch.randint(-(2**31), 2**31, (2, 3), generator=generator, dtype=torch.int64)
    allowed = torch.rand(2, 77, generator=generator) < share
    for row in range(2):
        for word in range(3):
            bits = allowed[row, 32 * word : 32 * word + 32]
            value = sum(1 << i for i, bit in enumerate(bits.tolist()) if bit)
            words[row, word] = value - (1 << 32) if value >= 1 << 31 else value
    expected = logits.clone()
    expected[3] = torch.where(allowed[0], logits[3], -torch.inf)
    expected[1] = torch.where(allowed[1], logits[1], -torch.inf)
    apply_token_bitmask_inplace(logits, words.int(), indices=[3, 1])
    assert torch.equal(logits.nan_to_num(7), expected.nan_to_num(7))


def test_tokens_behind_the_last_word_are_forbidden() -> None:
    logits = torch.zeros(40)
    apply_token_bitmask_inplace(logits, torch.tensor([-1], dtype=torch.int32))
    assert logits[:32].eq(0).all() and logits[32:].eq(-torch.inf).all()


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="2 rows, for 2 of 3 rows"):
        apply_token_bitmask_inplace(torch.zeros(3, 4), torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"torch\.int64; it must be torch\.int32"):
        apply_token_bitmask_inplace(torch.zeros(1, 4), torch.zeros(1, 1, dtype=torch.int64))


def test_masks_travel_as_bytes() -> None:
    words = np.array([[1], [6]], dtype="<i4")
    masks = GrammarOutput({"b": (0, 1), "a": (1, 1)}, words.tobytes())
    logits = torch.zeros(3, 4)
    apply_grammar_bitmask(logits, masks, ["a", "free", "b"], [1, 1, 1])
    assert logits.eq(0).tolist() == [
        [False, True, True, False], [True] * 4, [True, False, False, False],
    ]  # fmt: skip


def test_a_backend_is_made_once_for_each_name() -> None:
    config = StructuredOutputsConfig(backend="auto")
    manager = StructuredOutputManager(config, lambda: TokenTable(LETTERS), [EOS])
    assert isinstance(manager.backend, NativeBackend) and manager.backend is manager.backend
    manager.clear_backend()


@pytest.mark.parametrize("backend", ["native", "xgrammar"])
def test_a_model_without_an_end_stops_where_the_grammar_does(backend: str) -> None:
    config = StructuredOutputsConfig(backend=backend)
    manager = StructuredOutputManager(config, lambda: TokenTable(LETTERS), [])
    add(manager, "r", "ab")
    assert manager.tokens_accepted("r", ids("a")) is None
    assert manager.tokens_accepted("r", ids("b")) == RequestStatus.FINISHED_STOPPED
