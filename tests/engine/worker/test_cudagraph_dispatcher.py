"""Which graph serves a step, beside vLLM's own dispatcher at the pin."""

from __future__ import annotations

import ast
import dataclasses
import enum
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.course.root import ROOT
from mini_vllm.worker.cudagraph_dispatcher import CUDAGraphMode, dispatch, is_uniform_decode

UPSTREAM = ROOT / ".upstream" / "vllm-0.22.1" / "vllm"


def part_of(file: str, *names: str) -> str:
    """The source of some top-level definitions of a file."""
    tree = ast.parse((UPSTREAM / file).read_text())
    wanted = [node for node in tree.body if getattr(node, "name", None) in names]
    assert len(wanted) == len(names)
    return "\n\n".join(ast.unparse(node) for node in wanted)


def upstream() -> dict[str, Any]:
    """vLLM's dispatcher and what it stands on, without the rest of vLLM."""
    names: dict[str, Any] = {"enum": enum, "dataclass": dataclasses.dataclass}
    exec(part_of("config/compilation.py", "CUDAGraphMode"), names)
    exec(part_of("forward_context.py", "BatchDescriptor"), names)
    dispatcher = part_of("v1/cudagraph_dispatcher.py", "CudagraphDispatcher")
    line = "from vllm.compilation.breakable_cudagraph import is_breakable_cudagraph_enabled"
    assert line in dispatcher
    from itertools import product

    names |= {"AbstractSet": set, "replace": dataclasses.replace, "product": product}
    names |= {"VllmConfig": object, "logger": logging.getLogger(__name__)}
    names |= {"is_breakable_cudagraph_enabled": lambda: True}
    exec(dispatcher.replace(line, "pass"), names)
    return names


def make(names: dict[str, Any], mode: str, sizes: list[int], reqs: int, query_len: int) -> Any:
    """vLLM's dispatcher of an engine with such settings."""
    compilation = SimpleNamespace(
        cudagraph_mode=names["CUDAGraphMode"][mode],
        is_attention_compiled_piecewise=lambda: True,
        cudagraph_capture_sizes=sizes,
        max_cudagraph_capture_size=sizes[-1],
        compile_sizes=None,
    )
    config = SimpleNamespace(
        compilation_config=compilation,
        speculative_config=SimpleNamespace(num_speculative_tokens=query_len - 1),
        lora_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=reqs),
    )
    dispatcher = names["CudagraphDispatcher"](config)
    dispatcher.initialize_cudagraph_keys(compilation.cudagraph_mode, query_len)
    return dispatcher


@pytest.mark.upstream
@pytest.mark.skipif(not UPSTREAM.is_dir(), reason="upstream's source: make upstream")
def test_the_same_graphs_as_upstreams() -> None:
    """20,000 steps in all modes: the same kind of graph, and the same descriptor."""
    names, rng = upstream(), random.Random(1)
    full = names["CUDAGraphMode"].FULL
    for _ in range(1000):
        query_len, reqs = rng.choice([1, 1, 2, 3, 4]), rng.randint(1, 40)
        mode = rng.choice([mode.name for mode in CUDAGraphMode])
        sizes = sorted({query_len * rng.randint(1, 60) for _ in range(rng.randint(1, 8))})
        theirs = make(names, mode, sizes, reqs, query_len)
        for _ in range(20):
            uniform, off = rng.random() < 0.5, rng.random() < 0.3
            tokens = query_len * rng.randint(1, reqs) if uniform else rng.randint(1, sizes[-1] + 5)
            kind, padded = theirs.dispatch(tokens, uniform, invalid_modes={full} if off else None)
            ours, descriptor = dispatch(
                CUDAGraphMode[mode], sizes, reqs, tokens, uniform, query_len, off
            )
            assert ours.name == kind.name, (mode, sizes, reqs, tokens, uniform, query_len, off)
            assert dataclasses.astuple(descriptor) == dataclasses.astuple(padded)[:3]


def test_steps_without_a_decode() -> None:
    assert is_uniform_decode(4, 4, 1, 1)
    assert not is_uniform_decode(4, 3, 2, 1)
