"""Task 08.9: the passes of a draft model."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def chain(lab: Any, token: int, length: int) -> list[int]:
    """What the toy says after `token`, and after that, and so on."""
    said = []
    for _ in range(length):
        token = lab.successor(token)
        said.append(token)
    return said


def test_08_9_each_draft_follows_the_one_before(lab: Any) -> None:
    """The toy says 3 t + 1 after t: the drafts are a chain from the newest token."""
    got = lab.draft([lab.request("a", [1, 2, 3, 4])], k=3)
    expect(got["drafts"], {"a": chain(lab, 4, 3)}, at="newest token 4, k = 3")


def test_08_9_k_drafts_take_k_passes(lab: Any) -> None:
    """One pass over what is new, and one for each further draft; the last draft is not fed."""
    got = lab.draft([lab.request("a", [1, 2, 3, 4])], k=3)
    fed = [[(token, position) for token, position, _ in tokens] for tokens in got["passes"]]
    first, second = chain(lab, 4, 2)
    expect(
        fed, [[(3, 2), (4, 3)], [(first, 4)], [(second, 5)]], at="(token, position) of each pass"
    )


def test_08_9_drafts_are_stored_in_the_requests_own_slots(lab: Any) -> None:
    """Block 7 holds positions 0 to 3, block 3 the next four."""
    got = lab.draft([lab.request("a", [1, 2, 3, 4], blocks=[7, 3])], k=3)
    slots = [[slot for _, _, slot in tokens] for tokens in got["passes"]]
    expect(slots, [[30, 31], [12], [13]], at="slots of each pass; block size 4")


def test_08_9_a_batch_goes_on_while_anyone_may(lab: Any) -> None:
    """'b' has slots for one draft, 'a' for three: later passes hold 'a' alone."""
    step = [lab.request("b", range(8), blocks=[5, 9]), lab.request("a", [1, 2, 3])]
    got = lab.draft(step, k=3)
    expected = {"b": chain(lab, 7, 1), "a": chain(lab, 3, 3)}
    expect(got["drafts"], expected, at="limits 1 and 3")
    expect([len(tokens) for tokens in got["passes"]], [4, 1, 1], at="tokens of each pass")


def test_08_9_all_requests_are_read_not_all_get_drafts(lab: Any) -> None:
    """A request inside its prompt takes part in the first pass, and gets no drafts."""
    step = [lab.request("chunk", range(9), computed=0, scheduled=5, sampled=0),
            lab.request("a", [1, 2, 3])]  # fmt: skip
    got = lab.draft(step, k=2)
    expect(got["drafts"], {"a": chain(lab, 3, 2)}, at="a chunk of a prompt, and a decode")
    expect([len(tokens) for tokens in got["passes"]], [7, 1], at="5 + 2 tokens, then one")


def test_08_9_rejected_drafts_do_not_shift_positions(lab: Any) -> None:
    """3 drafts were computed, none accepted: the next draft's place is counted from the text."""
    step = [lab.request("a", [1, 2, 3, 4], computed=2, scheduled=4, drafts=3, sampled=1)]
    got = lab.draft(step, k=2)
    fed = [[(token, position) for token, position, _ in tokens] for tokens in got["passes"]]
    expect(fed, [[(3, 2), (4, 3)], [(lab.successor(4), 4)]], at="(token, position) of each pass")


def test_08_9_one_draft_is_one_pass(lab: Any) -> None:
    """k = 1: nothing is fed after the first pass."""
    got = lab.draft([lab.request("a", [1, 2, 3])], k=1)
    expect([got["drafts"], len(got["passes"])], [{"a": chain(lab, 3, 1)}, 1], at="k = 1")


def test_08_9_no_request_fits_the_draft_models_positions(lab: Any) -> None:
    """All requests are beyond the draft model's positions: no pass, no drafts, no error."""
    got = lab.draft([lab.request("a", range(14))], k=2, max_model_len=10)
    expect([got["drafts"], got["passes"]], [{}, []], at="14 tokens, 10 positions")
