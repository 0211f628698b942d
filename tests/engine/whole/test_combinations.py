"""Any legal combination of features says, token for token, what the plain engine says.

`FEATURES` has one line for each feature; a phase adds its own. A draw takes some of them, with
random limits around. `mini_vllm.config.combinations` refuses what does not go together; anything
else must run. Greedy, in float32.
"""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from PIL import Image

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.config.combinations import ROWS
from mini_vllm.lora.request import LoRARequest
from mini_vllm.policies import POLICIES
from mini_vllm.worker.cuda_graphs import record_eagerly


def connector(name: str, **extra: Any) -> dict[str, Any]:
    config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    return {"kv_transfer_config": config}


def windows(window: int, num_layers: int) -> dict[str, Any]:
    """A window in so many of the model's four layers."""
    kinds = ["sliding_attention"] * num_layers + ["full_attention"] * (4 - num_layers)
    return {
        "hf_overrides": {
            "use_sliding_window": True, "sliding_window": window, "layer_types": kinds,
        }
    }  # fmt: skip


@cache
def with_states() -> str:
    """A model three of whose four layers keep a state, which fits a block of 16 tokens."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    config = dict(
        architectures=["Qwen3_5ForCausalLM"], vocab_size=2048, hidden_size=32, head_dim=16,
        intermediate_size=48, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=128, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=16, linear_conv_kernel_dim=4,
    )  # fmt: skip
    Path(folder.name, "config.json").write_text(json.dumps(config))
    return folder.name


@cache
def store_folder() -> str:
    """One for all draws: what belongs to another model or format must not be found."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


FEATURES: dict[str, Callable[[Random], dict[str, Any]]] = {
    "small blocks": lambda rng: {"block_size": rng.choice((1, 4, 8)), "num_gpu_blocks": 256},
    "small budget": lambda rng: {"max_num_batched_tokens": rng.choice((5, 17, 64))},
    "few rows": lambda rng: {"max_num_seqs": rng.choice((1, 2, 3))},
    "tight pool": lambda rng: {"num_gpu_blocks": 5, "block_size": 16},
    "no prefix caching": lambda rng: {"enable_prefix_caching": False},
    "capped chunks": lambda rng: {"long_prefill_token_threshold": rng.choice((3, 16))},
    "no reserve": lambda rng: {"scheduler_reserve_full_isl": False},
    "priorities": lambda rng: {"policy": "priority"},
    "lookahead slots": lambda rng: {"num_lookahead_tokens": rng.choice((1, 4))},
    "adapters": lambda rng: {"enable_lora": True, "max_loras": rng.choice((1, 2, 4))},
    "n-gram drafts": lambda rng: {
        "speculative_config": {
            "method": "ngram",
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
            "num_speculative_tokens": rng.choice((1, 4)),
        }
    },
    "draft model": lambda rng: {
        "speculative_config": {
            "method": "draft_model",
            "model": "storyteller-draft",
            "num_speculative_tokens": rng.choice((1, 3)),
        }
    },
    "eagle": lambda rng: {
        "speculative_config": {
            "method": "eagle",
            "model": "storyteller-eagle",
            "num_speculative_tokens": rng.choice((1, 3)),
        }
    },
    "medusa": lambda rng: {
        "speculative_config": {
            "method": "medusa",
            "model": "storyteller-medusa",
            "num_speculative_tokens": rng.choice((2, 4)),
        }
    },
    "int8 cache": lambda rng: {"kv_cache_dtype": "int8_per_token_head"},
    "fp8 weights": lambda rng: {"quantization": "fp8"},
    "KV on the host": lambda rng: connector("OffloadingConnector", cpu_bytes_to_use=1 << 22),
    "KV in a store": lambda rng: connector(
        "SharedStorageConnector", shared_storage_path=store_folder()
    ),
    "KV events": lambda rng: {
        "kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}
    },
    "windows": lambda rng: windows(rng.choice((3, 8, 19)), rng.choice((2, 3, 4))),
    "states": lambda rng: {
        "model": with_states(), "tokenizer": "storyteller", "load_format": "dummy",
    },
    "pictures": lambda rng: {"model": "storyteller-vision", "encoder_cache_size": 64},
    "another scheduler": lambda rng: {
        "scheduler_cls": POLICIES[rng.choice(sorted(POLICIES))],
        "num_cpu_blocks": 64,
        "max_num_batched_tokens": 128,
    },
}  # fmt: skip
"""By name: arguments of `LLM` that switch a feature on, drawn from `rng`."""
WORKERS: dict[str, dict[str, Any]] = {
    "two shards": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "both": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "a worker in a process": {"distributed_executor_backend": "mp"},
    "two engines": {"data_parallel_size": 2},
}
"""The same for workers elsewhere. Each takes seconds to start, so they are drawn in slow tests."""
NOT_LATE = ("speculative_config", "kv_transfer_config", "scheduler_cls")
"""What late results do not go with. With all else every other draw has them."""
CHANGING = (
    "kv_cache_dtype", "quantization", "model", "tokenizer", "load_format", "hf_overrides",
)  # fmt: skip
"""What makes other tokens right: those of an engine that has this, and nothing else."""
DRAWS = range(110, 136)
"""Seeds; so few draws have every feature only from some seeds on."""
MAX_TOKENS = 12
PROMPTS = (
    [200, 201, 202],
    list(range(300, 322)),
    list(range(300, 316)) + [500, 501],
    [700] * 9,
    list(range(300, 322)),
)
"""Short and long, one twice, two with a common head."""

CONSTRAINTS: tuple[Any, ...] = (
    None, {"regex": r"[a-z ]+\. [A-Z][a-z ]+\."}, None, {"json": {"type": "object"}}, None,
)  # fmt: skip
"""Of each prompt; the last is the second again, without one."""


ADAPTERS = (None, "pirate", "json", None, "pirate")
"""What each prompt uses, if there are adapters."""


@cache
def plain_tokens(adapters: bool, changing: str = "{}") -> list[list[int]]:
    """Tokens of an engine that has only what changes them, in JSON. Layers with a window keep the
    whole text."""
    options = {"enable_lora": True, "max_loras": 2} if adapters else {}
    options |= json.loads(changing)
    if "hf_overrides" in options:
        options["disable_hybrid_kv_cache_manager"] = True
    return run(options)


def run(options: dict[str, Any]) -> list[list[int]]:
    """Greedy tokens of all prompts; they come together, so that the features meet in one batch."""
    usual = {"num_gpu_blocks": 256, "max_model_len": 64, "dtype": "float32"}
    options = dict(options)
    is_recorded = options.pop("recordings", False)
    llm = LLM(**({"model": "storyteller"} | usual | options))
    if is_recorded:
        record(llm)
    sees = options.get("model") == "storyteller-vision"
    params = [
        SamplingParams(
            temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True, structured_outputs=constraint
        )
        for constraint in CONSTRAINTS
    ]
    priority = [number % 2 for number in range(len(PROMPTS))]
    has_adapters = (
        "enable_lora" in options and "model" not in options
    )  # they were made for storyteller
    loras = [lora_request(name) if has_adapters else None for name in ADAPTERS]
    prompts = [with_picture(index) for index in range(len(PROMPTS))] if sees else list(PROMPTS)
    try:
        outputs = llm.generate(
            prompts, params, use_tqdm=False, priority=priority, lora_request=loras
        )
    finally:
        llm.shutdown()
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return [output.outputs[0].token_ids for output in outputs]


def record(llm: LLM) -> None:
    """Replay decodes and samplers from now on, if a GPU would; here a replay computes again."""
    worker = getattr(llm.engine.core.executor, "worker", None)
    if worker is not None and worker.can_record():
        limit = worker.config.scheduler.max_num_batched_tokens
        worker.model_runner.warm_up(min(8, limit), record_eagerly)
        assert worker.model_runner.head is not None


def with_picture(index: int) -> dict[str, Any]:
    """A prompt behind a picture; the second and the last have the same."""
    shade = 60 * (index if index < 4 else 1)
    picture = Image.new("RGB", (32, 32), (shade, 255 - shade, 90))
    token_ids = [2048, 2050, 2049, *PROMPTS[index]]
    return {"prompt_token_ids": token_ids, "multi_modal_data": {"image": picture}}


def lora_request(name: str | None) -> LoRARequest | None:
    if name is None:
        return None
    return LoRARequest(name, bundled.ADAPTERS.index(name) + 1, str(bundled.adapter_path(name)))


def draw(seed: int) -> tuple[list[str], dict[str, Any]]:
    """Some features, and their arguments together; of two that set the same, the later counts."""
    rng = Random(seed)
    names = rng.sample(sorted(FEATURES), rng.randint(2, 5))
    options: dict[str, Any] = {}
    for name in names:
        options |= FEATURES[name](rng)
    if "states" in names:
        settle_states(options)
    if "scheduler_cls" in options:  # some end a prompt that is longer than a step
        options["max_num_batched_tokens"] = 128
    if seed % 2 and not set(NOT_LATE) & options.keys():
        names, options = [*names, "late results"], options | {"async_scheduling": True}
    if seed % 4 > 1 and "distributed_executor_backend" not in options:
        names, options = [*names, "recordings"], options | {"recordings": True}
    return names, options


def settle_states(options: dict[str, Any]) -> None:
    """What another model is asked for otherwise: blocks for a state a layer, and no windows."""
    if options["model"] == "storyteller-vision":  # drawn later
        options.pop("load_format")
        return
    for name in ("hf_overrides", "encoder_cache_size"):
        options.pop(name, None)
    if "num_gpu_blocks" in options:
        options["num_gpu_blocks"] = max(options["num_gpu_blocks"], 20)


@pytest.mark.parametrize("seed", DRAWS)
def test_a_legal_combination_changes_no_token(seed: int) -> None:
    check(*draw(seed))


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("seed", range(6))
def test_a_legal_combination_changes_no_token_on_many_workers(seed: int, workers: str) -> None:
    names, options = draw(seed)
    check([*names, workers], options | WORKERS[workers])


def check(names: list[str], options: dict[str, Any]) -> None:
    try:
        tokens = run(options)
    except ValueError as error:
        reasons = [*(row.why for row in ROWS), "of its own; use another, or leave kv_events"]
        reasons.append("holds the state of a layer, and a step must be able to fill a block")
        assert any(reason in str(error) for reason in reasons), f"{names}: {error}"
        return
    changing = {key: options[key] for key in CHANGING if key in options}
    if "quantization" in options and "tensor_parallel_size" in options:
        changing["tensor_parallel_size"] = 2  # each shard finds scales of its own
    plain = plain_tokens("enable_lora" in options, json.dumps(changing))
    assert tokens == plain, f"{names}: {options}"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_events_tell_of_the_blocks_that_a_scheduler_shares_out(name: str) -> None:
    """A policy with a KV cache manager of its own cannot have it replaced by one that tells."""
    options = {
        "scheduler_cls": POLICIES[name], "num_cpu_blocks": 64, "max_num_batched_tokens": 128
    } | FEATURES["KV events"](Random(0))  # fmt: skip
    if name in ("minivllm", "static", "vllm-v1"):
        assert run(options) == plain_tokens(False)
        return
    with pytest.raises(ValueError, match=r"which allocates blocks with a \w+ of its own"):
        run(options)


def test_every_feature_is_drawn() -> None:
    drawn = {name for seed in DRAWS for name in draw(seed)[0]}
    assert drawn == {*FEATURES, "late results", "recordings"}
