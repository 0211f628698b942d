"""Task 15.8: blocks that outlive their request."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.kv_transfer.remote_kv import TransferState, transfers_of_ended, transfers_over


def test_15_8_an_abort_does_not_end_a_transfer(lab: Any) -> None:
    """A request that was loading is still received."""
    state = TransferState({"ada", "ben"})
    expect(transfers_of_ended(state, lab.request("ada", 9), False), {"recv"}, at="ada loads")
    expect(state.loading, {"ben"}, at="she has ended, so she loads no longer")


def test_15_8_what_has_arrived_may_go(lab: Any) -> None:
    """No transfer writes into its blocks any more."""
    state = TransferState({"ada"}, {"ada"}, {"ada"})
    expect(transfers_of_ended(state, lab.request("ada", 9), False), set(), at="ada has arrived")
    expect(state, TransferState(), at="she leaves all sets")


def test_15_8_the_connector_may_keep(lab: Any) -> None:
    """Blocks that are to be sent stay; a request may do both."""
    expect(transfers_of_ended(TransferState(), lab.request("ada", 9), True), {"send"}, at="kept")
    state = TransferState({"ada"})
    both = transfers_of_ended(state, lab.request("ada", 9), True)
    expect(both, {"send", "recv"}, at="ada loads, and is kept")


def test_15_8_free_after_the_last(lab: Any) -> None:
    """Blocks go once, when the last transfer is over, in whatever order."""
    for first, second in (("recv", "send"), ("send", "recv")):
        ada = lab.request("ada", 9)
        state = TransferState(held={"ada": (ada, {"recv", "send"})})
        expect(transfers_over(state, {"ada"}, first), [], at=f"{first} is over, {second} is not")
        expect(transfers_over(state, {"ada"}, second), [ada], at="both are over")
        expect(transfers_over(state, {"ada"}, second), [], at="told once more")
        expect(state.held, {}, at="afterwards")


def test_15_8_a_waiting_request_has_arrived(lab: Any) -> None:
    """An unfinished request that has received has arrived; nothing of it is freed."""
    state = TransferState({"ada"})
    expect(transfers_over(state, {"ada"}, "recv"), [], at="ada waits for her KV")
    expect(state.arrived, {"ada"}, at="afterwards")


def test_15_8_reports_about_unknown_requests(lab: Any) -> None:
    """An id for which no request waits is ignored."""
    state = TransferState({"ada"})
    for kind in ("recv", "send"):
        expect(transfers_over(state, {"ghost"}, kind), [], at=f"{kind} of a ghost")
    expect(transfers_over(state, {"ada"}, "send"), [], at="sent, but ada only receives")
    expect(state, TransferState({"ada"}), at="nothing has changed")


def test_15_8_in_order_of_ids(lab: Any) -> None:
    """Several at once come in order of their ids: a set has none."""
    held = {name: (lab.request(name, 9), {"send"}) for name in ("cyd", "ada", "ben")}
    over = transfers_over(TransferState(held=held), {"cyd", "ben", "ada"}, "send")
    expect([request.request_id for request in over], ["ada", "ben", "cyd"], at="three at once")


def test_15_8_reports_come_in_any_iterable(lab: Any) -> None:
    """From an iterator, which can be read once."""
    state = TransferState({"ada"}, held={"ben": (lab.request("ben", 9), {"recv"})})
    over = transfers_over(state, iter(["ben", "ada"]), "recv")
    expect([request.request_id for request in over], ["ben"], at="iter(['ben', 'ada'])")
    expect(state.arrived, {"ada"}, at="afterwards")
