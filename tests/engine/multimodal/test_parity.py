"""Greedy tokens equal Hugging Face's, wherever images lie and however the steps cut them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from seeing import PAD, expected, picture, prompt, reference, save, words

from mini_vllm import LLM, SamplingParams

MAX_TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
CAT, DOG, WIDE, LARGE = picture(1), picture(2), picture(3, 40, 16), picture(4, 56, 56)
PROMPTS = {
    "start": prompt(CAT, words(1, 5)),
    "middle": prompt(words(2, 4), WIDE, words(3, 3)),
    "end": prompt(words(4, 6), LARGE),
    "several": prompt(words(5, 2), CAT, words(6, 2), LARGE, words(7, 1), WIDE, words(8, 3)),
    "twice": prompt(words(9, 3), DOG, DOG, words(10, 2)),
    "text": prompt(words(11, 9)),
    "another": prompt(words(9, 3), CAT, CAT, words(10, 2)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def truth() -> dict[str, list[int]]:
    found = {name: expected(request, MAX_TOKENS) for name, request in PROMPTS.items()}
    assert min(gap for _, gap in found.values()) > 2e-4, "two tokens are too near to tell apart"
    return {name: tokens for name, (tokens, _) in found.items()}


def load(folder: Path, **options: Any) -> LLM:
    usual = {"num_gpu_blocks": 256, "block_size": 4, "max_model_len": 256, "dtype": "float32"}
    return LLM(folder, skip_tokenizer_init=True, **(usual | options))


def answers(llm: LLM, names: list[str]) -> dict[str, list[int]]:
    outputs = llm.generate([PROMPTS[name] for name in names], GREEDY, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(names)
    return {n: out.outputs[0].token_ids for n, out in zip(names, outputs, strict=True)}


def images_of(llm: LLM) -> Any:
    return llm.engine.core.model_runner.images


def test_the_model_would_notice_a_wrong_engine(truth: dict[str, list[int]]) -> None:
    """Other pictures, one-dimensional positions and no DeepStack each change an answer."""
    several = PROMPTS["several"]
    images = several["multi_modal_data"]["image"]
    swapped = several | {"multi_modal_data": {"image": [images[0].rotate(180), *images[1:]]}}
    assert expected(swapped, MAX_TOKENS)[0] != truth["several"]
    count = len(truth)
    assert len({tuple(tokens) for tokens in truth.values()}) == count
    flat = [
        expected(PROMPTS[name], MAX_TOKENS, mm_token_type_ids=None)[0] != truth[name]
        for name in ("several", "end")
    ]
    assert any(flat), "positions do not matter"
    visual = reference().model.visual
    levels = visual.deepstack_visual_indexes
    try:
        visual.deepstack_visual_indexes = []
        assert expected(several, MAX_TOKENS)[0] != truth["several"]
    finally:
        visual.deepstack_visual_indexes = levels


@pytest.mark.parametrize("budget", [7, 32, 2048])
def test_chunks_change_no_token(folder: Path, truth: dict[str, list[int]], budget: int) -> None:
    llm = load(folder, max_num_batched_tokens=budget)
    assert answers(llm, list(PROMPTS)) == truth
    assert images_of(llm).num_encoded == 4, "each distinct picture once"


def test_one_request_at_a_time(folder: Path, truth: dict[str, list[int]]) -> None:
    llm = load(folder)
    for name in PROMPTS:
        assert answers(llm, [name])[name] == truth[name]


@pytest.mark.parametrize("options", [
    {"num_gpu_blocks": 24, "scheduler_reserve_full_isl": False},
    {"num_gpu_blocks": 24, "max_num_batched_tokens": 16, "policy": "priority"},
    {"max_num_seqs": 2, "enable_prefix_caching": False},
    {"long_prefill_token_threshold": 5},
    {"disable_chunked_mm_input": True, "max_num_batched_tokens": 128},
    {"encoder_cache_size": 1, "max_num_encoder_input_tokens": 1},
])  # fmt: skip
def test_pressure_changes_no_token(
    folder: Path, truth: dict[str, list[int]], options: dict[str, Any]
) -> None:
    llm = load(folder, **options)
    assert answers(llm, list(PROMPTS)) == truth


def test_a_cache_of_one_picture_encodes_again(folder: Path, truth: dict[str, list[int]]) -> None:
    """The largest picture has 128 tokens, so the cache has room for one of them at least."""
    llm = load(folder, enable_prefix_caching=False, encoder_cache_size=1)
    assert llm.engine.core.config.scheduler.encoder_cache_size == 128
    for _ in range(2):
        assert answers(llm, ["end", "several"])
    assert images_of(llm).num_encoded == 3
    manager = llm.engine.core.scheduler.encoder_cache_manager
    assert set(llm.engine.core.model_runner.encoder_cache) == set(manager.cached)


def test_equal_pictures_share_a_prefix_and_others_never(
    folder: Path, truth: dict[str, list[int]]
) -> None:
    llm = load(folder)
    answers(llm, ["twice"])
    outputs = llm.generate([PROMPTS["twice"], PROMPTS["another"]], GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [truth["twice"], truth["another"]]
    hit, miss = (output.num_cached_tokens for output in outputs)
    assert hit == len(outputs[0].prompt_token_ids) // 4 * 4
    assert miss == 4, "the four tokens before the first picture's second token"
    assert images_of(llm).num_encoded == 2


def test_a_prefix_hit_that_ends_inside_a_picture(folder: Path, truth: dict[str, list[int]]) -> None:
    """Its embeddings are gone; they are computed again, for the rest of the picture."""
    llm = load(folder, block_size=16, num_gpu_blocks=40)
    core = llm.engine.core
    for _ in range(2):
        (output,) = llm.generate(PROMPTS["end"], GREEDY, use_tqdm=False)
        assert output.outputs[0].token_ids == truth["end"]
        core.scheduler.encoder_cache_manager.reset()
        core.model_runner.encoder_cache.clear()
    assert output.num_cached_tokens == 48, "the picture lies at 7 .. 56"
    assert images_of(llm).num_encoded == 2


def test_prompt_logprobs_across_a_picture(folder: Path) -> None:
    llm = load(folder, max_num_batched_tokens=9)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate(PROMPTS["middle"], params, use_tqdm=False)
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    whole = load(folder)
    (other,) = whole.generate(PROMPTS["middle"], params, use_tqdm=False)
    for here, there in zip(output.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
        assert [e.logprob for e in here.values()] == pytest.approx(
            [e.logprob for e in there.values()], abs=1e-4
        )


def test_the_encoder_equals_hugging_faces(folder: Path) -> None:
    llm = load(folder)
    processor = llm.engine.input_processor.images
    _, features = processor.process([PAD, 1, PAD], {"image": [LARGE, WIDE]})
    pixels = torch.cat([torch.from_numpy(f.data["pixel_values"]) for f in features])
    grids = torch.tensor([f.data["image_grid_thw"] for f in features])
    rows = llm.engine.core.model.embed_multimodal(pixel_values=pixels, image_grid_thw=grids)
    out = reference().model.visual(pixels, grid_thw=grids)
    wanted = torch.cat([out.pooler_output, *out.deepstack_features], dim=1)
    torch.testing.assert_close(torch.cat(rows), wanted, rtol=1e-4, atol=1e-4)


def test_positions_equal_hugging_faces() -> None:
    from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from mini_vllm.multimodal.mrope import get_mrope_input_positions

    grids = [(1, 4, 10), (1, 8, 2), (1, 2, 2)]
    token_ids: list[int] = []
    features = []
    for text, grid in zip((3, 1, 5), grids, strict=True):
        token_ids += [1] * text
        count = grid[1] * grid[2] // 4
        place = PlaceholderRange(len(token_ids), count)
        features.append(MultiModalFeatureSpec({"image_grid_thw": list(grid)}, "image", "x", place))
        token_ids += [PAD] * count
    token_ids += [1] * 4
    ids = torch.tensor([token_ids])
    wanted, delta = reference().model.get_rope_index(
        ids, (ids == PAD).int(), image_grid_thw=torch.tensor(grids)
    )
    positions, ours = get_mrope_input_positions(len(token_ids), features, 2)
    assert positions.tolist() == wanted[:, 0].tolist() and ours == int(delta)
