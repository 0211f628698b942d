"""Images, caches, ranges, grids and chunks: random ones beside the reference, and some by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.judge.collisions import crc_twins, md5_twins, weak_hashes_say_7
from labkit.process.worker import Program

many = settings(max_examples=15)
FEATURES = "mini_vllm.mm_features:"
NAMES = ("cat", "dog", "owl", "fox")
SIZES = dict(zip(NAMES, (4, 6, 3, 1), strict=True))
MASKS = st.lists(st.booleans(), min_size=1, max_size=8).filter(any)
PLACED = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(NAMES)), max_size=4)


def compare(subject: Any, reference: Any, p: Program) -> None:
    assert subject.run(p) == reference.run(p)


def placed(p: Program, gaps: list[tuple[int, str]], mask: bool = False) -> tuple[list[Any], int]:
    """Images in a row, each behind its gap, and the position behind the last. With a mask the
    first position of every "dog" takes no embedding."""
    images, end = [], 0
    for gap, name in gaps:
        size = SIZES[name]
        masked = tuple(i > 0 for i in range(size)) if mask and name == "dog" else None
        place = p.new(f"{FEATURES}PlaceholderRange", end + gap, size, masked)
        images.append(p.new(f"{FEATURES}MultiModalFeatureSpec", None, "image", name, place))
        end += gap + size
    return images, end


def request(p: Program, name: str, images: list[Any], length: int) -> Any:
    return p.new(
        "mini_vllm.request:Request",
        name,
        list(range(length)),
        arrival_time=0.0,
        mm_features=images,
    )


def see_manager(p: Program, manager: Any) -> None:
    p.see(manager.cached)
    p.see(p.call("builtins:list", manager.freeable.items()))
    p.see(manager.freed)
    p.see(manager.num_free_slots)
    p.see(manager.num_freeable_slots)


@many
@given(mask=st.one_of(st.none(), MASKS), data=st.data())
def test_13_1_any_part_of_any_span(
    subject: Any, reference: Any, mask: list[bool] | None, data: Any
) -> None:
    """Spans with and without a mask, and every part of them."""
    length = len(mask) if mask else 6
    p = Program()
    place = p.new(f"{FEATURES}PlaceholderRange", 3, length, tuple(mask) if mask else None)
    start = data.draw(st.integers(0, length))
    p.see(place.get_embeds_indices_in_range(start, data.draw(st.integers(start, length))))
    compare(subject, reference, p)


def test_13_1_asked_again(subject: Any) -> None:
    """The same span, in three steps: what is kept of it does not change. Of separators alone no
    row is taken."""
    p = Program()
    place = p.new(f"{FEATURES}PlaceholderRange", 3, 5, (False, True, False, True, True))
    for start, end in ((0, 2), (2, 4), (4, 5), (0, 5)):
        p.see(place.get_embeds_indices_in_range(start, end))
    p.see(place.get_num_embeds())
    separators = p.new(f"{FEATURES}PlaceholderRange", 3, 2, (False, False))
    p.see(separators.get_embeds_indices_in_range(0, 2))
    assert subject.run(p) == [(0, 1), (1, 2), (2, 3), (0, 3), 3, (0, 0)]


def picture(p: Program, mode: str, size: tuple[int, int], palette: int, see_through: int) -> Any:
    image = p.call("PIL.Image:frombytes", mode, size, bytes(range(24)))
    if mode == "P":
        image.putpalette([(index * 7 + palette) % 256 for index in range(768)])
        if see_through:
            p.call("builtins:setattr", image, "info", {"transparency": see_through})
    return image


@many
@given(data=st.data())
def test_13_2_names_differ_exactly_where_pictures_do(
    subject: Any, reference: Any, data: Any
) -> None:
    """Two pictures with the same bytes, of any mode, shape, palette, transparency and options."""
    kinds = [
        (
            data.draw(st.sampled_from(("L", "P"))),
            data.draw(st.sampled_from(((6, 4), (4, 6), (24, 1)))),
            data.draw(st.integers(0, 1)),
            data.draw(st.integers(0, 1)),
            data.draw(st.integers(0, 1)),
        )
        for _ in range(2)
    ]
    p = Program()
    for mode, size, palette, see_through, option in kinds:
        image = picture(p, mode, size, palette, see_through)
        options = {"b": [option], "a": "x"} if option else {"a": "x", "b": [0]}
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, options))
    first, second = subject.run(p)
    mine, theirs = reference.run(p)
    assert (first == second) == (mine == theirs)
    assert len(first) == 64 and set(first) <= set("0123456789abcdef")
    assert subject.run(p) == [first, second], "another call gives another name"


OPTIONS = (
    {}, {"": ""}, {"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"a": "None"}, {"a": 12},
    {"a": "12"}, {"a1": 2}, {"a": [1, 2]}, {"a": [12]}, {"a": ["1, 2"]}, {"a": "[1, 2]"},
    {"a": "1", "b": "2"}, {"a": "1b2"}, {"a": "1", "ab": "2"}, {"a": {"b": 1}}, {"a": {}, "b": 1},
)  # fmt: skip

PIXEL_BYTES = dict.fromkeys(("RGB", "HSV", "YCbCr", "LAB"), 3) | dict.fromkeys(("L", "P"), 1)
PIXEL_BYTES |= dict.fromkeys(("RGBA", "CMYK", "RGBX", "I", "F"), 4)
"""Bytes of a pixel."""


def test_13_2_parts_of_a_name_have_borders(subject: Any) -> None:
    """Sizes and options that look alike when they are joined without borders."""
    p = Program()
    for size in ((1, 11), (11, 1)):
        image = p.call("PIL.Image:frombytes", "L", size, bytes([1] * 11))
        for options in OPTIONS:
            p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, options))
    names = subject.run(p)
    assert len(set(names)) == 2 * len(OPTIONS)


JOINED = [
    ({"a": 1, "b": 2}, {f"a{equals}1{comma}b": 2})
    for equals in ("", "=", ":", ": ", " ", "|", "-", "_", "\0", "\n")
    for comma in ("", ",", ", ", "&", ";", " ", "|", "-", "_", "\0", "\n")
]
"""Two options, and one whose name is what the first of them looks like in a row."""


def test_13_2_no_sign_is_a_border(subject: Any) -> None:
    """A name of an option may hold whatever might stand between two of them."""
    p = Program()
    image = p.call("PIL.Image:frombytes", "L", (1, 1), b"x")
    asked = [JOINED[0][0], *(other for _, other in JOINED)]
    for options in asked:
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, options))
    assert len(set(subject.run(p))) == len(asked), "options are joined without borders"


def test_13_2_how_far_each_color_is_see_through(subject: Any) -> None:
    """A PNG may say it of every color of its palette: bytes, and not the number of one."""
    p = Program()
    for opacity in (b"\0\xff\xff", b"\xff\0\xff", b"\0\xff", b"\x80\xff\xff"):
        image = p.call("PIL.Image:frombytes", "P", (6, 4), bytes(range(24)))
        p.call("builtins:setattr", image, "info", {"transparency": opacity})
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {}))
    assert len(set(subject.run(p))) == 4


def test_13_2_what_counts_and_what_does_not(subject: Any) -> None:
    """One pixel, colors and mode give another name; options in another order do not."""
    p = Program()
    ask = "mini_vllm.multimodal.hasher:hash_image"
    first = picture(p, "P", (6, 4), 0, 0)
    changed = first.copy()
    changed.putpixel([5, 3], 99)
    others = [changed, picture(p, "P", (6, 4), 1, 0), picture(p, "L", (6, 4), 0, 0)]
    for image in (first, *others):
        p.see(p.call(ask, image, {"a": 1, "b": 2}))
    p.see(p.call(ask, first, {"b": 2, "a": 1}))
    *names, again = subject.run(p)
    assert len(set(names)) == 4
    assert again == names[0]


@many
@given(seed=st.integers(0, 2**32 - 1), mode=st.sampled_from(("L", "RGB", "RGBA", "LA")))
def test_13_2_every_byte_of_a_large_picture(subject: Any, seed: int, mode: str) -> None:
    """Any byte of a thousand pixels, see-through or not; asked twice, and about a copy."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, 40 * 25 * len(mode), dtype=np.uint8)
    place = int(rng.integers(len(data)))
    other = data.copy()
    other[place] ^= 1 << int(rng.integers(8))
    last = data.copy()
    last[-1] ^= 1
    p = Program()
    images = [p.call("PIL.Image:frombytes", mode, (40, 25), x.tobytes()) for x in (data, other)]
    images += [p.call("PIL.Image:frombytes", mode, (40, 25), last.tobytes()), images[0].copy()]
    for image in (*images, images[0]):
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {"a": 1}))
    images[0].putpixel((0, 0), images[0].getpixel((1, 1)))
    data[: len(mode)] = data[41 * len(mode) : 42 * len(mode)]
    p.see(p.call("mini_vllm.multimodal.hasher:hash_image", images[0], {"a": 1}))
    same = p.call("PIL.Image:frombytes", mode, (40, 25), data.tobytes())
    p.see(p.call("mini_vllm.multimodal.hasher:hash_image", same, {"a": 1}))
    first, second, third, copied, again, changed, equal = subject.run(p)
    assert first == copied == again and first not in (second, third), "by what is in it"
    assert changed == equal, "a picture that was changed is another one"


def test_13_2_no_checksum_stands_for_a_picture(subject: Any, seed: int) -> None:
    """Pixels of one CRC-32 or one MD5, options of one CRC-32, and any when `hash()` and all
    checksums say 7 to everything: two pictures have two names."""
    p = Program()
    ask = "mini_vllm.multimodal.hasher:hash_image"
    texts = crc_twins(seed)
    grey = p.call("PIL.Image:frombytes", "L", (1, 1), b"x")
    with weak_hashes_say_7(p):
        for pixels in (*texts, *md5_twins()):
            image = p.call("PIL.Image:frombytes", "L", (4, len(pixels) // 4), pixels)
            p.see(p.call(ask, image, {}))
        for text in (*texts, b"x", b"y"):
            p.see(p.call(ask, grey, {"a": text.decode()}))
            p.see(p.call(ask, grey, {text.decode(): "a"}))
    assert len(set(subject.run(p))) == 12, "what tells pictures apart is hash(), a checksum or MD5"


@pytest.mark.parametrize("place", [0, 1000, 70_000, -1])
def test_13_2_large_pictures_count_whole(subject: Any, place: int) -> None:
    """One pixel of 90,000, wherever it is."""
    p = Program()
    pixels = bytearray(range(250)) * 360
    for _ in range(2):
        image = p.call("PIL.Image:frombytes", "L", (300, 300), bytes(pixels))
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {}))
        pixels[place] ^= 1
    one, other = subject.run(p)
    assert one != other, "a part of the pixels is left out"


@pytest.mark.parametrize(
    "modes",
    [("L", "P"), ("RGB", "HSV", "YCbCr", "LAB"), ("RGBA", "CMYK", "RGBX", "I", "F")],
    ids=lambda modes: modes[0],
)
def test_13_2_the_same_bytes_of_other_modes(subject: Any, modes: tuple[str, ...]) -> None:
    """What the bytes mean is a part of the picture: red, hue or yellow."""
    p = Program()
    for mode in modes:
        image = p.call("PIL.Image:frombytes", mode, (2, 2), bytes(16)[: 4 * PIXEL_BYTES[mode]])
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {}))
    assert len(set(subject.run(p))) == len(modes), "the mode is left out"


def test_13_2_every_option_counts(subject: Any) -> None:
    """Of twelve, any may be the one that differs."""
    p = Program()
    image = p.call("PIL.Image:frombytes", "L", (1, 1), b"x")
    for other in (*range(12), None):
        options = {f"option {index}": index == other for index in range(12)}
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, options))
    assert len(set(subject.run(p))) == 13, "some options are left out"


def test_13_2_any_color_of_the_palette(subject: Any) -> None:
    """The last of 256 colors counts as well as the first."""
    p = Program()
    for place in (None, 0, 100, 767):
        image = p.call("PIL.Image:frombytes", "P", (6, 4), bytes(range(24)))
        palette = [index % 251 for index in range(768)]
        if place is not None:
            palette[place] += 1
        image.putpalette(palette)
        p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {}))
    assert len(set(subject.run(p))) == 4


def test_13_2_which_color_is_see_through(subject: Any) -> None:
    """None, the first, the second: three pictures, of a palette or in grey."""
    p = Program()
    for mode in ("P", "L"):
        for color in (None, 0, 1):
            image = p.call("PIL.Image:frombytes", mode, (6, 4), bytes(range(24)))
            if color is not None:
                p.call("builtins:setattr", image, "info", {"transparency": color})
            p.see(p.call("mini_vllm.multimodal.hasher:hash_image", image, {}))
    assert len(set(subject.run(p))) == 6


@many
@example(prompt=[7, 9, 8], sizes=[1] * 8, more=0)
@given(
    prompt=st.lists(st.integers(7, 9), max_size=8),
    sizes=st.lists(st.integers(1, 4), min_size=8, max_size=8),
    more=st.sampled_from((0, 0, 0, 1, -1)),
)
def test_13_3_any_prompt(
    subject: Any, reference: Any, prompt: list[int], sizes: list[int], more: int
) -> None:
    """Prompts full of placeholders; too many pictures, too few."""
    lengths = sizes[: max(prompt.count(9) + more, 0)]
    p = Program()
    made = p.call("mini_vllm.multimodal.processing:expand_placeholders", prompt, 9, lengths)
    p.see(made[0])
    p.see_each(made[1], "offset")
    p.see_each(made[1], "length")
    compare(subject, reference, p)


def test_13_3_both_lists_stay_the_callers(subject: Any) -> None:
    """What was passed is the same afterwards, and what came back is a list of its own."""
    p = Program()
    expand = "mini_vllm.multimodal.processing:expand_placeholders"
    prompt, lengths = (p.call("builtins:list", values) for values in ([7, 9, 9, 8], [2, 3]))
    made = p.call(expand, prompt, 9, lengths)
    text = p.call("builtins:list", [7, 8])
    p.call(expand, text, 9, [])[0].append(1)
    for seen in (made[0], prompt, lengths, text):
        p.see(seen)
    p.see_each(made[1], "offset")
    assert subject.run(p) == [[7, 9, 9, 9, 9, 9, 8], [7, 9, 9, 8], [2, 3], [7, 8], [1, 3]]


def with_separator(p: Program) -> Any:
    """A request with a dog of 6 positions and 5 rows at 2 .. 8."""
    images, _ = placed(p, [(2, "dog")], mask=True)
    return request(p, "ana", images, 20)


def test_13_4_rows_come_back_and_not_positions(subject: Any) -> None:
    """A separator never had a row."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 9)
    p.set(manager, "cached", {"dog": p.call("builtins:set", ["ana"])})
    p.set(manager, "num_free_slots", 4)
    p.set(manager, "num_freeable_slots", 4)
    manager.free_encoder_input(with_separator(p), 0)
    p.see(p.call("builtins:dict", manager.freeable))
    p.see(manager.num_freeable_slots)
    assert subject.run(p) == [{"dog": 5}, 9]


def test_13_4_a_hit_takes_rows_and_not_positions(subject: Any) -> None:
    """What an unneeded image has freed, it takes again."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 9)
    p.set(manager, "cached", {"dog": p.call("builtins:set")})
    manager.freeable.update({"dog": 5})
    p.set(manager, "num_free_slots", 4)
    p.see(manager.check_and_update_cache(with_separator(p), 0))
    p.see([p.call("builtins:dict", manager.freeable), manager.num_freeable_slots])
    assert subject.run(p) == [True, [{}, 4]]


def test_13_4_the_last_to_be_freed_is_the_youngest(subject: Any) -> None:
    """Four images, in another order than they were cached in; one of them is needed once more."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 14)
    p.set(manager, "cached", {name: p.call("builtins:set", ["ana"]) for name in NAMES})
    p.set(manager, "num_free_slots", 0)
    p.set(manager, "num_freeable_slots", 0)
    images, end = placed(p, [(0, name) for name in NAMES])
    one = request(p, "ana", images, end)
    for index in (2, 0, 3, 1):
        manager.free_encoder_input(one, index)
    manager.check_and_update_cache(one, 0)
    manager.free_encoder_input(one, 0)
    p.see(p.call("builtins:list", manager.freeable))
    assert subject.run(p) == [["owl", "fox", "dog", "cat"]]


def test_13_4_requests_and_images_by_their_whole_names(subject: Any) -> None:
    """Names that begin alike, or differ in their case, while `hash()` says 7: one picture is
    cached of three, and is free when both requests that need it have freed it."""
    req_id, what = "chatcmpl-0123456789abcdef-1", "0123456789abcdef" * 4
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 9)
    p.set(manager, "cached", {what: p.call("builtins:set")})
    manager.freeable.update({what: 4})
    requests = []
    for name in (req_id, req_id + "0"):
        images = []
        for identifier in (what, what.upper(), what[:-1] + "0"):
            place = p.new(f"{FEATURES}PlaceholderRange", 5 * len(images), 4, None)
            images.append(
                p.new(f"{FEATURES}MultiModalFeatureSpec", None, "image", identifier, place)
            )
        requests.append(request(p, name, images, 20))
    with weak_hashes_say_7(p):
        for each in requests:
            p.see([manager.check_and_update_cache(each, index) for index in range(3)])
        for each in requests:
            manager.free_encoder_input(each, 0)
            p.see(p.call("builtins:list", manager.freeable))
    assert subject.run(p) == [[True, False, False]] * 2 + [[], [what]]


def test_13_4_twenty_may_need_one_picture(subject: Any) -> None:
    """It is free when the last of them has freed it."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 9)
    p.set(manager, "cached", {"cat": p.call("builtins:set")})
    manager.freeable.update({"cat": 4})
    requests = [request(p, f"r{number}", placed(p, [(0, "cat")])[0], 4) for number in range(20)]
    for each in requests:
        manager.check_and_update_cache(each, 0)
    for each in requests:
        manager.free_encoder_input(each, 0)
        p.see(p.call("builtins:len", manager.freeable))
    assert subject.run(p) == [0] * 19 + [1]


@many
@given(
    size=st.integers(6, 14),
    moves=st.lists(
        st.tuples(st.sampled_from("afr"), st.integers(0, 2), st.integers(0, 1)),
        min_size=5,
        max_size=30,
    ),
)
def test_13_4_any_order_of_needing(
    subject: Any, reference: Any, size: int, moves: list[tuple[str, int, int]]
) -> None:
    """Requests that share images need them, free them, and need them again."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", size)
    requests = []
    for number in range(3):
        pair = [(0, NAMES[number]), (1, NAMES[(number + 1) % 3])]
        images, end = placed(p, pair)
        requests.append(request(p, f"r{number}", images, end))
    p.set(manager, "cached", {"cat": p.call("builtins:set"), "dog": p.call("builtins:set", ["x"])})
    manager.freeable.update({"cat": 4})
    p.set(manager, "num_freeable_slots", size - 6)
    for kind, number, index in moves:
        if kind == "a":
            p.see(manager.check_and_update_cache(requests[number], index))
        elif kind == "f":
            manager.free_encoder_input(requests[number], index)
        else:
            manager.free(requests[number])
        see_manager(p, manager)
    compare(subject, reference, p)


@many
@given(
    size=st.integers(6, 16),
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(0, 4), st.booleans()),
        min_size=3,
        max_size=16,
    ),
)
def test_13_5_any_order_of_arrival(
    subject: Any, reference: Any, size: int, moves: list[tuple[int, int, int, bool]]
) -> None:
    """Images come, find room or do not, and push others out."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", size)
    yours = reference_room(size, moves)
    requests = {}
    for name in NAMES:
        images, end = placed(p, [(0, name)])
        requests[name] = request(p, f"r-{name}", images, end)
    for (number, budget, promised, stays), fits in zip(moves, yours, strict=True):
        name = NAMES[number]
        if fits is None:  # it is there
            p.see(manager.check_and_update_cache(requests[name], 0))
        else:
            p.see(manager.can_allocate(requests[name], 0, budget, promised))
            if fits:
                manager.allocate(requests[name], 0)
        if not stays:
            manager.free_encoder_input(requests[name], 0)
        see_manager(p, manager)
    compare(subject, reference, p)


@pytest.mark.parametrize("idle", [["owl"], ["fox"], ["owl", "fox"], ["dog"], ["fox", "dog", "owl"]])
def test_13_5_a_request_without_room_evicts_no_image(subject: Any, idle: list[str]) -> None:
    """The cache is full of images that no request needs. All their rows together are one too
    few, so all of them stay, in their order."""
    p = Program()
    size = sum(SIZES[name] for name in idle)
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", size)
    for name in idle:
        images, end = placed(p, [(0, name)])
        other = request(p, f"r-{name}", images, end)
        manager.allocate(other, 0)
        manager.free_encoder_input(other, 0)
    images, end = placed(p, [(0, "cat")])
    promised = max(size + 1 - SIZES["cat"], 0)
    p.see(manager.can_allocate(request(p, "r-cat", images, end), 0, 99, promised))
    p.see(p.call("builtins:list", manager.freeable))
    p.see(p.call("builtins:list", manager.cached))
    p.see(manager.freed)
    assert subject.run(p) == [False, idle, idle, []]


@pytest.mark.parametrize(("budget", "promised"), [(3, 0), (0, 0), (3, 2)])
def test_13_5_beyond_the_budget_no_image_is_evicted(
    subject: Any, budget: int, promised: int
) -> None:
    """There would be room for the cat, if the owl went; but the step has too few rows left."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 7)
    for name in ("owl", "fox"):
        images, end = placed(p, [(0, name)])
        other = request(p, f"r-{name}", images, end)
        manager.allocate(other, 0)
        manager.free_encoder_input(other, 0)
    images, end = placed(p, [(0, "cat")])
    p.see(manager.can_allocate(request(p, "r-cat", images, end), 0, budget, promised))
    see_manager(p, manager)
    kept = [("owl", 3), ("fox", 1)]
    assert subject.run(p) == [False, {"owl": set(), "fox": set()}, kept, [], 3, 7]


def test_13_5_rows_are_reserved_and_not_positions(subject: Any) -> None:
    """A separator takes no row."""
    p = Program()
    manager = p.new("mini_vllm.core.encoder_cache_manager:EncoderCacheManager", 9)
    manager.allocate(with_separator(p), 0)
    p.see(manager.num_free_slots)
    p.see(manager.num_freeable_slots)
    assert subject.run(p) == [4, 4]


def reference_room(size: int, moves: list[tuple[int, int, int, bool]]) -> list[bool | None]:
    """Brute force: whether each image that comes finds room; None: it is there already."""
    held: dict[str, bool] = {}  # needed?
    order: list[str] = []
    found: list[bool | None] = []
    for number, budget, promised, stays in moves:
        name = NAMES[number]
        if name in held:
            found.append(None)
            held[name] = True
            order = [other for other in order if other != name]
        else:
            needed = SIZES[name] + promised
            room = size - sum(SIZES[other] for other, is_needed in held.items() if is_needed)
            fits = SIZES[name] <= budget and needed <= room
            while fits and needed > size - sum(SIZES[other] for other in held):
                del held[order.pop(0)]
            if fits:
                held[name] = True
            found.append(fits)
        if not stays and held.get(name):
            held[name] = False
            order.append(name)
    return found


@many
@given(gaps=PLACED, mask=st.booleans(), whole=st.booleans(), data=st.data())
def test_13_6_any_range(
    subject: Any,
    reference: Any,
    gaps: list[tuple[int, str]],
    mask: bool,
    whole: bool,
    data: Any,
) -> None:
    """Any images, any range, any budget; some cached, some equal, whole or in chunks."""
    p = Program()
    size, budget = data.draw(st.integers(6, 16)), data.draw(st.integers(0, 16))
    config = p.new(
        "mini_vllm.config:SchedulerConfig",
        encoder_cache_size=size,
        max_num_encoder_input_tokens=6,
        disable_chunked_mm_input=whole,
    )
    encoder = p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)
    cached = data.draw(st.sampled_from(("", "cat", "owl")))
    if cached:
        p.set(encoder.manager, "cached", {cached: p.call("builtins:set")})
        encoder.manager.freeable.update({cached: SIZES[cached]})
        p.set(encoder.manager, "num_free_slots", size - SIZES[cached])
    images, end = placed(p, gaps, mask)
    one = request(p, "ana", images, end + 3)
    computed = data.draw(st.integers(0, end + 2))
    new = data.draw(st.integers(1, end + 3 - computed))
    p.see(encoder._try_schedule_encoder_inputs(one, computed, new, budget))
    p.see([encoder.planned, encoder.budget])  # it gets its blocks later, or does not
    see_manager(p, encoder.manager)
    compare(subject, reference, p)


@pytest.mark.parametrize(
    ("gaps", "asked", "setting", "expected"),
    [
        pytest.param([(1, "dog")], (0, 4, 20), {}, ([0], 4, 14), id="whole-for-a-part"),
        pytest.param([(2, "cat")], (0, 9, 3), {}, ([], 2, 3), id="the-text-before-it"),
        pytest.param([(2, "cat")], (4, 5, 3), {}, ([], 0, 3), id="inside-of-it"),
        pytest.param([(1, "owl"), (2, "owl")], (0, 9, 9), {}, ([0], 9, 6), id="twice"),
        pytest.param([(3, "owl")], (0, 3, 9), {"cached": "owl"}, ([], 3, 9), id="right-behind"),
        pytest.param([(0, "owl")], (3, 2, 9), {"cached": "owl"}, ([], 2, 9), id="right-before"),
        pytest.param([(2, "dog")], (0, 3, 9), {"mask": True}, ([], 3, 9), id="a-separator"),
        pytest.param([(2, "dog")], (0, 3, 2), {"mask": True}, ([], 2, 2), id="a-separator-in-vain"),
        pytest.param([(0, "dog"), (0, "cat")], (0, 10, 20), {"size": 9}, ([0], 6, 14), id="room"),
        pytest.param(
            [(2, "dog")], (0, 5, 9), {"cached": "dog", "whole": True}, ([], 2, 9), id="cached-whole"
        ),
        pytest.param([(2, "dog")], (2, 3, 9), {"whole": True}, ([], 0, 9), id="begins-with-it"),
    ],
)
def test_13_6_each_rule(
    subject: Any,
    gaps: list[tuple[int, str]],
    asked: tuple[int, int, int],
    setting: dict[str, Any],
    expected: tuple[list[int], int, int],
) -> None:
    """One rule at a time; an image that is not touched is not needed."""
    p = Program()
    config = p.new(
        "mini_vllm.config:SchedulerConfig",
        encoder_cache_size=setting.get("size", 20),
        disable_chunked_mm_input=setting.get("whole", False),
    )
    encoder = p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)
    free = {}
    if cached := setting.get("cached"):
        free = {cached: SIZES[cached]}
        p.set(encoder.manager, "cached", {cached: p.call("builtins:set")})
        encoder.manager.freeable.update(free)
        p.set(encoder.manager, "num_free_slots", 20 - SIZES[cached])
    images, end = placed(p, gaps, setting.get("mask", False))
    made = encoder._try_schedule_encoder_inputs(request(p, "ana", images, end + 3), *asked)
    for value in (0, 1, 2):
        p.see(made[value])
    p.see(p.call("builtins:dict", encoder.manager.freeable))
    assert subject.run(p) == [*expected, free]


def test_13_6_rows_are_promised_and_not_positions(subject: Any) -> None:
    """Rows for both: the dog has 5, the cat 4, and the cache 9."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", encoder_cache_size=9)
    encoder = p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)
    images, end = placed(p, [(2, "dog"), (0, "cat")], mask=True)
    one = request(p, "ana", images, end + 3)
    for value in (0, 1, 2):
        p.see(encoder._try_schedule_encoder_inputs(one, 0, end + 3, 20)[value])
    assert subject.run(p) == [[0, 1], 15, 11]


def test_13_7_separators_are_positions_too(subject: Any) -> None:
    """The dog lies at 2 .. 8; it is needed until all of it is computed."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", encoder_cache_size=64)
    encoder = p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)
    one = with_separator(p)
    p.set(encoder.manager, "cached", {"dog": p.call("builtins:set", ["ana"])})
    for computed in (7, 8):
        p.set(one, "num_computed_tokens", computed)
        encoder.free_computed(one)
        p.see(p.call("builtins:list", encoder.manager.freeable))
    assert subject.run(p) == [[], ["dog"]]


@many
@given(gaps=PLACED, data=st.data())
def test_13_7_any_progress(
    subject: Any, reference: Any, gaps: list[tuple[int, str]], data: Any
) -> None:
    """Any images, any number of computed tokens."""
    p = Program()
    config = p.new("mini_vllm.config:SchedulerConfig", encoder_cache_size=64)
    encoder = p.new("mini_vllm.core.encoder_inputs:EncoderInputs", config)
    images, end = placed(p, gaps)
    one = request(p, "ana", images, end + 1)
    names = dict.fromkeys(name for _, name in gaps)
    p.set(encoder.manager, "cached", {n: p.call("builtins:set", ["ana"]) for n in names})
    p.set(one, "num_computed_tokens", data.draw(st.integers(0, end + 1)))
    encoder.free_computed(one)
    p.see(encoder.manager.cached)
    compare(subject, reference, p)


@many
@example(grids=[(1, 2, 3), (1, 3, 1), (0, 1, 2)], merge=2, behind=2)
@given(
    grids=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4)), max_size=3),
    merge=st.integers(1, 3),
    behind=st.integers(0, 3),
)
def test_13_8_any_pictures(
    subject: Any,
    reference: Any,
    grids: list[tuple[int, int, int]],
    merge: int,
    behind: int,
) -> None:
    """Any sizes, with text between or without."""
    p, images, end = Program(), [], 0
    for text, height, width in grids:
        place = p.new(f"{FEATURES}PlaceholderRange", end + text, height * width)
        data = {"image_grid_thw": [1, height * merge, width * merge]}
        images.append(p.new(f"{FEATURES}MultiModalFeatureSpec", data, "image", "x", place))
        end += text + height * width
    if end + behind == 0:
        return
    made = p.call(
        "mini_vllm.multimodal.mrope:get_mrope_input_positions", end + behind, images, merge
    )
    p.see(made[0].tolist())
    p.see(made[0].dtype.name)
    p.see(p.call("builtins:int", made[1]))
    compare(subject, reference, p)


def test_13_8_pictures_are_only_read(subject: Any) -> None:
    """What the encoder is given later is what it was, and the answer is the same again."""
    p = Program()
    data = p.call("builtins:dict", {"image_grid_thw": [1, 4, 6]})
    place = p.new(f"{FEATURES}PlaceholderRange", 2, 6)
    image = p.new(f"{FEATURES}MultiModalFeatureSpec", data, "image", "x", place)
    for _ in range(2):
        made = p.call("mini_vllm.multimodal.mrope:get_mrope_input_positions", 10, [image], 2)
        p.see(made[0].tolist())
        p.see(data)
    positions, left, *again = subject.run(p)
    assert again == [positions, left] and left == {"image_grid_thw": [1, 4, 6]}


@many
@given(
    batch=st.lists(st.tuples(PLACED, st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=3),
    mask=st.booleans(),
)
def test_13_9_any_chunks(
    subject: Any, reference: Any, batch: list[tuple[Any, int, int]], mask: bool
) -> None:
    """Any requests in any state; separators, and images that are missing."""
    p = Program()
    cache = {}
    for number, name in enumerate(NAMES[:3]):
        rows = SIZES[name] - (mask and name == "dog")
        cache[name] = p.call("torch:tensor", [[100.0 * number + i] for i in range(rows)])
    features = [placed(p, gaps, mask)[0] for gaps, _, _ in batch]
    made = p.call(
        "mini_vllm.multimodal.gather:gather_mm_embeddings",
        features,
        [computed for _, computed, _ in batch],
        [scheduled for _, _, scheduled in batch],
        cache,
    )
    p.see(made[1].tolist())
    none = p.call("torch:zeros", 0, 1)  # there may be no slice, and how many there are is free
    slices = p.call("builtins:list", p.call("itertools:chain", [none], made[0]))
    p.see(p.call("torch:cat", slices).tolist())
    compare_tensors(subject, reference, p)


def test_13_9_chunks_of_three_requests(subject: Any) -> None:
    """Two tokens of text, the middle of one dog, the beginning of another, and the end of a cat."""
    p = Program()
    dog, _ = placed(p, [(1, "dog")], mask=True)
    cat, _ = placed(p, [(0, "cat")])
    cache = {
        "dog": p.call("torch:tensor", [[100.0 + row] for row in range(5)]),
        "cat": p.call("torch:tensor", [[200.0 + row] for row in range(4)]),
    }
    made = p.call(
        "mini_vllm.multimodal.gather:gather_mm_embeddings",
        [[], dog, dog, cat], [5, 3, 0, 2], [2, 2, 4, 3], cache,
    )  # fmt: skip
    p.see(p.call("torch:cat", made[0]).flatten().tolist())
    p.see(made[1].nonzero().flatten().tolist())
    assert subject.run(p) == [[101, 102, 100, 101, 202, 203], [2, 3, 6, 7, 8, 9]]


def test_13_9_one_picture_for_three(subject: Any) -> None:
    """Two requests take all of a cat in one step, and a third the end of it: its rows are read as
    often as they are needed, and stay in the cache."""
    p = Program()
    cat, _ = placed(p, [(0, "cat")])
    rows = p.call("torch:tensor", [[200.0 + row] for row in range(4)])
    cache = p.call("builtins:dict", {"cat": rows})
    made = p.call(
        "mini_vllm.multimodal.gather:gather_mm_embeddings",
        [cat, cat, cat], [0, 0, 2], [4, 4, 2], cache,
    )  # fmt: skip
    p.see(p.call("torch:cat", made[0]).flatten().tolist())
    p.see(made[1].tolist())
    p.see(p.call("builtins:list", cache))
    every = [200, 201, 202, 203]
    assert subject.run(p) == [[*every, *every, 202, 203], [True] * 10, ["cat"]]


def test_13_9_a_separator_needs_no_image(subject: Any) -> None:
    """A step that computes it alone, before anything was encoded."""
    p = Program()
    images, _ = placed(p, [(0, "dog")], mask=True)
    made = p.call("mini_vllm.multimodal.gather:gather_mm_embeddings", [images], [0], [1], {})
    p.see(p.call("builtins:len", made[0]))
    p.see(made[1].tolist())
    assert subject.run(p) == [0, [False]]


def compare_tensors(subject: Any, reference: Any, p: Program) -> None:
    yours, theirs = subject.run(p), reference.run(p)
    assert len(yours) == len(theirs)
    for mine, right in zip(yours, theirs, strict=True):
        assert np.array_equal(np.asarray(mine, dtype=object), np.asarray(right, dtype=object))


@many
@example(mask=[True, True], levels=0, more=-1)
@example(mask=[True, False], levels=1, more=1)
@given(
    mask=st.lists(st.booleans(), min_size=1, max_size=6),
    levels=st.integers(0, 2),
    more=st.sampled_from((0, 0, 0, 1, -1)),
)
def test_13_10_any_places(
    subject: Any, reference: Any, mask: list[bool], levels: int, more: int
) -> None:
    """Any mask, any number of levels, and now and then a row too many or too few. The numbers are
    such as half precision does not have."""
    p = Program()
    count, width = max(sum(mask) + more, 0), 2 * (1 + levels)
    embeds = p.call("torch:ones", len(mask), 2)
    numbers = p.call("torch:arange", 7e4, 7e4 + count * width).view(count, width)
    made = p.call(
        "mini_vllm.multimodal.gather:merge_multimodal_embeddings",
        embeds,
        [numbers],
        p.call("torch:tensor", mask),
    )
    p.see(made[0].tolist())
    p.see(made[1].tolist())
    p.see(embeds.tolist())
    compare(subject, reference, p)


@many
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), levels=st.integers(0, 2))
def test_13_10_rows_of_several_pictures(subject: Any, sizes: list[int], levels: int) -> None:
    """Rows of one picture after the other, in float32, into embeddings in half precision."""
    total, width = sum(sizes), 3 * (1 + levels)
    numbers = np.arange(total * width, dtype=float).reshape(total, width)
    places = [index for index in range(2 * total) if index % 3][:total]
    mask = [index in places for index in range(2 * total)]
    p = Program()
    parts = [
        p.call("torch:tensor", part.tolist()) for part in np.split(numbers, np.cumsum(sizes)[:-1])
    ]
    embeds = p.call("torch:ones", 2 * total, 3, dtype=p.name("torch:float16"))
    merged = p.call(
        "mini_vllm.multimodal.gather:merge_multimodal_embeddings",
        embeds, parts, p.call("torch:tensor", mask),
    )  # fmt: skip
    for index in (0, 1):
        p.see(p.call("builtins:str", merged[index].dtype))
        p.see(merged[index].tolist())
    kind, found, level_kind, found_levels = subject.run(p)
    expected = np.ones((2 * total, 3))
    expected[places] = numbers[:, :3]
    expected_levels = np.zeros((levels, 2 * total, 3))
    for level in range(levels):
        expected_levels[level, places] = numbers[:, 3 * level + 3 : 3 * level + 6]
    assert kind == level_kind == "torch.float16"
    assert found == expected.tolist() and found_levels == expected_levels.tolist()


@many
@example(height=2, width=1, merge=3)
@given(height=st.integers(1, 3), width=st.integers(1, 3), merge=st.integers(1, 3))
def test_13_11_any_grid(subject: Any, reference: Any, height: int, width: int, merge: int) -> None:
    """Any grid of any blocks."""
    p = Program()
    grid = (height * merge, width * merge, merge)
    found = p.call("mini_vllm.model.qwen3_vl:patch_positions", *grid)
    p.see(found.tolist())
    p.see(p.call("builtins:str", found.dtype))
    compare(subject, reference, p)


@many
@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_13_11_any_batch_of_pictures(subject: Any, reference: Any, lengths: list[int]) -> None:
    """Pictures of any sizes see themselves and no other."""
    p = Program()
    p.call("torch:manual_seed", 3)
    three = [p.call("torch:randn", sum(lengths), 2, 4) for _ in range(3)]
    made = p.call("mini_vllm.model.qwen3_vl:attend_within_pictures", *three, lengths)
    p.see(made.tolist())
    yours, theirs = subject.run(p)[0], reference.run(p)[0]
    assert np.allclose(np.array(yours, dtype=float), np.array(theirs, dtype=float), atol=1e-5)


@many
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    heads=st.integers(1, 3),
    head_dim=st.sampled_from((2, 6, 8, 20)),
    loud=st.sampled_from((1, 600)),
    kind=st.sampled_from(("float32", "bfloat16")),
    seed=st.integers(0, 2**32 - 1),
)
def test_13_11_heads_of_any_size(
    subject: Any, lengths: list[int], heads: int, head_dim: int, loud: int, kind: str, seed: int
) -> None:
    """Scores are divided by the root of the head's size; they may be in the thousands."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.integers(-4, 5, (3, sum(lengths), heads, head_dim)) / 4.0
    q *= loud if kind == "float32" else 1
    p = Program()
    three = [p.call("torch:tensor", x.tolist(), dtype=p.name(f"torch:{kind}")) for x in (q, k, v)]
    found = p.call("mini_vllm.model.qwen3_vl:attend_within_pictures", *three, lengths)
    p.see(p.call("builtins:str", found.dtype))
    p.see(found.float())
    dtype, yours = subject.run(p)
    expected, start = np.zeros_like(v), 0
    for length in lengths:
        part = np.s_[start : start + length]
        scores = np.einsum("qhd,khd->hqk", q[part], k[part]) / head_dim**0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected[part] = np.einsum("hqk,khd->qhd", weights, v[part])
        start += length
    assert dtype == f"torch.{kind}"
    assert np.allclose(yours, expected, atol=1e-4 if kind == "float32" else 0.05)
