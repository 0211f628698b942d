"""Recorded decisions of every policy; those of the V0 policies were made by vLLM 0.8.5."""

from __future__ import annotations

import pytest

from labkit.trace import v0_conformance, v0_oracle
from labkit.trace.conformance import POLICY_NAMES
from labkit.trace.diff import render
from labkit.trace.generate_v0 import PROFILES, generate_v0
from mini_vllm.policies import POLICIES


def test_every_policy_has_its_recording() -> None:
    assert set(POLICY_NAMES) == set(POLICIES) - {"vllm-v1"}
    assert {path.name.split(".")[0] for path in v0_conformance.FOLDER.iterdir()} == set(
        POLICY_NAMES
    )


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_policy_decides_as_recorded(policy: str) -> None:
    preempted = steps = 0
    for name, trace, lines in v0_conformance.golden(policy):
        difference = v0_conformance.differs(v0_conformance.replay_ours(policy, trace), lines)
        assert difference is None, f"{policy} {name}\n{render(difference, 'mini_vllm', 'recorded')}"
        preempted += sum(len(line["preempted"]) for line in lines)
        steps += len(lines)
    assert steps > 300 and (preempted > 15 or policy == "static"), (steps, preempted)


@pytest.mark.upstream
@pytest.mark.skipif(not v0_oracle.fetched(), reason="V0's files: labkit conformance --policy")
@pytest.mark.parametrize("policy", sorted(v0_conformance.V0_POLICIES))
def test_lockstep_with_release_0_8_5(policy: str) -> None:
    with v0_conformance.V0Oracle() as oracle:
        for profile in PROFILES:
            trace = generate_v0(profile, 77, v0_conformance.V0_POLICIES[policy], 60)
            theirs, error = oracle.replay(trace)
            ours = v0_conformance.replay_ours(policy, trace)
            assert error is None and v0_conformance.differs(ours, theirs) is None, profile


def test_a_changed_decision_is_seen() -> None:
    _, _, lines = next(v0_conformance.golden("vllm-v0"))
    changed = [*lines[:5], lines[5] | {"free_blocks": -1}, *lines[6:]]
    difference = v0_conformance.differs(changed, lines)
    assert difference is not None and difference.fields == ("free_blocks",)
