"""docs/map.md: its stops are on the route of a real request, and its packages are all there are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from labkit.course.root import ROOT
from labkit.quality import route
from labkit.quality.route import Call
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.input_processor import InputProcessor
from mini_vllm.engine.output_processor import OutputProcessor
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.sample.sampler import Sampler
from mini_vllm.worker.model_runner import ModelRunner

MAP = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
STOPS = re.findall(
    r"(?m)^\| (\d+) \| \[([\w/.]+)\]\(\.\./mini_vllm/\2\) \| `([\w.]+)` \| (.*) \|$", MAP
)


def test_the_twelve_stops_are_passed_in_their_order() -> None:
    calls = route.of_one_request()
    assert [number for number, *_ in STOPS] == [str(n) for n in range(1, 13)]
    first = [calls.index(Call(file, function)) for _, file, function, _ in STOPS]
    assert first == sorted(first)
    assert f"{len(set(calls))} functions" in route.show(calls)


def test_what_is_known_at_a_stop_is_what_the_run_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function's answer in the first step; the text is that of the last."""
    seen: dict[str, list[Any]] = {}

    def watch(owner: type, name: str, look: Callable[[Any, tuple[Any, ...]], object]) -> None:
        original = getattr(owner, name)

        def watched(self: Any, *args: Any, **options: Any) -> Any:
            answer = original(self, *args, **options)
            seen.setdefault(f"{owner.__name__}.{name}", []).append(look(answer, args))
            return answer

        monkeypatch.setattr(owner, name, watched)

    watch(InputProcessor, "process", lambda request, _: request.prompt_token_ids)
    watch(Scheduler, "schedule", lambda plan, _: plan.num_scheduled_tokens)
    watch(KVCacheManager, "allocate_slots", lambda blocks, _: [b.block_id for b in blocks.blocks])
    watch(
        ModelRunner,
        "_prepare_inputs",
        lambda inputs, _: (inputs.positions.tolist(), inputs.metadata.slot_mapping.tolist()),
    )
    watch(LlamaForCausalLM, "forward", lambda hidden, _: list(hidden.shape))
    watch(
        Sampler,
        "forward",
        lambda tokens, args: (list(args[0].shape), tokens.sampled_token_ids.tolist()),
    )
    watch(
        OutputProcessor,
        "process",
        lambda done, _: [(o.text, o.finish_reason) for out in done.finished for o in out.outputs],
    )
    route.of_one_request()
    [(text, reason)] = seen.pop("OutputProcessor.process")[-1]
    rows = {function: what for *_, function, what in STOPS}
    assert f'`"{text}"`' in rows["OutputProcessor.process"]
    assert f'`"{reason}"`' in rows["OutputProcessor.process"]
    for function, answers in seen.items():
        values = answers[0] if isinstance(answers[0], tuple) else (answers[0],)
        for value in values:
            assert f"`{value}`" in rows[function], function


def test_every_package_has_a_line_and_stands_on_its_floor() -> None:
    listed = re.findall(r"(?m)^\| `(\w+)` \|", MAP)
    packages = {path.parent.name for path in ROOT.glob("mini_vllm/*/__init__.py")}
    assert sorted(listed) == sorted(packages)
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [
        contract
        for contract in rules["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == ["mini_vllm"]
    ]
    floors = [name for layer in contract["layers"] for name in re.findall(r"\w+", layer)]
    assert listed[: len(floors)] == floors
