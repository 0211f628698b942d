"""Task 12.12: wait for a compiled grammar; masks for drafts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.testing import expect
from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.manager import StructuredOutputManager
from mini_vllm.structured_output.native import NativeGrammar
from mini_vllm.structured_output.request import StructuredOutputRequest
from mini_vllm.structured_output.token_index import TokenTable

OPEN = -1


class Diary(NativeGrammar):
    """A grammar for the words abc, whose masks name the next letter's place: 1, 2, 4, end 8."""

    def __init__(self, text: Sequence[int] = (0, 1, 2)) -> None:
        self.text, self.taken = list(text), 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if self.text[self.taken : self.taken + len(tokens)] != tokens:
            return False
        self.taken += len(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        num_legal = 0
        while tokens[num_legal : num_legal + 1] == self.text[self.taken + num_legal :][:1] != []:
            num_legal += 1
        return tokens[:num_legal]

    def rollback(self, num_tokens: int) -> None:
        self.taken -= num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        bitmask[batch_index] = 1 << self.taken

    def is_terminated(self) -> bool:
        return False


class Broken(Diary):
    """Its second mask cannot be filled."""

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        if self.taken:
            raise ValueError("no token can follow")
        super().fill_bitmask(bitmask, batch_index)


class Strict(Future):  # type: ignore[type-arg]
    """A compilation that notices when it is waited for."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "result() before done(): everybody would stand still"
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> Any:
        assert self.done(), "exception() before done(): everybody would stand still"
        return super().exception(timeout)


def manager() -> StructuredOutputManager:
    texts = [b"a", b"b", b"c", b""]
    return StructuredOutputManager(StructuredOutputsConfig(), lambda: TokenTable(texts), [3])


def request(grammar: Any = None, future: Any = None) -> Any:
    constraint = StructuredOutputRequest(
        StructuredOutputsParams(regex="abc"), future=future, _grammar=grammar
    )
    params = SimpleNamespace(ignore_eos=False, min_tokens=0)
    return SimpleNamespace(request_id="r", structured_output_request=constraint, stop_token_ids=(),
                           num_output_tokens=0, sampling_params=params)  # fmt: skip


def rows(grammar: Any, drafts: Sequence[int]) -> list[int]:
    words = np.full((len(drafts) + 1, 1), OPEN, dtype=np.int32)
    manager().fill_rows(request(grammar), list(drafts), words)
    return words[:, 0].tolist()


def test_12_12_not_yet_compiled_is_not_ready() -> None:
    """Asked without waiting."""
    expect(manager().is_ready(request(future=Strict())), False, at="a compilation that runs")


def test_12_12_compiled_is_ready() -> None:
    """Then the request may be scheduled."""
    future = Strict()
    future.set_result(Diary())
    expect(manager().is_ready(request(future=future)), True, at="a compilation that is done")


def test_12_12_a_failed_compilation_is_not_ready_and_raises_nothing() -> None:
    """Its exception belongs to its request; out of schedule() it would end the engine."""
    future = Strict()
    future.set_exception(ValueError("bad regex"))
    expect(manager().is_ready(request(future=future)), False, at="a compilation that has failed")


def test_12_12_a_cancelled_compilation_is_not_ready() -> None:
    """Its request was aborted."""
    future = Strict()
    future.cancel()
    expect(manager().is_ready(request(future=future)), False, at="a cancelled compilation")


def test_12_12_without_a_constraint_there_is_nothing_to_wait_for() -> None:
    """Not this extension's request: it never says ready."""
    free = SimpleNamespace(structured_output_request=None)
    expect(manager().is_ready(free), False, at="a request without a constraint")
    expect(manager().is_ready(request(future=None)), False, at="nothing was submitted yet")


def test_12_12_without_drafts_one_row() -> None:
    """What may come next."""
    expect(rows(Diary(), []), [1], at="no drafts")


def test_12_12_a_row_for_each_draft_and_one_for_the_bonus() -> None:
    """Drafts a, b: what may stand for a, what may follow a, what may follow ab."""
    expect(rows(Diary(), [0, 1]), [1, 2, 4], at="drafts a, b")


def test_12_12_everything_is_taken_back() -> None:
    """It is not known yet which drafts are kept."""
    grammar = Diary()
    expect(rows(grammar, [0, 1, 2]), [1, 2, 4, 8], at="drafts a, b, c")
    expect(grammar.taken, 0, at="tokens taken afterwards")


def test_12_12_behind_a_wrong_draft_rows_stay_open() -> None:
    """Drafts a, c, b: c is not legal, so what follows it does not matter."""
    grammar = Diary()
    expect(rows(grammar, [0, 2, 1]), [1, 2, OPEN, OPEN], at="drafts a, c, b")
    expect(grammar.taken, 0, at="tokens taken afterwards")


def test_12_12_behind_a_padding_draft_rows_stay_open() -> None:
    """-1 stands where a draft was taken out."""
    grammar = Diary()
    expect(rows(grammar, [0, -1, 1]), [1, 2, OPEN, OPEN], at="drafts a, -1, b")
    expect(grammar.taken, 0, at="tokens taken afterwards")


def test_12_12_a_mask_that_cannot_be_filled_ends_its_own_request() -> None:
    """The reason is kept for it, drafts are taken back, and nothing is raised."""
    m, grammar = manager(), Broken()
    m.fill_rows(request(grammar), [0, 1], np.full((3, 1), OPEN, dtype=np.int32))
    expect(m._broken, {"r": "no token can follow"}, at="reasons that are kept")
    expect(grammar.taken, 0, at="tokens taken afterwards")


def test_12_12_a_draft_may_come_twice() -> None:
    """The grammar lets a, a, b through: the second a is a draft like the first."""
    expect(rows(Diary([0, 0, 1]), [0, 0, 1]), [1, 2, 4, 8], at="drafts a, a, b of a, a, b")
