"""What the docstrings promise beyond the sizes of random stories: dozens of images, long and wide
ones, and one that ends with the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

few = settings(max_examples=8)
FEATURES = "mini_vllm.mm_features:"
BOTH = r"\b3\b.*\b7\b|\b7\b.*\b3\b"
"""Both numbers, in either order."""


def image(p: Program, name: str, offset: int, length: int, mask: Any = None) -> Any:
    place = p.new(f"{FEATURES}PlaceholderRange", offset, length, mask)
    return p.new(f"{FEATURES}MultiModalFeatureSpec", None, "image", name, place)


def request(p: Program, images: Sequence[Any], length: int) -> Any:
    tokens = list(range(length))
    return p.new(
        "mini_vllm.request:Request", "ana", tokens, arrival_time=0.0, mm_features=list(images)
    )


def inputs(p: Program, size: int, **options: bool) -> Any:
    config = p.new("mini_vllm.config:SchedulerConfig", encoder_cache_size=size, **options)
    return p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)


def test_13_2_a_picture_that_was_named_is_what_it_was(subject: Any) -> None:
    """So it has the same name when it is asked for again, and so have its options."""
    p = Program()
    cat = p.call("PIL.Image:frombytes", "P", (6, 4), bytes(range(24)))
    cat.putpalette(list(range(256)) * 3)
    p.call("builtins:setattr", cat, "info", {"transparency": 5, "dpi": 72})
    options = p.call("builtins:dict", {"b": [2], "a": None})
    for _ in range(2):
        p.see([p.call("mini_vllm.multimodal.hasher:hash_image", cat, options)])
        p.see([cat.mode, cat.info, cat.tobytes(), cat.getpalette(), options])
    seen = subject.run(p)
    assert seen[:2] == seen[2:]
    assert seen[1][:3] == ["P", {"transparency": 5, "dpi": 72}, bytes(range(24))]
    assert seen[1][3:] == [list(range(256)) * 3, {"b": [2], "a": None}]


def test_13_2_options_that_json_does_not_know(subject: Any) -> None:
    """Numbers, paths and bytes of one type and another value; and equal ones, made anew."""
    p = Program()
    grey = p.call("PIL.Image:frombytes", "L", (6, 4), bytes(range(24)))
    for kind, texts in (("decimal:Decimal", ("1.5", "2.5", "1.5")),
                        ("pathlib:PurePosixPath", ("a/b", "a/c", "a/b")),
                        ("fractions:Fraction", ("1/3", "2/3", "1/3"))):  # fmt: skip
        for text in texts:
            options = {"how": [p.call(kind, text)]}
            p.see(p.call("mini_vllm.multimodal.hasher:hash_image", grey, options))
    names = subject.run(p)
    for first, other, same in (names[:3], names[3:6], names[6:]):
        assert first == same != other


def test_13_2_options_inside_options(subject: Any) -> None:
    """Keys are sorted at every depth."""
    p = Program()
    grey = p.call("PIL.Image:frombytes", "L", (6, 4), bytes(range(24)))
    for size in ({"height": 2, "width": 3}, {"width": 3, "height": 2}, {"width": 2, "height": 3}):
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", grey, {"size": size}))
    first, turned, other = subject.run(p)
    assert first == turned != other


def test_13_2_notes_of_a_file(subject: Any) -> None:
    """Resolution and comments are no part of the picture that the encoder sees."""
    p = Program()
    names = []
    for notes in ({}, {"dpi": 300}, {"comment": "b", "exif": "c"}):
        picture = p.call("PIL.Image:new", "RGB", (4, 3), 77)
        picture.info.update(notes)
        names.append(p.call("mini_vllm.multimodal.hasher:hash_image", picture, {"size": 1}))
    for name in names:
        p.see(name)
    assert len(set(subject.run(p))) == 1


def test_13_2_the_same_picture_in_two_files(subject: Any) -> None:
    """What the file is called and how it is written is no part of the picture either."""
    p = Program()
    folder = p.call("pathlib:Path", p.call("tempfile:mkdtemp"))
    picture = p.call("PIL.Image:frombytes", "RGB", (4, 2), bytes(range(24)))
    for file in ("a.png", "b.png", "c.bmp"):
        picture.save(folder.joinpath(file))
        opened = p.call("PIL.Image:open", folder.joinpath(file))
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", opened, {"size": 1}))
    p.see(p.call("mini_vllm.multimodal.hasher:hash_image", picture, {"size": 1}))
    assert len(set(subject.run(p))) == 1


@few
@given(lengths=st.lists(st.integers(1, 3), min_size=20, max_size=60))
def test_13_3_dozens_of_pictures(subject: Any, lengths: list[int]) -> None:
    """Each has its place, the last as well as the first."""
    p = Program()
    prompt = [token for _ in lengths for token in (7, 9)]
    made = p.call("mini_vllm.multimodal.processing:expand_placeholders", prompt, 9, lengths)
    p.see(made[0])
    p.see_each(made[1], "offset")
    p.see_each(made[1], "length")
    whole = [token for length in lengths for token in [7, *[9] * length]]
    offsets = [1 + index + sum(lengths[:index]) for index in range(len(lengths))]
    assert subject.run(p) == [whole, offsets, lengths]


@pytest.mark.parametrize("promised", [0, 5])
def test_13_5_a_whole_cache_is_room(subject: Any, promised: int) -> None:
    """All twelve rows are wanted, with what this call has chosen before or without: each of the
    twelve images goes, and each is named."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 12)
    for number in range(12):
        one = request(p, [image(p, f"p{number}", 0, 1)], 1)
        manager.allocate(one, 0)
        manager.free_encoder_input(one, 0)
    size = 12 - promised
    p.see(manager.can_allocate(request(p, [image(p, "new", 0, size)], size), 0, size, promised))
    p.see([manager.freed, manager.num_free_slots])
    assert subject.run(p) == [True, [[f"p{number}" for number in range(12)], 12]]


@few
@given(order=st.permutations(range(20)))
def test_13_4_twenty_in_the_order_of_their_leaving(subject: Any, order: list[int]) -> None:
    """The youngest is the last to be evicted, however many there are."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 40)
    names = [f"picture {number}" for number in range(20)]
    p.set(manager, "cached", {name: p.call("builtins:set", ["ana"]) for name in names})
    one = request(p, [image(p, name, 2 * n, 2) for n, name in enumerate(names)], 41)
    for index in order:
        manager.free_encoder_input(one, index)
    p.see(p.call("builtins:list", manager.freeable))
    assert subject.run(p) == [[names[index] for index in order]]


@few
@given(sizes=st.lists(st.integers(1, 1500), min_size=3, max_size=9), data=st.data())
def test_13_5_as_many_go_as_must(subject: Any, sizes: list[int], data: Any) -> None:
    """The oldest first, however large they are, until there is room; the others stay."""
    p, total = Program(), sum(sizes)
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", total)
    people = [request(p, [image(p, f"p{n}", 0, size)], size) for n, size in enumerate(sizes)]
    for one in people:
        manager.allocate(one, 0)
    order = data.draw(st.permutations(range(len(sizes))))
    for number in order:
        manager.free_encoder_input(people[number], 0)
    wanted = data.draw(st.integers(1, total))
    promised = data.draw(st.integers(0, total - wanted))
    new = request(p, [image(p, "new", 0, wanted)], wanted)
    p.see(manager.can_allocate(new, 0, wanted, promised))
    p.see([manager.freed, p.call("builtins:list", manager.freeable)])
    p.see([manager.num_free_slots, manager.num_freeable_slots])
    room, number = 0, 0
    while room < wanted + promised:
        room, number = room + sizes[order[number]], number + 1
    names = [f"p{index}" for index in order]
    assert subject.run(p) == [True, [names[:number], names[number:]], [room, total]]


@few
@given(rows=st.integers(1, 5), separators=st.integers(1, 4), data=st.data())
def test_13_6_the_end_of_a_picture_may_take_nothing(
    subject: Any, rows: int, separators: int, data: Any
) -> None:
    """Its rows are computed, and what is left of it are separators: it is not encoded again."""
    p, length = Program(), rows + separators
    mask = (True,) * rows + (False,) * separators
    computed = 1 + rows + data.draw(st.integers(0, separators - 1))
    new = data.draw(st.integers(1, 1 + length - computed + 3))
    one = request(p, [image(p, "cat", 1, length, mask)], 1 + length + 3)
    made = inputs(p, 20)._try_schedule_encoder_inputs(one, computed, new, 9)
    for part in range(3):
        p.see(made[part])
    assert subject.run(p) == [[], new, 9]


@few
@given(computed=st.integers(0, 9), length=st.integers(1, 6), cached=st.booleans())
def test_13_6_whole_or_not_in_this_step(
    subject: Any, computed: int, length: int, cached: bool
) -> None:
    """Where images must be whole a step may end with one, but not in one that it begins, be it
    cached or not."""
    p, end = Program(), 5 + length
    one = request(p, [image(p, "cat", 5, length)], 20)
    made = inputs(p, 20, disable_chunked_mm_input=True)
    if cached:
        p.set(made.manager, "cached", {"cat": p.call("builtins:set", ["ben"])})
    right = []
    for new in range(1, 20 - computed):
        step = made._try_schedule_encoder_inputs(one, computed, new, 9)
        p.see([step[0], step[1]])
        begins, ends = computed <= 5 < computed + new, end <= computed + new
        split = begins and not ends
        wanted = [] if cached or split or end <= computed or computed + new <= 5 else [0]
        right.append([wanted, 5 - computed if split else new])
    assert subject.run(p) == right


@few
@given(rows=st.integers(2, 9), behind=st.integers(1, 5), by_budget=st.booleans())
def test_13_6_nothing_behind_a_picture_that_waits(
    subject: Any, rows: int, behind: int, by_budget: bool
) -> None:
    """There is no budget for the first, or no room; the one behind it is small, and waits, too."""
    p, small = Program(), min(behind, rows - 1)
    one = request(p, [image(p, "dog", 2, rows), image(p, "owl", 12, small)], 20)
    budget, room = (rows - 1, 50) if by_budget else (50, rows - 1)
    made = inputs(p, room)._try_schedule_encoder_inputs(one, 0, 20, budget)
    for part in range(3):
        p.see(made[part])
    assert subject.run(p) == [[], 2, budget]


@few
@given(number=st.integers(5, 30))
def test_13_6_as_many_as_are_needed(subject: Any, number: int) -> None:
    """Budget and cache have room for all: all are encoded in one step."""
    p = Program()
    one = request(p, [image(p, f"p{n}", 3 * n + 1, 2) for n in range(number)], 3 * number + 1)
    made = inputs(p, 100)._try_schedule_encoder_inputs(one, 0, 3 * number, 70)
    for part in range(3):
        p.see(made[part])
    assert subject.run(p) == [list(range(number)), 3 * number, 70 - 2 * number]


@few
@given(number=st.integers(1, 30), behind=st.integers(0, 1))
def test_13_7_all_that_are_computed(subject: Any, number: int, behind: int) -> None:
    """Dozens of them, and the last may end with the prompt."""
    p = Program()
    encoder, length = inputs(p, 100), 3 * number + behind
    names = [f"p{n}" for n in range(number)]
    one = request(p, [image(p, name, 3 * n + 1, 2) for n, name in enumerate(names)], length)
    p.set(encoder.manager, "cached", {name: p.call("builtins:set", ["ana"]) for name in names})
    for computed in (length - 1 - behind, length):
        p.set(one, "num_computed_tokens", computed)
        encoder.free_computed(one)
        p.see(p.call("builtins:list", encoder.manager.freeable))
    assert subject.run(p) == [names[:-1], names]


@few
@given(computed=st.integers(0, 9), late=st.integers(0, 3))
def test_13_7_late_ones_do_not_count(subject: Any, computed: int, late: int) -> None:
    """Tokens that count as computed and come a step late still need their picture."""
    p = Program()
    encoder = inputs(p, 100)
    one = request(p, [image(p, "cat", 1, 2), image(p, "dog", 4, 3)], 9)
    p.set(encoder.manager, "cached", {n: p.call("builtins:set", ["ana"]) for n in ("cat", "dog")})
    p.set(one, "num_computed_tokens", computed)
    encoder.free_computed(one, late)
    p.see(p.call("builtins:list", encoder.manager.freeable))
    ends = (("cat", 3), ("dog", 7))
    assert subject.run(p) == [[name for name, end in ends if end <= computed - late]]


def test_13_9_only_what_is_needed_must_be_there(subject: Any) -> None:
    """Of three pictures the step takes the second; the others are not in the cache any more, or not
    yet. Its rows are whole numbers, larger than a float can hold."""
    p, large = Program(), 2**60
    images = [image(p, name, offset, 2) for name, offset in (("old", 0), ("cat", 4), ("new", 9))]
    cache = {"cat": p.call("torch:tensor", [[large + 1], [large + 3]])}
    made = p.call("mini_vllm.multimodal.gather:gather_mm_embeddings", [images], [2], [6], cache)
    p.see(p.call("torch:cat", made[0]).tolist())
    p.see(made[1].tolist())
    none = p.call("mini_vllm.multimodal.gather:gather_mm_embeddings", [images], [2], [2], {})
    p.see(p.call("builtins:len", none[0]))
    rows = [[large + 1], [large + 3]]
    assert subject.run(p) == [rows, [False, False, True, True, False, False], 0]


def test_13_3_a_refusal_has_both_numbers(subject: Any) -> None:
    """7 pictures for 3 places, and 3 for 7: a caller reads what to send."""
    p = Program()
    expand = p.name("mini_vllm.multimodal.processing:expand_placeholders")
    for places, pictures in ((3, 7), (7, 3)):
        p.refuse("ValueError", expand, [9] * places, 9, [2] * pictures, says=BOTH)
    assert subject.run(p) == []


def test_13_10_an_error_has_both_numbers(subject: Any) -> None:
    """7 rows for 3 places, and 3 for 7."""
    p = Program()
    merge = p.name("mini_vllm.multimodal.gather:merge_multimodal_embeddings")
    for places, rows in ((3, 7), (7, 3)):
        embeds, made = p.call("torch:zeros", 7, 5), p.call("torch:zeros", rows, 5)
        mask = p.call("torch:tensor", [index < places for index in range(7)])
        p.refuse("ValueError", merge, embeds, [made], mask, says=BOTH)
    assert subject.run(p) == []


def test_13_10_without_rows_it_is_a_copy(subject: Any) -> None:
    """A step without a picture: what the model writes to the result does not reach the given."""
    p = Program()
    embeds = p.call("torch:ones", 2, 3)
    merged = p.call(
        "mini_vllm.multimodal.gather:merge_multimodal_embeddings",
        embeds, [p.call("torch:zeros", 0, 6)], p.call("torch:tensor", [False, False]),
    )  # fmt: skip
    merged[0].zero_()
    p.see(embeds.tolist())
    p.see(merged[1].tolist())
    assert subject.run(p) == [[[1.0] * 3] * 2, [[[0.0] * 3] * 2]]


def test_13_10_twice_as_exact(subject: Any) -> None:
    """Embeddings and rows in float64: no bit is lost on the way, and nothing is read from masks
    but where they are True."""
    p = Program()
    double = p.name("torch:float64")
    embeds = p.call("torch:full", [4, 2], 0.1, dtype=double)
    rows = p.call("torch:full", [2, 4], 1 / 3, dtype=double)
    mask = p.call("torch:tensor", [False, True, True, False])
    merged = p.call("mini_vllm.multimodal.gather:merge_multimodal_embeddings", embeds, [rows], mask)
    for part in (merged[0], merged[1], embeds, mask):
        p.see(part.tolist())
    third = [[1 / 3] * 2] * 2
    whole, left = [[0.1] * 2, *third, [0.1] * 2], [[0.1] * 2] * 4
    levels = [[[0.0] * 2, *third, [0.0] * 2]]
    assert subject.run(p) == [whole, levels, left, [False, True, True, False]]


@few
@given(first=st.integers(1, 2000), scheduled=st.integers(1, 3000))
def test_13_9_a_long_picture(subject: Any, first: int, scheduled: int) -> None:
    """Thousands of rows, and chunks of thousands."""
    p, length = Program(), 3000
    cat = image(p, "cat", 1, length)
    cache = {"cat": p.call("torch:arange", length).unsqueeze(1)}
    made = p.call(
        "mini_vllm.multimodal.gather:gather_mm_embeddings", [[cat]], [first], [scheduled], cache
    )
    p.see(p.call("torch:cat", made[0]).flatten())
    p.see(made[1])
    rows, mask = subject.run(p)
    places = np.arange(first, first + scheduled) - 1
    inside = (places >= 0) & (places < length)
    assert np.array_equal(rows, places[inside])
    assert np.array_equal(mask, inside)


@few
@given(merge=st.integers(1, 3), height=st.integers(1, 3), width=st.integers(100, 300))
def test_13_11_a_wide_picture(subject: Any, merge: int, height: int, width: int) -> None:
    """A panorama has hundreds of columns."""
    for turned in (False, True):
        sides = (width * merge, height * merge) if turned else (height * merge, width * merge)
        p = Program()
        p.see(p.call("mini_vllm.model.qwen3_vl:patch_positions", *sides, merge))
        (seen,) = subject.run(p)
        row, column = np.indices(sides)
        blocks = (sides[0] // merge, merge, sides[1] // merge, merge)
        right = [x.reshape(blocks).swapaxes(1, 2).ravel() for x in (row, column)]
        assert np.array_equal(seen, np.stack(right, -1))


@few
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=3), seed=st.integers(0, 2**32 - 1)
)
def test_13_11_hundreds_of_patches(subject: Any, lengths: list[int], seed: int) -> None:
    """The first sees the last, and the scale is that of the head."""
    shape = (3, sum(lengths), 2, 16)
    q, k, v = np.random.default_rng(seed).standard_normal(shape)
    p = Program()
    drawn = p.call("numpy.random:default_rng", seed).standard_normal(shape)
    three = [p.call("torch:from_numpy", drawn[index]).float() for index in range(3)]
    p.see(p.call("mini_vllm.model.qwen3_vl:attend_within_pictures", *three, lengths))
    (seen,) = subject.run(p)
    expected, start = [], 0
    for length in lengths:
        part = np.s_[start : start + length]
        weights = np.exp(np.einsum("qhd,khd->hqk", q[part], k[part]) / 4)
        weights /= weights.sum(-1, keepdims=True)
        expected.append(np.einsum("hqk,khd->qhd", weights, v[part]))
        start += length
    assert np.allclose(seen, np.concatenate(expected), atol=1e-4)
