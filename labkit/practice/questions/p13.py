"""Questions of phase 13: tokens, positions, and who is evicted."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question, counted


def tokens(rng: Random) -> Question:
    patch, merge = rng.choice((14, 16)), 2
    rows, columns = rng.randint(2, 20), rng.randint(2, 20)
    height, width = rows * patch * merge, columns * patch * merge

    def engine() -> int:
        from mini_vllm.model.qwen3_vl import patch_positions

        return len(patch_positions(height // patch, width // patch, merge)) // merge**2

    return Question(
        f"A picture of {width} x {height} pixels, patches of {patch} x {patch}, and 2 x 2 patches"
        " become one token. How many tokens is it?",
        engine,
        lambda: rows * columns,
        f"{height} / {patch * merge} = {rows} rows of {width} / {patch * merge} = {columns} tokens.",
    )


def next_position(rng: Random) -> Question:
    before, height, width = rng.randint(1, 9), rng.randint(1, 9), rng.randint(1, 9)

    def engine() -> int:
        from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
        from mini_vllm.multimodal.mrope import get_mrope_input_positions

        data = {"image_grid_thw": [1, 2 * height, 2 * width]}
        place = PlaceholderRange(before, height * width)
        image = MultiModalFeatureSpec(data, "image", "x", place)
        return int(get_mrope_input_positions(place.end + 1, [image], 2)[0][0, -1])

    return Question(
        f"{counted(before, 'token')} of text, then a picture of"
        f" {counted(height, 'row')} of {counted(width, 'token')}, then text."
        " At which position does the text behind the picture go on?",
        engine,
        lambda: before + max(height, width),
        "The picture begins where the text before it ends, and moves it by its longer side.",
    )


def chunk(rng: Random) -> Question:
    offset, length = rng.randint(0, 9), rng.randint(4, 12)
    computed, scheduled = rng.randint(0, 12), rng.randint(2, 9)

    def engine() -> int:
        import torch

        from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
        from mini_vllm.multimodal.gather import gather_mm_embeddings

        image = MultiModalFeatureSpec(None, "image", "x", PlaceholderRange(offset, length))
        cache = {"x": torch.zeros(length, 1)}
        return int(gather_mm_embeddings([[image]], [computed], [scheduled], cache)[1].sum())

    return Question(
        f"A picture lies at positions {offset} to {offset + length - 1}."
        f" {counted(computed, 'token')} of the"
        f" request are computed, and this step computes {scheduled} more. How many rows of the"
        " picture does the step take?",
        engine,
        lambda: len(
            set(range(offset, offset + length)) & set(range(computed, computed + scheduled))
        ),
        "Count the positions that are in the picture and in the step.",
    )


def rows_of_a_range(rng: Random) -> Question:
    embeds = [rng.random() < 0.7 for _ in range(8)]
    embeds[rng.randrange(8)] = True
    start = rng.randint(0, 5)
    end = rng.randint(start + 1, 8)

    def engine() -> str:
        from mini_vllm.mm_features import PlaceholderRange

        first, last = PlaceholderRange(3, 8, tuple(embeds)).get_embeds_indices_in_range(start, end)
        return f"{first} {last}"

    shown = " ".join("#" if embed else "." for embed in embeds)
    return Question(
        f"A picture's places are {shown}, where . is a separator. Which rows of the encoder's output do"
        f" its places {start} to {end - 1} take: the first row, and the one behind the last (two numbers)?",
        engine,
        lambda: f"{sum(embeds[:start])} {sum(embeds[:end])}",
        "A row's number is the number of places with a row before it.",
    )


def second_offset(rng: Random) -> Question:
    before, between = rng.randint(0, 6), rng.randint(1, 6)
    lengths = [rng.randint(2, 12) for _ in range(2)]

    def engine() -> int:
        from mini_vllm.multimodal.processing import expand_placeholders

        prompt = [1] * before + [9] + [1] * between + [9]
        return expand_placeholders(prompt, 9, lengths)[1][1].offset

    return Question(
        f"A prompt has {counted(before, 'token')}, a picture, {counted(between, 'token')}, and"
        f" another picture. The pictures"
        f" take {lengths[0]} and {lengths[1]} tokens. At which offset does the second one lie?",
        engine,
        lambda: before + lengths[0] + between,
        "Offsets count in the longer prompt: the first picture has moved all that follows.",
    )


KINDS = {
    "tokens": tokens,
    "next position": next_position,
    "chunk": chunk,
    "rows": rows_of_a_range,
    "second offset": second_offset,
}
