"""Change request 3: a request needs an image until its last place lets go."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ana_of(lab: Any) -> Any:
    """The cat at 3 and at 20, the dog between."""
    return lab.request("ana", lab.image(3, "cat"), lab.image(9, "dog"), lab.image(20, "cat"))


def test_change_3_the_second_place_keeps_it(lab: Any) -> None:
    """Both places of the cat are asked for; the first lets go, then the second."""
    ana, manager = ana_of(lab), lab.holding(20, free=("cat",))
    for place in (0, 2):
        expect(manager.check_and_update_cache(ana, place), True, at=f"place {place} asks")
    manager.free_encoder_input(ana, 0)
    expect(list(manager.freeable), [], at="place 0 has let go, place 2 has not")
    manager.free_encoder_input(ana, 2)
    expect(list(manager.freeable), ["cat"], at="both have let go")


def test_change_3_an_encoding_counts_as_asking(lab: Any) -> None:
    """Place 0 has the cat encoded, place 2 finds it."""
    ana, manager = ana_of(lab), lab.holding(20)
    manager.allocate(ana, 0)
    manager.check_and_update_cache(ana, 2)
    manager.free_encoder_input(ana, 2)
    expect(list(manager.freeable), [], at="place 2 has let go, place 0 has not")


def test_change_3_a_place_that_did_not_ask_keeps_nothing(lab: Any) -> None:
    """Only place 0 was asked for, as if the step ended before place 2."""
    ana, manager = ana_of(lab), lab.holding(20, free=("cat",))
    manager.check_and_update_cache(ana, 0)
    manager.free_encoder_input(ana, 0)
    expect(list(manager.freeable), ["cat"], at="place 2 never asked")


def test_change_3_free_lets_go_of_all(lab: Any) -> None:
    """The request ends."""
    ana, manager = ana_of(lab), lab.holding(20, free=("cat",))
    for place in (0, 2):
        manager.check_and_update_cache(ana, place)
    manager.free(ana)
    expect(list(manager.freeable), ["cat"], at="ana has ended")
