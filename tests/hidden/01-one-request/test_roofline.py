"""The arithmetic on shapes and batches drawn at random, and the laws that it must obey."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)
HERE = "mini_vllm.observability.roofline:"


@st.composite
def shapes(draw: Any) -> dict[str, Any]:
    """A config.json in which all sizes may differ."""
    kv_heads = draw(st.integers(1, 4))
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": draw(st.integers(1, 500)),
        "hidden_size": draw(st.integers(1, 64)),
        "intermediate_size": draw(st.integers(1, 64)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 4)),
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 8)),
        "tie_word_embeddings": draw(st.booleans()),
    }


# One request: new tokens, and tokens that the cache held before.
batches = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=5)


def cost(worker: Any, function: str, shape: dict[str, Any], batch: Any, *more: int) -> Any:
    """step_flops or step_bytes of a batch."""
    p = Program()
    config = p.call("mini_vllm.model.config:ModelArgs.from_dict", shape)
    query_lens = [new for new, _ in batch]
    seq_lens = [new + before for new, before in batch]
    p.see(p.call(HERE + function, config, query_lens, seq_lens, *more))
    return worker.run(p)[0]


@many
@given(shape=shapes(), batch=batches)
def test_01_3_operations_of_any_batch(
    subject: Any, reference: Any, shape: dict[str, Any], batch: Any
) -> None:
    """Several prefills, chunks and decodes in one step."""
    mine = cost(subject, "step_flops", shape, batch)
    assert mine == cost(reference, "step_flops", shape, batch)


@many
@given(shape=shapes(), lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_01_3_chunks_cost_only_heads_more(
    subject: Any, shape: dict[str, Any], lengths: list[int]
) -> None:
    """However a prompt is cut, layers and attention cost the same."""
    total = sum(lengths)
    whole = cost(subject, "step_flops", shape, [(total, 0)])
    chunks = sum(
        cost(subject, "step_flops", shape, [(n, sum(lengths[:i]))]) for i, n in enumerate(lengths)
    )
    head = 2 * shape["hidden_size"] * shape["vocab_size"]
    assert chunks - whole == (len(lengths) - 1) * head


@many
@given(shape=shapes(), batch=batches, itemsize=st.sampled_from([1, 2, 4]))
def test_01_4_bytes_of_any_batch(
    subject: Any, reference: Any, shape: dict[str, Any], batch: Any, itemsize: int
) -> None:
    """Contexts of different lengths, in any width of numbers."""
    mine = cost(subject, "step_bytes", shape, batch, itemsize)
    assert mine == cost(reference, "step_bytes", shape, batch, itemsize)


@many
@given(shape=shapes(), batch=batches, more=batches)
def test_01_4_two_batches_share_the_weights(
    subject: Any, reference: Any, shape: dict[str, Any], batch: Any, more: Any
) -> None:
    """Two batches in one step save one reading of the weights, whatever is in them."""
    apart = cost(subject, "step_bytes", shape, batch, 2) + cost(
        subject, "step_bytes", shape, more, 2
    )
    saved = apart - cost(subject, "step_bytes", shape, batch + more, 2)
    assert saved == cost(reference, "step_bytes", shape, [], 2)


LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_257,
    "hidden_size": 16_385,
    "intermediate_size": 53_249,
    "num_hidden_layers": 127,
    "num_attention_heads": 117,
    "num_key_value_heads": 9,
    "head_dim": 126,
}
LONG = [(1501, 2_000_001), (1501, 2_000_001), (700, 5_000_000), (1, 131_071), (1, 0), (1, 0)]


@pytest.mark.parametrize("start", range(4))
def test_01_3_operations_are_counted_to_the_last(subject: Any, reference: Any, start: int) -> None:
    """A large model of odd sizes and contexts of millions of tokens, some of them alike: more than
    2**53 operations, which no float counts one by one."""
    mine = cost(subject, "step_flops", LARGE, LONG[start:])
    assert (type(mine), mine) == (int, cost(reference, "step_flops", LARGE, LONG[start:]))


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_01_4_bytes_are_counted_to_the_last(subject: Any, reference: Any, itemsize: int) -> None:
    """The same model, in numbers of any width."""
    mine = cost(subject, "step_bytes", LARGE, LONG * 99, itemsize)
    assert (type(mine), mine) == (int, cost(reference, "step_bytes", LARGE, LONG * 99, itemsize))


@many
@given(
    flops=st.integers(1, 10**15),
    size=st.integers(1, 10**12),
    rates=st.tuples(st.integers(1, 10**15), st.integers(1, 10**13)),
)
def test_01_5_any_cost_on_any_machine(
    subject: Any, reference: Any, flops: int, size: int, rates: tuple[int, int]
) -> None:
    """Intensity, least time and bound, far from and near to the ridge."""
    theirs, mine = (judge(worker, flops, size, rates) for worker in (reference, subject))
    assert mine[:2] == pytest.approx(theirs[:2], rel=1e-9, abs=0.0)
    assert mine[2] == theirs[2]


def test_01_5_on_the_ridge_it_is_compute(subject: Any) -> None:
    """The rule says memory only if the bytes take longer."""
    assert judge(subject, 4000, 40, (1000, 10)) == [100.0, 4.0, "compute"]


@pytest.mark.parametrize(("flops", "bound"), [(2**40 + 1, "compute"), (2**40 - 1, "memory")])
@pytest.mark.parametrize("scale", [1, 2**30, 2**70])
def test_01_5_beside_the_ridge(subject: Any, flops: int, bound: str, scale: int) -> None:
    """One operation more or less decides, in long steps and in short ones."""
    assert judge(subject, flops, 2**30, (1024 * scale, scale))[2] == bound


def judge(worker: Any, flops: int, size: int, rates: tuple[int, int]) -> Any:
    p = Program()
    cost = p.new(HERE + "StepCost", float(flops), float(size))
    machine = p.new(HERE + "Machine", float(rates[0]), float(rates[1]))
    p.see(p.call(HERE + "arithmetic_intensity", cost))
    p.see(p.call(HERE + "least_seconds", cost, machine))
    p.see(p.call(HERE + "bound_of", cost, machine))
    return worker.run(p)


def lists_stay(worker: Any, function: str, *more: int) -> Any:
    """The caller's two lists after a count of them."""
    p = Program()
    config = p.call("mini_vllm.model.config:ModelArgs.from_dict", LARGE)
    lists = p.call("builtins:list", [3, 1]), p.call("builtins:list", [5, 9])
    p.call(HERE + function, config, *lists, *more)
    p.see(list(lists))
    return worker.run(p)[0]


def test_01_3_the_callers_lists_stay(subject: Any) -> None:
    """Lengths are only read: the next step has its own."""
    assert lists_stay(subject, "step_flops") == [[3, 1], [5, 9]]


def test_01_4_the_callers_lists_stay(subject: Any) -> None:
    """The same of the bytes."""
    assert lists_stay(subject, "step_bytes", 2) == [[3, 1], [5, 9]]


def test_01_3_a_step_of_no_requests_computes_nothing(subject: Any) -> None:
    """No token, no pair, and no last token for the head."""
    assert cost(subject, "step_flops", LARGE, []) == 0


def test_01_4_a_step_of_no_requests_reads_the_weights(subject: Any, reference: Any) -> None:
    """Every weight is read once, however many requests use it: none, too."""
    mine = cost(subject, "step_bytes", LARGE, [], 2)
    assert mine == cost(reference, "step_bytes", LARGE, [], 2) > 0
