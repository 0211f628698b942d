"""docs/design.md: its arithmetic comes out, and agrees with the engine where the engine can say."""

from __future__ import annotations

import pytest

from labkit.quality import designs
from mini_vllm.model.config import ModelArgs
from mini_vllm.observability.roofline import step_cost
from tests.engine.core.build import add, make_request, make_scheduler, step

LINES = list(designs.lines(designs.PAGE.read_text(encoding="utf-8")))
LLAMA = ModelArgs.from_dict({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16", "tie_word_embeddings": False,
})  # fmt: skip


def value(section: str, name: str) -> float:
    return next(line.value for line in LINES if (line.section, line.name) == (section, name))


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.section}: {line.name}")
def test_a_line_comes_out_as_the_page_says(line: designs.Line) -> None:
    assert line.is_right, f"{line.expression} is {line.value:.6g}"


def test_what_a_step_reads_is_what_the_engine_counts() -> None:
    shared = int(value("A chat service", "shared"))
    counted = step_cost(LLAMA, [1] * shared, [3000] * shared, itemsize=2).bytes / 1e9
    assert counted == pytest.approx(value("A chat service", "read"), rel=0.02)


def test_eight_forks_hold_as_many_blocks_as_the_engine_gives_them() -> None:
    scheduler = make_scheduler(block_size=16, blocks=4000, budget=8192, seqs=8, max_model_len=8192)
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.num_free_blocks
    for plan in range(8):
        own = range(10_000 * (plan + 1), 10_000 * (plan + 1) + 400)
        add(scheduler, make_request(f"plan{plan}", [*range(6005), *own], max_tokens=20))
        computed = step(scheduler).num_scheduled_tokens[f"plan{plan}"]
        assert computed == (405 if plan else 6405)
    assert free - pool.num_free_blocks == value("An agent that forks", "with")


def test_your_own_numbers_are_computed_and_a_slip_is_named() -> None:
    mine = "## Mine\n```arithmetic\na = 2 * 1,000  -> 2,000 bytes\nb = a + 1  -> 5\n```\n"
    first, second = designs.lines(mine)
    assert (first.value, first.is_right, second.is_right) == (2000, True, False)
    with pytest.raises(ValueError, match="'c = d': name 'd' is not defined"):
        list(designs.lines("## Mine\n```arithmetic\nc = d\n```\n"))
    with pytest.raises(ValueError, match="is no line such as"):
        list(designs.lines("## Mine\n```arithmetic\nmany blocks\n```\n"))
