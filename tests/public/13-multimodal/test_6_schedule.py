"""13.6: which images to encode, and how far the step may compute."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ask(encoder: Any, request: Any, computed: int, new: int, budget: int = 20) -> Any:
    return encoder._try_schedule_encoder_inputs(request, computed, new, budget)


def ana(lab: Any) -> Any:
    """a cat at 2 .. 6, a dog at 10 .. 16"""
    return lab.request("ana", lab.image(2, "cat"), lab.image(10, "dog"))


def test_13_6_images_in_the_range_are_encoded(lab: Any) -> None:
    """Both images in the range are encoded, and the budget shrinks."""
    expect(ask(lab.encoder(), ana(lab), 0, 30), ([0, 1], 30, 10), at="tokens 0 .. 30")


def test_13_6_an_image_is_encoded_whole_for_a_part(lab: Any) -> None:
    """The range ends inside the dog, and the dog is encoded as a whole."""
    expect(ask(lab.encoder(), ana(lab), 0, 11), ([0, 1], 11, 10), at="tokens 0 .. 11")


def test_13_6_what_the_range_does_not_touch_waits(lab: Any) -> None:
    """Images before the range, behind it, and right at its edges wait."""
    expect(ask(lab.encoder(), ana(lab), 0, 2), ([], 2, 20), at="tokens 0 .. 2: the cat begins at 2")
    expect(ask(lab.encoder(), ana(lab), 6, 4), ([], 4, 20), at="tokens 6 .. 10: between the two")


def test_13_6_what_the_range_does_not_touch_is_not_asked_for(lab: Any) -> None:
    """An image that only touches the range, at its begin or end, is not needed."""
    for computed, new in ((0, 2), (6, 4)):
        encoder = lab.encoder()
        encoder.manager = lab.holding(20, free=("cat", "dog"))
        ask(encoder, ana(lab), computed, new)
        at = f"freeable after asking for tokens {computed} .. {computed + new}"
        expect(list(encoder.manager.freeable), ["cat", "dog"], at=at)


def test_13_6_a_cached_image_costs_nothing(lab: Any) -> None:
    """A cached image costs nothing, and the request needs it from now on."""
    encoder = lab.encoder()
    encoder.manager = lab.holding(20, free=("cat",))
    expect(ask(encoder, ana(lab), 0, 30), ([1], 30, 14), at="the cat is cached")
    expect(encoder.manager.cached["cat"], {"ana"}, at="who needs the cat")


def test_13_6_the_same_image_twice_is_encoded_once(lab: Any) -> None:
    """The same image in two places is encoded, and paid for, once."""
    twice = lab.request("ana", lab.image(2, "cat"), lab.image(10, "cat"))
    expect(ask(lab.encoder(), twice, 0, 30), ([0], 30, 16), at="a cat at 2 and at 10")


def test_13_6_without_budget_the_range_ends_before_the_image(lab: Any) -> None:
    """The cat fits, the dog does not."""
    expect(ask(lab.encoder(), ana(lab), 0, 30, 9), ([0], 10, 5), at="9 rows left to encode")


def test_13_6_behind_an_image_that_must_wait_nothing_is_encoded(lab: Any) -> None:
    """The dog does not fit, so the range ends before it. The owl behind it would fit, and waits."""
    two = lab.request("ana", lab.image(2, "dog"), lab.image(10, "owl"))
    expect(ask(lab.encoder(), two, 0, 30, 5), ([], 2, 5), at="5 rows left to encode")
    expect(ask(lab.encoder(size=5), two, 0, 30), ([], 2, 20), at="a cache of 5 rows")


def test_13_6_without_room_the_range_ends_before_the_image(lab: Any) -> None:
    """What this call has chosen needs room, too."""
    expect(ask(lab.encoder(size=9), ana(lab), 0, 30), ([0], 10, 16), at="a cache of 9 rows")


def test_13_6_inside_an_image_without_embeddings_nothing_can_be_computed(lab: Any) -> None:
    """After a prefix hit that ends there: 0, not a negative number."""
    encoder = lab.encoder(size=8)
    encoder.manager = lab.holding(8, "dog")
    expect(ask(encoder, ana(lab), 4, 20), ([], 0, 20), at="tokens 4 .. 24, no room for the cat")


def test_13_6_positions_without_embeddings_need_no_encoder(lab: Any) -> None:
    """A range that touches a separator only needs no encoder."""
    grid = lab.request("ana", lab.image(4, "grid", mask=(False, True, True)))
    expect(ask(lab.encoder(), grid, 0, 5), ([], 5, 20), at="tokens 0 .. 5: only the separator")
    expect(ask(lab.encoder(), grid, 0, 6), ([0], 6, 18), at="tokens 0 .. 6")


def test_13_6_an_image_stays_whole_where_that_is_wished(lab: Any) -> None:
    """With `disable_chunked_mm_input` a step ends before an image that does not fit it whole."""
    whole = lab.encoder(disable_chunked_mm_input=True)
    expect(ask(whole, ana(lab), 0, 12), ([0], 10, 16), at="tokens 0 .. 12 would split the dog")
    expect(ask(whole, ana(lab), 10, 3), ([], 0, 20), at="tokens 10 .. 13 begin with it")
    expect(ask(whole, ana(lab), 0, 16), ([0, 1], 16, 10), at="tokens 0 .. 16 end with it")
    whole.manager = lab.holding(20, "dog")
    expect(ask(whole, ana(lab), 6, 6), ([], 4, 20), at="tokens 6 .. 12, and the dog is cached")
    expect(ask(whole, ana(lab), 12, 2), ([], 2, 20), at="tokens 12 .. 14: it is split already")
