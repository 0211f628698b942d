"""Task 00.4: which changes of status are allowed?"""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.request import Request, RequestStatus

WAITING, RUNNING = RequestStatus.WAITING, RequestStatus.RUNNING
PREEMPTED, STOPPED = RequestStatus.PREEMPTED, RequestStatus.FINISHED_STOPPED
BLOCKED = [status for status in RequestStatus if status.name.startswith("WAITING_FOR_")]
FINISHED = [status for status in RequestStatus if status.name.startswith("FINISHED_")]


def may(old: RequestStatus, new: RequestStatus, expected: bool) -> None:
    """Compare one arrow of the diagram."""
    expect(RequestStatus.can_become(old, new), expected, at=f"can_become({old}, {new})")


def test_00_4_the_waiting_for_statuses_are_blocked() -> None:
    """Blocked are the three WAITING_FOR statuses, and no other."""
    yours = [status.name for status in RequestStatus if RequestStatus.is_blocked(status)]
    expect(yours, [status.name for status in BLOCKED], at="every status that is_blocked accepts")
    expect(RequestStatus.is_blocked(WAITING), False, at="is_blocked(WAITING)")


def test_00_4_a_finished_request_never_changes() -> None:
    """No arrow leaves a finished status, not even to another finished one."""
    for new in (WAITING, RUNNING, PREEMPTED, *FINISHED):
        may(STOPPED, new, False)
    for old in FINISHED:
        may(old, RUNNING, False)


def test_00_4_every_unfinished_request_may_finish() -> None:
    """A client may hang up at any time, so every unfinished status may finish."""
    for old in (WAITING, RUNNING, PREEMPTED, *BLOCKED):
        for new in FINISHED:
            may(old, new, True)


def test_00_4_a_waiting_request_runs_or_blocks() -> None:
    """WAITING leads to RUNNING or to a blocked status; it holds no memory to be preempted of."""
    may(WAITING, RUNNING, True)
    for new in BLOCKED:
        may(WAITING, new, True)
    may(WAITING, PREEMPTED, False)
    may(WAITING, WAITING, False)


def test_00_4_a_running_request_is_preempted_or_goes_on() -> None:
    """RUNNING leads to PREEMPTED, never back to WAITING: it has been seen already."""
    may(RUNNING, PREEMPTED, True)
    for new in (WAITING, RUNNING, *BLOCKED):
        may(RUNNING, new, False)


def test_00_4_a_preempted_request_runs_again_or_blocks() -> None:
    """PREEMPTED leads back to RUNNING, or to a blocked status; only RUNNING leads to it.

    Blocked, since its keys and values may come from elsewhere.
    """
    may(PREEMPTED, RUNNING, True)
    for new in BLOCKED:
        may(PREEMPTED, new, True)
    for old in (WAITING, *BLOCKED):
        may(old, PREEMPTED, False)
    for new in (WAITING, PREEMPTED):
        may(PREEMPTED, new, False)


def test_00_4_a_blocked_request_must_wait_its_turn() -> None:
    """What a blocked request waited for has come: it is WAITING again, not RUNNING."""
    for old in BLOCKED:
        may(old, WAITING, True)
        for new in (RUNNING, PREEMPTED, *BLOCKED):
            may(old, new, False)


def go(request: Request, *path: RequestStatus) -> None:
    """Lead a request along some arrows, and look at its status after each."""
    for status in path:
        before = str(request.status)
        request.transition_to(status)
        expect(str(request.status), str(status), at=f"transition_to({status})", before=before)


def refused(request: Request, status: RequestStatus) -> bool:
    """Whether transition_to raises ValueError."""
    try:
        request.transition_to(status)
    except ValueError:
        return True
    return False


def test_00_4_a_whole_life(tea: Any) -> None:
    """transition_to follows the arrows: a request runs, and meets its end."""
    go(tea(), RUNNING, STOPPED)


def test_00_4_a_pause(tea: Any) -> None:
    """transition_to follows the arrows: a running request is preempted, and runs again."""
    request: Request = tea()
    request.status = RUNNING
    go(request, PREEMPTED, RUNNING)


def test_00_4_a_forbidden_change_is_refused(tea: Any) -> None:
    """transition_to raises ValueError where there is no arrow."""
    request: Request = tea()
    request.status = STOPPED
    at = "FINISHED_STOPPED -> RUNNING: does transition_to raise ValueError?"
    expect(refused(request, RUNNING), True, at=at)


def test_00_4_a_refusal_changes_nothing(tea: Any) -> None:
    """After a refusal the status is what it was."""
    request: Request = tea()
    request.status = STOPPED
    refused(request, RUNNING)
    at = "the status after transition_to(RUNNING) on a finished request"
    expect(str(request.status), "FINISHED_STOPPED", at=at)
