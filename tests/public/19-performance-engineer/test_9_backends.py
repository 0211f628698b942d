"""Task 19.9: which attention backend, and every reason why not another."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.attention import selector
from mini_vllm.attention.selector import get_attn_backend_cls, get_valid_backends, refusals

WIDE, GRAPHS = "float64 is too wide for it", "it has no graphs on toy"


def test_19_9_nothing_speaks_against_it(backends: Any) -> None:
    """Offered, registered, and it refuses nothing."""
    got = refusals("steady", backends.platform("quick", "steady"), backends.config)
    expect(got, [], at="steady, offered by the platform: reasons")


def test_19_9_a_backend_that_validates_nothing_does_any_work(backends: Any) -> None:
    """Plugins of older versions have no validate_configuration."""
    got = refusals("old", backends.platform("old"), backends.config)
    expect(got, [], at="old, without validate_configuration: reasons")


def test_19_9_every_reason_is_given(backends: Any) -> None:
    """Two of the backend's own, and before them that the platform does not offer it."""
    offered = refusals("quick", backends.platform("quick"), backends.config)
    expect(offered, [WIDE, GRAPHS], at="quick, offered: reasons")
    first, *others = refusals("quick", backends.platform("steady", "old"), backends.config)
    expect(others, [WIDE, GRAPHS], at="quick, not offered: the reasons behind the first")
    assert "steady" in first and "old" in first, f"the first reason names what is offered: {first}"


def test_19_9_what_is_not_there_is_a_reason(backends: Any) -> None:
    """A name that is not registered, and a class whose package is missing."""
    unknown = refusals("none", backends.platform("none"), backends.config)
    expect(len(unknown), 1, at="none, offered and in no table: how many reasons")
    (missing,) = refusals("gone", backends.platform("gone"), backends.config)
    assert "no_such_package" in missing, f"cannot be imported: {missing}"
    both = refusals("gone", backends.platform("old"), backends.config)
    expect(len(both), 2, at="gone, not offered and not there: how many reasons")
    both = refusals("none", backends.platform("old"), backends.config)
    expect(len(both), 2, at="none, not offered and not registered: how many reasons")


def test_19_9_the_platform_names_the_best_first(backends: Any) -> None:
    """Backends come in the platform's order, not the table's; the others with all their reasons."""
    platform = backends.platform("old", "quick", "steady")
    valid, refused = get_valid_backends(platform, backends.config)
    expect(valid, ["old", "steady"], at="old, quick, steady are offered: valid")
    expect(refused, {"quick": [WIDE, GRAPHS]}, at="old, quick, steady are offered: refused")


def test_19_9_only_what_is_offered_is_asked(backends: Any) -> None:
    """What the platform does not offer is neither valid nor refused."""
    valid, refused = get_valid_backends(backends.platform("steady"), backends.config)
    expect((valid, refused), (["steady"], {}), at="steady alone is offered: valid, refused")


def test_19_9_the_best_is_taken(backends: Any) -> None:
    """The first that nothing speaks against."""
    platform = backends.platform("quick", "gone", "steady", "old")
    got = get_attn_backend_cls(platform, None, backends.config)
    expect(got, backends.steady, at="quick and gone cannot, steady and old can: class")


def test_19_9_the_requested_backend_is_taken(backends: Any) -> None:
    """The backend that was asked for is taken, also where a better one is there."""
    got = get_attn_backend_cls(backends.platform("steady", "old"), "old", backends.config)
    expect(got, backends.old, at="old is asked for: class")


def test_19_9_what_was_asked_for_is_never_replaced(backends: Any) -> None:
    """An error that gives every reason, though another backend could do it."""
    with pytest.raises(ValueError, match="quick") as error:
        get_attn_backend_cls(backends.platform("steady"), "quick", backends.config)
    for reason in (WIDE, GRAPHS, "steady"):
        assert reason in str(error.value), f"the message lacks {reason!r}: {error.value}"


def test_19_9_an_unknown_name_is_told_with_those_that_are_known(backends: Any) -> None:
    """A slip of the pen is no reason of the platform's."""
    with pytest.raises(ValueError, match="stedy") as error:
        get_attn_backend_cls(backends.platform("steady"), "stedy", backends.config)
    for known in ("quick", "steady", "old"):
        assert known in str(error.value), f"name the known ones: {error.value}"


def test_19_9_where_none_can_all_reasons_of_all_are_given(backends: Any) -> None:
    """Two backends, three reasons."""
    with pytest.raises(ValueError, match="toy") as error:
        get_attn_backend_cls(backends.platform("quick", "gone"), None, backends.config)
    for reason in ("quick", WIDE, GRAPHS, "gone", "no_such_package"):
        assert reason in str(error.value), f"the message lacks {reason!r}: {error.value}"


def test_19_9_the_engines_own_backends() -> None:
    """On a CPU, with the engine's table: C++ before torch."""
    from mini_vllm.platforms.cpu import CpuPlatform

    got = get_attn_backend_cls(CpuPlatform(), "reference", selector.AttentionSelectorConfig())
    expect(got.__name__, "ReferenceAttention", at="reference on a CPU: class")
