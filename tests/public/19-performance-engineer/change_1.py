"""Change request 1: a library that does not load is a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.attention import selector
from mini_vllm.attention.selector import get_attn_backend_cls, get_valid_backends, refusals

SAID = "libfast.so: undefined symbol"


@pytest.fixture()
def fast(backends: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A backend whose package cannot be imported, registered beside those that are made up."""
    (tmp_path / "fast_kernels.py").write_text(f"raise OSError({SAID!r})\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    table = selector.BACKENDS | {"fast": "fast_kernels.Fast"}
    monkeypatch.setattr(selector, "BACKENDS", table)
    return backends


def test_change_1_it_is_a_reason(fast: Any) -> None:
    """With the type's name and the text; behind the platform's own reason."""
    got = refusals("fast", fast.platform("fast"), fast.config)
    expect(got, [f"OSError: {SAID}"], at="fast, offered: reasons")
    got = refusals("fast", fast.platform("steady"), fast.config)
    expect(got[1:], [f"OSError: {SAID}"], at="fast, not offered: the reasons behind the first")


def test_change_1_the_next_one_is_taken(fast: Any) -> None:
    """The platform's second backend can do the work."""
    platform = fast.platform("fast", "steady")
    valid, refused = get_valid_backends(platform, fast.config)
    expect((valid, refused), (["steady"], {"fast": [f"OSError: {SAID}"]}), at="fast, steady")
    assert get_attn_backend_cls(platform, None, fast.config) is fast.steady


def test_change_1_asked_for_by_name(fast: Any) -> None:
    """It is refused with the reason, and not replaced."""
    with pytest.raises(ValueError, match=f"fast.*OSError: {SAID}"):
        get_attn_backend_cls(fast.platform("fast", "steady"), "fast", fast.config)
