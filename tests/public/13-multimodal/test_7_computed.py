"""13.7: when an image is not needed any more."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def freed_after(lab: Any, computed: int, late: int = 0) -> list[str]:
    """What ana, with a cat at 2 .. 6 and a dog at 10 .. 16, no longer needs."""
    encoder = lab.encoder()
    encoder.manager = lab.holding(20, "cat", "dog")
    zoe = lab.request("zoe", lab.image(2, "cat"), lab.image(10, "dog"))
    zoe.num_computed_tokens = computed
    encoder.free_computed(zoe, late)
    return list(encoder.manager.freeable)


def test_13_7_not_while_a_part_is_missing(lab: Any) -> None:
    """An image is needed until its last position is computed."""
    expect(freed_after(lab, 5), [], at="5 tokens computed: one of the cat's is missing")


def test_13_7_done_with_its_last_position(lab: Any) -> None:
    """The position behind it may be the next."""
    expect(freed_after(lab, 6), ["cat"], at="6 tokens computed")
    expect(freed_after(lab, 15), ["cat"], at="15 tokens computed")
    expect(freed_after(lab, 16), ["cat", "dog"], at="16 tokens computed")


def test_13_7_late_tokens_are_not_computed_yet(lab: Any) -> None:
    """Of 6 tokens that count as computed the last comes a step late: the cat's last position."""
    expect(freed_after(lab, 6, late=1), [], at="6 tokens, 1 of them late")
    expect(freed_after(lab, 7, late=1), ["cat"], at="7 tokens, 1 of them late")
