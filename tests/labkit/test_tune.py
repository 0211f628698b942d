"""`make tune`: settings for a promise, searched on the arena's clock or on the engine."""

from __future__ import annotations

import pytest

from benchmarks import tune
from benchmarks.tune import Settings


def test_the_arena_finds_settings_that_beat_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers everywhere, and every measurement is printed."""
    assert tune.main(["--arena", "--requests", "100"]) == 0
    said = capsys.readouterr().out
    assert "best of 11: max_num_batched_tokens=" in said and "of the promise is used up" in said
    lines = [line.split() for line in said.splitlines() if line.endswith("%")]
    assert [int(line[0]) for line in lines] == [12] * 11 + [24] * 6 + [48] * 3 + [96] * 2 + [100]
    assert "beside the default, 4 pairs in turns: 0." in said and said.rstrip().endswith("less")


def test_an_impossible_promise_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(["--arena", "--requests", "8", "--ttft-p99", "0.0001"]) == 1
    assert (
        "none: no configuration of 11 holds the promise. The nearest, " in capsys.readouterr().out
    )


def test_budgets_hold_a_token_for_each_request() -> None:
    found = tune.grid(cores=4)
    assert all(one.max_num_batched_tokens >= one.max_num_seqs for one in found)
    assert {one.num_threads for one in found} == {1, 2, 4} and len(set(found)) == len(found) == 33


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--rate 0", "--rate is 0; it must be a number above 0"),
        ("--ttft-p99 -1", "--ttft-p99 is -1; it must be a number above 0"),
        ("--ttft-p99 nan", "--ttft-p99 is nan; it must be a number above 0"),
        ("--tpot-p50 inf", "--tpot-p50 is inf; it must be a number above 0"),
        ("--requests 1", "--requests is 1; it must be at least 4"),
    ],
)
def test_what_cannot_be_asked_for(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tune.main(words.split())
    assert says in capsys.readouterr().err


def test_the_arena_has_a_rate_too() -> None:
    """Without one it is the story's own."""
    settings = Settings(256, 32, 1)
    own, calm, busy = (tune.measure_arena(rate=rate)(settings, 100) for rate in (None, 1.0, 1000.0))
    assert calm[0] <= own[0] < busy[0]


def test_the_engine_is_measured_from_when_requests_are_due() -> None:
    ttft, tpot = tune.measure_engine("storyteller", rate=50.0)(Settings(256, 8, 1), 4)
    assert 0 < tpot < ttft
