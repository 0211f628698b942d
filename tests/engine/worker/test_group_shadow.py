"""No layer reads what is not its request's; and the shadow memory notices when one would."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from mini_vllm.core.group_managers import GroupManager, StateManager, WindowManager
from mini_vllm.core.hybrid_kv_cache_manager import GroupSteps
from mini_vllm.worker.group_tables import View
from tests.engine.worker import group_shadow
from tests.engine.worker.group_shadow import ShadowError, run, traces


def test_every_read_finds_its_request() -> None:
    """In short; `python -m tests.engine.worker.group_shadow 100000` is the long form."""
    for trace in islice(traces(), 3):
        num_steps, num_reads = run(trace)
        assert num_steps > 100 and num_reads > 1000


@pytest.mark.slow
def test_every_read_finds_its_request_in_a_hundred_thousand_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group_shadow.main(100_000)
    assert capsys.readouterr().out.endswith(" 0 wrong\n")


def see_a_block_less(self: Any, spec: Any, *lengths: Any) -> None:
    if spec.kind == "sliding_window":
        spec = replace(spec, window=max(1, spec.window - spec.block_size))
    LOOK(self, spec, *lengths)


LOOK = View.__init__
MISTAKES: dict[str, tuple[type, str, Any, int]] = {
    "a window gives a token too many back": (
        WindowManager, "num_skipped_tokens", lambda self, n: max(0, n - self.spec.window + 2), 11,
    ),
    "layers see a block too little": (View, "__init__", see_a_block_less, 3),
    "states are not copied": (GroupSteps, "_copies", lambda self, states, plan: [], 0),
    "states go before they are copied": (StateManager, "num_skipped_tokens", lambda self, n: n, 0),
    "a twin finds a state that is not written": (StateManager, "publish", GroupManager.publish, 1),
    "groups find each other's blocks": (
        GroupManager, "key", lambda self, request, index, group: request.block_hashes[index], 0,
    ),
}  # fmt: skip
"""By name: the method with the mistake, and the trace that shows it."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, mistaken, number = MISTAKES[name]
    monkeypatch.setattr(owner, method, mistaken)
    with pytest.raises(ShadowError):
        run(next(islice(traces(), number, None)))
