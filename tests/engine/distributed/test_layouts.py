"""Every rank's part of a layer, together, is the layer. All ranks are threads of this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator, group_ranks
from mini_vllm.distributed.pipeline import missing_tokens
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.distributed.utils import get_pp_indices
from mini_vllm.distributed.vocab import VocabParallelEmbedding, VocabParallelHead, vocab_range
from mini_vllm.model.build import Build, default_dtype, load_model
from mini_vllm.model.config import load_config
from mini_vllm.model.layers import PLAIN, Embedding, GatedMLP, Linear
from mini_vllm.model.layout import Stage
from mini_vllm.model.loader import weight_targets
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.model.sharded_loader import load_parts

ALONE = GroupCoordinator([0], 0)


def parallel(group: GroupCoordinator) -> ModelParallel:
    return ModelParallel(group, ALONE)


def fill(linear: Linear, weights: Sequence[Tensor], bias: Tensor | None = None) -> None:
    """The part of each projection's whole matrix, and of the stacked bias."""
    rows = [w[part.out, part.in_] for w, part in zip(weights, linear.parts, strict=True)]
    linear.weight.data.copy_(torch.cat(rows))
    if bias is not None:
        starts = [sum(len(w) for w in weights[:i]) for i in range(len(weights))]
        pieces = [bias[s:][part.out] for s, part in zip(starts, linear.parts, strict=True)]
        linear.bias.data.copy_(torch.cat(pieces))


def whole_numbers(*shape: int) -> Tensor:
    """Sums of small whole numbers are exact in any order."""
    return torch.randint(-3, 4, shape).float()


@pytest.mark.history("bias_tp_times", "hf-tgi#1036")
@pytest.mark.parametrize("p", [1, 2, 3, 4])
@torch.inference_mode()
def test_an_mlp_of_many_ranks_is_the_mlp(p: int) -> None:
    torch.manual_seed(p)
    hidden, middle = 8, 24
    gate, up, down = (whole_numbers(*s) for s in ((middle, hidden), (middle, hidden), (8, middle)))
    b1, b2, x = whole_numbers(2 * middle), whole_numbers(hidden), whole_numbers(5, hidden)

    def mlp(group: GroupCoordinator | None) -> Tensor:
        build = Build(parallel=parallel(group)) if group else PLAIN
        layer = GatedMLP(hidden, middle, True, build)
        fill(layer.gate_up_proj, [gate, up], b1)
        fill(layer.down_proj, [down], b2)
        return layer(x)

    for result in run_ranks(p, mlp):
        torch.testing.assert_close(result, mlp(None), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [2, 3])
@torch.inference_mode()
def test_the_bias_is_in_the_sum_once_and_whole(p: int) -> None:
    weight, bias, x = whole_numbers(6, 12), whole_numbers(6), whole_numbers(4, 12)

    def row(group: SimulatedGroup) -> tuple[Tensor, tuple[int, ...]]:
        linear = Linear(12, 6, True, PLAIN, parallel(group).row())
        fill(linear, [weight], bias)
        return linear(x[:, linear.parts[0].in_]), tuple(linear.bias.shape)

    for y, shape in run_ranks(p, row):
        assert torch.equal(y, x @ weight.T + bias)
        assert shape == (6,)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "p", "expected"),
    [
        (8, 2, 2, [([0, 1, 2, 3], [0]), ([4, 5, 6, 7], [1])]),
        (8, 2, 4, [([0, 1], [0]), ([2, 3], [0]), ([4, 5], [1]), ([6, 7], [1])]),
        (4, 1, 4, [([0], [0]), ([1], [0]), ([2], [0]), ([3], [0])]),
        (6, 3, 3, [([0, 1], [0]), ([2, 3], [1]), ([4, 5], [2])]),
        (6, 3, 6, [([r], [r // 2]) for r in range(6)]),
        (4, 4, 2, [([0, 1], [0, 1]), ([2, 3], [2, 3])]),
    ],
)
def test_query_heads_come_with_the_kv_heads_they_look_at(
    heads: int, kv_heads: int, p: int, expected: list[Any]
) -> None:
    head_dim = 4
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    for rank, (queries, keys) in enumerate(expected):
        group = GroupCoordinator(range(p), rank)
        q, k, v = parallel(group).qkv(heads, kv_heads).parts(16, sizes)
        assert (q.out, q.in_) == (slice(queries[0] * 4, (queries[-1] + 1) * 4), slice(0, 16))
        assert k == v and k.out == slice(keys[0] * 4, (keys[-1] + 1) * 4)
        assert all(query // (heads // kv_heads) in keys for query in queries)


def test_what_does_not_come_out_even_is_refused() -> None:
    layouts = parallel(GroupCoordinator(range(2), 1))
    with pytest.raises(ValueError, match="7 cannot be shared out evenly among 2"):
        layouts.column().parts(4, [4, 7])
    with pytest.raises(ValueError, match="5 cannot be shared"):
        layouts.row().parts(5, [4])
    with pytest.raises(ValueError, match="3 cannot be shared"):
        layouts.qkv(4, 3).parts(8, [16, 12, 12])


@pytest.mark.parametrize(("vocab", "p"), [(131, 2), (131, 4), (509, 3), (64, 1), (7, 2), (1003, 4)])
@torch.inference_mode()
def test_embedding_and_head_over_many_ranks(vocab: int, p: int) -> None:
    """Also where a rank has no token at all, and where every logit is negative."""
    torch.manual_seed(0)
    table = torch.randn(vocab, 6)
    ids = torch.tensor([0, vocab - 1, vocab // 2, 3])
    hidden = -table.mean(0).repeat(2, 1) * 100

    def both(group: SimulatedGroup) -> tuple[Tensor, Tensor]:
        embedding = Embedding(vocab, 6, VocabParallelEmbedding(group, vocab))
        head = Linear(6, vocab, False, PLAIN, VocabParallelHead(group, vocab))
        rows = embedding.parts[0].out
        for weight in (embedding.weight, head.weight):
            weight.data.zero_()
            weight.data[: len(table[rows])] = table[rows]
        return embedding(ids), head(hidden)

    for vectors, logits in run_ranks(p, both):
        assert torch.equal(vectors, table[ids])
        assert logits.shape == (2, vocab)
        torch.testing.assert_close(logits, hidden @ table.T)


def test_vocabulary_ranges_are_equal_and_cover_everything() -> None:
    for vocab in (1, 7, 64, 65, 131, 509, 2048):
        for p in range(1, 9):
            ranges = [vocab_range(vocab, rank, p) for rank in range(p)]
            assert [r.start for r in ranges] == [i * (ranges[0].stop) for i in range(p)]
            assert len({r.stop - r.start for r in ranges}) == 1
            assert ranges[-1].stop >= vocab and ranges[-1].stop % 64 == 0


def test_every_layer_is_on_one_stage() -> None:
    for num_layers in range(1, 65):
        for size in range(1, num_layers + 1):
            parts = [get_pp_indices(num_layers, rank, size) for rank in range(size)]
            assert [i for start, end in parts for i in range(start, end)] == list(range(num_layers))
            lengths = [end - start for start, end in parts]
            assert max(lengths) - min(lengths) <= 1 and lengths[-1] == num_layers // size
    assert [get_pp_indices(5, r, 2) for r in range(2)] == [(0, 3), (3, 5)]
    assert [b - a for a, b in (get_pp_indices(61, r, 8) for r in range(8))] == [7, 7, *[8] * 5, 7]


def test_groups_of_neighbours_and_strides() -> None:
    assert group_ranks(2, 4) == (
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 2, 4, 6], [1, 3, 5, 7]],
    )
    group = GroupCoordinator([1, 3, 5], 3)
    assert (group.rank_in_group, group.next_rank, group.prev_rank) == (1, 5, 1)
    assert (group.is_first_rank, group.is_last_rank) == (False, False)


@pytest.mark.parametrize(
    ("known", "computed", "new", "missing"),
    [
        (5, 3, [7, 8, 9], [9]),
        (10, 4, [1, 2, 3], []),  # a chunk of a prompt that is known whole
        (6, 6, [4], [4]),
        (7, 6, [4], []),
        (3, 3, [1, 2], [1, 2]),
    ],
)
def test_a_stage_takes_only_what_it_lacks(
    known: int, computed: int, new: list[int], missing: list[int]
) -> None:
    assert missing_tokens(known, computed, new) == missing


# ---------------------------------------------------------------------- whole models

CONFIG: dict[str, Any] = dict(
    architectures=["Qwen2ForCausalLM"],
    vocab_size=131,
    hidden_size=24,
    intermediate_size=36,
    num_hidden_layers=11,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    dtype="float32",
)


def checkpoint(folder: Path, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    torch.manual_seed(0)
    targets = weight_targets(load_model(folder, load_format="dummy"))
    save_file({n: torch.randn(t.shape) for n, t in targets.items()}, folder / "model.safetensors")


def part(folder: Path, tp: tuple[int, int], pp: tuple[int, int]) -> Any:
    """What rank `tp[0]` of `tp[1]`, on stage `pp[0]` of `pp[1]`, loads."""
    groups = [GroupCoordinator(range(size), rank) for rank, size in (tp, pp)]
    args = load_config(folder)
    with default_dtype(torch.float32):
        model = resolve_model_class(args.architectures)(
            args, Build(None, None, ModelParallel(*groups))
        )
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.fill_(99.0)
    load_parts(model, folder)
    return model


@pytest.mark.parametrize("tied", [False, True])
def test_stages_keep_global_names_and_load_their_own(tied: bool, tmp_path: Path) -> None:
    """Eleven layers: a name that begins with "layers.1" is not all of layer 1's."""
    checkpoint(tmp_path, tie_word_embeddings=tied)
    whole = dict(load_model(tmp_path).named_parameters())
    seen: set[str] = set()
    for stage in range(3):
        model = part(tmp_path, (0, 1), (stage, 3))
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, whole[name]), name
            seen.add(name)
        assert model.kv_cache_spec().num_layers == len(range(*get_pp_indices(11, stage, 3)))
    head = {"lm_head.weight"} if tied else set()
    assert seen | head == set(whole)
    assert model.model.stage == Stage(8, 11, 11)
    if tied:
        assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_ranks_hold_their_share(kv_heads: int, tmp_path: Path) -> None:
    checkpoint(tmp_path, num_key_value_heads=kv_heads, num_hidden_layers=2)
    whole = sum(p.numel() for p in load_model(tmp_path).parameters())
    for p in (2, 3, 6):
        if kv_heads % p and p % kv_heads:
            continue
        models = [part(tmp_path, (rank, p), (0, 1)) for rank in range(p)]
        sizes = [sum(x.numel() for x in m.parameters()) for m in models]
        assert len(set(sizes)) == 1
        spare = 2 * 2 * 8 * 25 * max(p - kv_heads, 0) + 64 * p * 24 + 600  # KV copies, padding
        assert p * sizes[0] <= whole + spare * p
        assert models[0].kv_cache_spec().num_kv_heads == max(kv_heads // p, 1)


ODD: list[dict[str, Any]] = [
    {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 8, "num_key_value_heads": 2},
    {"architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 1},
    {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 4,
     "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    {"architectures": ["Qwen2ForCausalLM"], "num_attention_heads": 6, "num_key_value_heads": 3},
]  # fmt: skip


def logits_of(model: Any) -> Tensor:
    """Of a prompt of 7 tokens, all positions."""
    tokens = torch.tensor([0, 130, 64, 63, 97, 5, 5])
    spec = model.kv_cache_spec()
    shape = (2, 4, 4, spec.num_kv_heads, spec.head_dim)
    caches = [torch.zeros(shape) for _ in range(spec.num_layers)]
    metadata = AttentionMetadata.from_lists([7], [7], [[1, 2]], 4, torch.device("cpu"))
    return model.compute_logits(model(tokens, torch.arange(7), caches, metadata))


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: "-".join(map(str, odd.values())))
def test_a_model_of_many_ranks_is_the_model(odd: dict[str, Any], tmp_path: Path) -> None:
    checkpoint(tmp_path, num_hidden_layers=2, **odd)
    torch.set_num_threads(1)
    with torch.inference_mode():
        expected = logits_of(load_model(tmp_path))
    heads, kv_heads = odd["num_attention_heads"], odd["num_key_value_heads"]
    for p in range(2, heads + 1):
        if heads % p or CONFIG["intermediate_size"] % p or (kv_heads % p and p % kv_heads):
            continue

        def work(group: SimulatedGroup) -> Tensor:
            return logits_of(load_model(tmp_path, parallel=parallel(group)))

        for logits in run_ranks(p, work):
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-3)


@pytest.mark.history("tied_head_not_on_last_stage", "sglang#6908")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_stages_one_after_another_are_the_model(size: int, tied: bool, tmp_path: Path) -> None:
    """Both the branch and the residual stream travel; a tied head is on the last stage, too."""
    checkpoint(tmp_path, num_hidden_layers=5, tie_word_embeddings=tied)
    torch.set_num_threads(1)
    tokens, positions = torch.tensor([0, 130, 64, 5]), torch.arange(4)
    metadata = AttentionMetadata.from_lists([4], [4], [[1]], 4, torch.device("cpu"))

    def run(model: Any, **extra: Any) -> Any:
        spec = model.kv_cache_spec()
        shape = (2, 2, 4, spec.num_kv_heads, spec.head_dim)
        caches = [torch.zeros(shape) for _ in range(spec.num_layers)]
        return model(tokens, positions, caches, metadata, **extra)

    with torch.inference_mode():
        whole = load_model(tmp_path)
        expected = whole.compute_logits(run(whole))
        extra: dict[str, Any] = {}
        for rank in range(size):
            groups = GroupCoordinator([0], 0), GroupCoordinator(range(size), rank)
            stage = load_model(tmp_path, parallel=ModelParallel(*groups))
            extra = {"intermediate": (result := run(stage, **extra))}
        torch.testing.assert_close(stage.compute_logits(result), expected)
