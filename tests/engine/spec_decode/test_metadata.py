"""Rows of logits: which tokens become them, and whose sampling parameters they have."""

import random
from dataclasses import fields

import torch

from mini_vllm.sample.metadata import make_sampling_metadata
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import (
    advance_ragged,
    calc_spec_decode_metadata,
    expand_to_rows,
)

VOCAB = 12


def test_upstreams_own_example() -> None:
    found = calc_spec_decode_metadata([3, 0, 2, 0, 1], [4, 104, 107, 207, 209])
    assert found.logits_indices.tolist() == [0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208]
    assert found.target_logits_indices.tolist() == [0, 1, 2, 5, 6, 9]
    assert found.bonus_logits_indices.tolist() == [3, 4, 7, 8, 10]
    assert found.num_draft_tokens == [3, 0, 2, 0, 1]


def test_without_drafts_every_row_is_a_bonus() -> None:
    found = calc_spec_decode_metadata([0, 0], [1, 6])
    assert found.logits_indices.tolist() == [0, 5]
    assert found.target_logits_indices.tolist() == []


def random_params(draw: random.Random) -> SamplingParams:
    return SamplingParams(
        temperature=draw.choice((0.0, 0.7, 1.0)),
        top_k=draw.choice((0, 3)),
        top_p=draw.choice((1.0, 0.8)),
        min_p=draw.choice((0.0, 0.1)),
        seed=draw.randrange(1000),
        repetition_penalty=draw.choice((1.0, 1.3)),
        presence_penalty=draw.choice((0.0, 0.6)),
        frequency_penalty=draw.choice((0.0, 0.4)),
        min_tokens=draw.randrange(6),
        stop_token_ids=[draw.randrange(VOCAB)],
        logit_bias=draw.choice((None, {3: 2.0})),
        allowed_token_ids=draw.choice((None, None, [0, 1, 2, 3, 4, 5, 6, 7])),
    )


def test_a_row_is_a_request_that_already_has_its_drafts() -> None:
    """Expanded metadata gives the tokens that metadata built from nothing gives, row by row."""
    draw = random.Random(0)
    for trial in range(150):
        size = draw.randint(1, 4)
        params = [random_params(draw) for _ in range(size)]
        lists = [
            [[draw.randrange(VOCAB) for _ in range(draw.randrange(5))] for _ in range(size)]
            for _ in range(3)
        ]
        prompts, outputs, drafts = lists
        base = make_sampling_metadata(
            zip(params, prompts, outputs, [()] * size, strict=True), VOCAB
        )
        flat = torch.tensor([t for ids in drafts for t in ids], dtype=torch.int64)
        rows = expand_to_rows(base, [len(ids) for ids in drafts], flat)
        rebuilt = make_sampling_metadata(
            [
                (params[i], prompts[i], outputs[i] + drafts[i][:j], ())
                for i in range(size)
                for j in range(len(drafts[i]) + 1)
            ],
            VOCAB,
        )
        generator = torch.Generator().manual_seed(trial)
        logits = torch.randn(len(rows.num_output_tokens), VOCAB, generator=generator)
        expected, actual = Sampler()(logits, rebuilt), Sampler()(logits, rows)
        assert actual.sampled_token_ids.tolist() == expected.sampled_token_ids.tolist()
        assert rows.num_output_tokens.tolist() == rebuilt.num_output_tokens.tolist()
        processed = [Sampler.apply_processors(logits, metadata) for metadata in (rows, rebuilt)]
        assert torch.allclose(*processed)


def test_expanding_changes_nothing_of_the_original() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1.0, min_tokens=4, stop_token_ids=[2])
    base = make_sampling_metadata([(params, [1], [5], ())], VOCAB)
    before = {f.name: str(getattr(base, f.name)) for f in fields(base)}
    expand_to_rows(base, [2], torch.tensor([7, 7]))
    assert {f.name: str(getattr(base, f.name)) for f in fields(base)} == before


def test_advancing_counts_what_was_said() -> None:
    params = [SamplingParams(temperature=0, frequency_penalty=1.0), SamplingParams(temperature=0)]
    metadata = make_sampling_metadata([(p, [1], [], ()) for p in params], VOCAB)
    advance_ragged(metadata, torch.tensor([[4, 4, 6], [5, -1, -1]]))
    assert metadata.num_output_tokens.tolist() == [3, 1]
    assert metadata.penalties is not None
    counts = metadata.penalties.output_counts
    assert counts[0].nonzero().flatten().tolist() == [4, 6]
    assert counts[0, 4] == 2 and counts[1, 5] == 1
