"""Change request 2: a request may have one picture encoded a step."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def plan(lab: Any, encoder: Any, request: Any, computed: int, new: int) -> Any:
    return encoder._try_schedule_encoder_inputs(request, computed, new, 20)


def test_change_2_the_second_ends_the_range(lab: Any) -> None:
    """cat at 3, dog at 9: up to the dog in this step, the rest in the next."""
    ana, encoder = lab.request("ana", lab.image(3, "cat"), lab.image(9, "dog")), lab.encoder()
    expect(plan(lab, encoder, ana, 0, 24), ([0], 9, 16), at="24 tokens from 0")
    encoder.manager.allocate(ana, 0)
    expect(plan(lab, encoder, ana, 9, 15), ([1], 15, 14), at="15 tokens from 9")


def test_change_2_what_is_cached_is_no_second(lab: Any) -> None:
    """A cat in the cache, a dog to encode, and the same dog again."""
    images = lab.image(3, "cat"), lab.image(9, "dog"), lab.image(20, "dog")
    ana, encoder = lab.request("ana", *images), lab.encoder()
    encoder.manager = lab.holding(20, "cat")
    expect(plan(lab, encoder, ana, 0, 30), ([1], 30, 14), at="the cat is cached")


def test_change_2_each_request_has_its_own(lab: Any) -> None:
    """The limit is a request's, not the step's."""
    encoder = lab.encoder()
    for name, picture in (("ana", "cat"), ("ben", "dog")):
        found = plan(lab, encoder, lab.request(name, lab.image(3, picture)), 0, 24)
        expect(found[:2], ([0], 24), at=f"{name}: one picture")
