"""Adapters as PEFT means them, and the reasons for refusing one."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch

from mini_vllm import bundled
from mini_vllm.config import LoRAConfig
from mini_vllm.lora.checkpoint import LoRAModel, LoRAPair, shard_lora
from mini_vllm.lora.peft import PEFTHelper, parse_fine_tuned_lora_name
from mini_vllm.lora.registry import AdapterRegistry, read_adapter
from mini_vllm.lora.request import LoRARequest, parse_lora_modules
from mini_vllm.model.layout import Part
from tests.engine.lora.adapters import make_targets, random_tensors, write_adapter

Q = "model.layers.0.self_attn.q_proj"


def load(path: str, key: str = "a", max_lora_rank: int = 16) -> LoRAModel:
    config = LoRAConfig(max_lora_rank=max_lora_rank)
    return LoRAModel.from_local_checkpoint(key, path, make_targets(), config)


def test_names():
    assert parse_fine_tuned_lora_name(f"base_model.model.{Q}.lora_A.weight") == (Q, "A")
    assert parse_fine_tuned_lora_name(f"{Q}.lora_B.weight") == (Q, "B")
    twice = "base_model.model.base_model.model.x.lora_A.weight"
    assert parse_fine_tuned_lora_name(twice)[0] == "base_model.model.x"
    for bad in ("x.lora_A.default.weight", "x.lora_embedding_A", "x.weight", "x.lora_A.bias"):
        with pytest.raises(ValueError, match="not supported"):
            parse_fine_tuned_lora_name(bad)


def test_scaling_is_that_of_peft():
    import peft

    patterns = {"q_proj": 4, r"layers.1.mlp.up_proj": 7, r".*\.o_proj": 9, "proj": 100}
    for rslora in (False, True):
        config = PEFTHelper(8, 16, rslora, alpha_pattern=patterns)
        for module in (
            Q,
            "model.layers.1.mlp.up_proj",
            "model.layers.0.self_attn.o_proj",
            "k_proj",
        ):
            key = peft.utils.other.get_pattern_key(patterns.keys(), module)
            alpha = patterns.get(key, 16)
            for rank in (1, 3, 8):
                expected = alpha / (math.sqrt(rank) if rslora else rank)
                assert config.scaling(module, rank) == pytest.approx(expected)


def test_stacked_projections(tmp_path: Path):
    ranks = {"self_attn.q_proj": 4, "self_attn.v_proj": 2, "mlp.up_proj": 3}
    tensors = random_tensors(0, ranks, tuple(ranks))
    path = write_adapter(tmp_path / "a", tensors, alpha_pattern={"v_proj": 5})
    adapter = load(path)
    q, k, v = adapter.weights["model.layers.2.self_attn.qkv_proj"]
    gate, up = adapter.weights["model.layers.2.mlp.gate_up_proj"]
    assert k is None and gate is None and "model.layers.2.mlp.down_proj" not in adapter.weights
    name = "base_model.model.model.layers.2.self_attn.{}.lora_{}.weight"
    assert torch.equal(q.a, tensors[name.format("q_proj", "A")])
    torch.testing.assert_close(q.b, tensors[name.format("q_proj", "B")] * 4.0)
    torch.testing.assert_close(v.b, tensors[name.format("v_proj", "B")] * 2.5)
    assert adapter.rank == 4 and up.a.shape == (3, 192)


@pytest.mark.parametrize("parts", [2, 4])
def test_shards_add_up(parts: int):
    """Row-parallel: the ranks' deltas add up; column-parallel: they lie side by side."""
    generator = torch.Generator().manual_seed(parts)
    x = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    pair = LoRAPair(
        torch.randn(3, 16, generator=generator, dtype=torch.float64),
        torch.randn(8, 3, generator=generator, dtype=torch.float64),
    )
    whole = x @ pair.a.T @ pair.b.T
    columns = [slice(16 * i // parts, 16 * (i + 1) // parts) for i in range(parts)]
    rows = [slice(8 * i // parts, 8 * (i + 1) // parts) for i in range(parts)]
    total = torch.zeros_like(whole)
    for cut in columns:
        a, b = shard_lora(pair, Part(slice(0, 8), cut), torch.float64)
        total += x[:, cut] @ a.T @ b.T
    torch.testing.assert_close(total, whole)
    side = [shard_lora(pair, Part(cut, slice(0, 16)), torch.float64) for cut in rows]
    torch.testing.assert_close(torch.cat([x @ a.T @ b.T for a, b in side], dim=1), whole)


CONFIGS = {
    "dora": (dict(use_dora=True), "use_dora is set: DoRA"),
    "modules-to-save": (dict(modules_to_save=["lm_head"]), "modules_to_save is set"),
    "bias": (dict(bias="all"), "bias is 'all'"),
    "lora-bias": (dict(lora_bias=True), "lora_bias is set"),
    "replication": (dict(layer_replication=[[0, 2]]), "layer_replication"),
    "fan-in": (dict(fan_in_fan_out=True), "transposed"),
    "tokens": (dict(trainable_token_indices=[1]), "trainable_token_indices"),
    "type": (dict(peft_type="IA3"), "peft_type is 'IA3'"),
    "no-r": (dict(r=None), "r is None"),
    "r-0": (dict(r=0), "r is 0; it must be a whole number > 0"),
    "r-half": (dict(r=8.5), "r is 8.5"),
    "alpha": (dict(lora_alpha="16"), "lora_alpha is '16'"),
    "alpha-nan": (dict(lora_alpha=float("nan")), "lora_alpha is nan; it must be a number > 0"),
    "alpha-huge": (dict(lora_alpha=10**400), "lora_alpha is an integer of 1329 bits; it must be"),
    "alpha-too-large": (dict(lora_alpha=1e300), "beyond what torch.float32 holds, once its scale"),
    "rslora-word": (dict(use_rslora="false"), "use_rslora is 'false'; it must be true or false"),
    "alpha-list": (dict(alpha_pattern=[8]), "alpha_pattern is [8]; it must be an object"),
    "alpha-word": (dict(alpha_pattern={"q_proj": "8"}), "alpha_pattern has '8' for 'q_proj'"),
    "alpha-regex": (dict(alpha_pattern={"(": 8}), "'(' in alpha_pattern is no regular expression"),
    "alpha-flags": (dict(alpha_pattern={"(?i)Q_PROJ": 8}), "in alpha_pattern is no regular expre"),
    "alpha-pattern-huge": (dict(alpha_pattern={"q_proj": 10**400}), "1329 bits for 'q_proj'"),
    "split-off": (dict(init_lora_weights="pissa_niter_4"), "init_lora_weights is 'pissa_niter_4'"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_bad_config(name: str, tmp_path: Path):
    config, message = CONFIGS[name]
    path = write_adapter(tmp_path / "a", random_tensors(0), **config)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        load(path)
    assert path in str(error.value)


def test_reasons_come_together(tmp_path: Path):
    path = write_adapter(tmp_path / "a", random_tensors(0), use_dora=True, bias="all")
    with pytest.raises(ValueError, match=r"use_dora is set.*bias is 'all'"):
        load(path)


def change(name: str, tensor: torch.Tensor | None):
    tensors = random_tensors(0)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    return tensors


PREFIX = f"base_model.model.{Q}"
TENSORS = {
    "rank": (random_tensors(0, rank=32), "has rank 32, above max_lora_rank=16; raise it"),
    "half": (change(f"{PREFIX}.lora_B.weight", None), f"{Q} has lora_A but no lora_B"),
    "small-a": (
        change(f"{PREFIX}.lora_A.weight", torch.zeros(8, 96)),
        f"{Q}.lora_A.weight is [8, 96], the base asks for [8, 192]; was it trained for another",
    ),
    "swapped": (change(f"{PREFIX}.lora_B.weight", torch.zeros(8, 256)), "[8, 256], the base asks"),
    "vector": (change(f"{PREFIX}.lora_A.weight", torch.zeros(8)), "is [8], the base asks"),
    "nan": (change(f"{PREFIX}.lora_B.weight", torch.full((256, 8), math.nan)), "NaN or infinite"),
    "inf": (change(f"{PREFIX}.lora_A.weight", torch.full((8, 192), math.inf)), "NaN or infinite"),
    "int": (change(f"{PREFIX}.lora_A.weight", torch.zeros(8, 192).int()), "floating-point"),
    "eight-bits": (
        change(f"{PREFIX}.lora_A.weight", torch.zeros(8, 192).to(torch.float8_e4m3fn)),
        "is torch.float8_e4m3fn; it must hold floating-point numbers of 16 bits",
    ),
    "twice": (
        change(f"{Q}.lora_A.weight", torch.zeros(8, 192)),
        f"{PREFIX}.lora_A.weight is there twice, with and without 'base_model.model.'",
    ),
    "layer": (random_tensors(0, layers=5), ": the base has 4 layers"),
    "head": (
        random_tensors(0) | change("base_model.model.lm_head.lora_A.weight", torch.zeros(8, 192))
        | {"base_model.model.lm_head.lora_B.weight": torch.zeros(2048, 8)},
        "lm_head: adapters of the embedding or the head are not supported",
    ),
    "embedding": (
        random_tensors(0) | {"base_model.model.embed_tokens.lora_embedding_A": torch.ones(8, 9)},
        "embed_tokens.lora_embedding_A: adapters of the embedding or the head are not supported",
    ),
    "saved-module": (
        random_tensors(0) | {"base_model.model.lm_head.weight": torch.zeros(2048, 192)},
        "lm_head.weight: adapters of the embedding or the head are not supported; train it without",
    ),
    "embedding-beside-its-pair": (
        random_tensors(0) | {"base_model.model.embed_tokens.base_layer.weight": torch.ones(8, 9)},
        "embed_tokens.base_layer.weight: adapters of the embedding or the head",
    ),
    "foreign-module": (
        {f"language_model.{n}": t for n, t in random_tensors(0).items()},
        "those that can be adapted are down_proj, gate_proj",
    ),
    "none": ({}, "holds no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_bad_tensors(name: str, tmp_path: Path):
    tensors, message = TENSORS[name]
    path = write_adapter(tmp_path / "a", tensors)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path)


def test_bad_files(tmp_path: Path):
    path = write_adapter(tmp_path / "a", random_tensors(0))
    weights = tmp_path / "a" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(
        ValueError, match=f"cut off or corrupt, the file has {len(whole) - 100} bytes"
    ):
        load(path)
    weights.write_bytes(b"")
    with pytest.raises(ValueError, match="cut off or corrupt"):
        load(path)
    weights.rename(tmp_path / "a" / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"adapter_model.bin: convert that to safetensors"):
        load(path)
    shutil.rmtree(path)
    with pytest.raises(ValueError, match="must be a local folder"):
        load(path)
    write_adapter(tmp_path / "a/checkpoint-10", random_tensors(0))
    with pytest.raises(ValueError, match="its folder 'checkpoint-10' has one; give that"):
        load(path)
    shutil.rmtree(path)
    path = write_adapter(tmp_path / "a", random_tensors(0))
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load(path)
    (tmp_path / "a" / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not JSON"):
        load(path)
    (tmp_path / "a" / "adapter_config.json").write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        load(path)


def test_rank_is_that_of_the_tensors(tmp_path: Path):
    """A config with r=64 whose patterns make every module smaller is served."""
    path = write_adapter(tmp_path / "a", random_tensors(0, 4), r=64, rank_pattern={".*": 4})
    pair = load(path).weights["model.layers.0.self_attn.o_proj"][0]
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight"
    torch.testing.assert_close(pair.b, random_tensors(0, 4)[name] * 4.0)


def test_experts_that_all_tokens_use_have_the_name_of_the_file(tmp_path: Path) -> None:
    """GLM-4.5, DeepSeek and dots.llm1 say shared_experts, and our modules shared_expert."""
    ours = {
        name.replace(".self_attn.", ".mlp.shared_expert."): target
        for name, target in make_targets().items()
    }
    trained = {
        name.replace(".self_attn.", ".mlp.shared_experts."): tensor
        for name, tensor in random_tensors(0).items()
    }
    path = write_adapter(tmp_path / "a", trained)
    adapter = LoRAModel.from_local_checkpoint("a", path, ours, LoRAConfig())
    plain = load(write_adapter(tmp_path / "b", random_tensors(0)))
    assert adapter.weights.keys() == plain.weights.keys()


@pytest.mark.parametrize("theirs", ["model.", "model.language_model.", "language_model.model.", ""])
@pytest.mark.parametrize("ours", ["model.", "model.language_model."])
def test_a_language_model_is_the_same_in_a_model_that_sees(
    ours: str, theirs: str, tmp_path: Path
) -> None:
    """An adapter is named by the class that it was trained with; so is its alpha_pattern."""
    trained = {
        n.replace("model.layers", f"{theirs}layers"): t for n, t in random_tensors(0).items()
    }
    patterns = {f"{theirs}layers.0.self_attn.q_proj": 32}
    path = write_adapter(tmp_path / "a", trained, alpha_pattern=patterns)
    targets = {n.replace("model.", ours, 1): target for n, target in make_targets().items()}
    adapter = LoRAModel.from_local_checkpoint("a", path, targets, LoRAConfig())
    plain = load(write_adapter(tmp_path / "b", random_tensors(0), alpha_pattern={Q: 32}))
    assert adapter.weights.keys() == plain.weights.keys()
    for module, pairs in plain.weights.items():
        for mine, other in zip(adapter.weights[module], pairs, strict=True):
            assert torch.equal(mine.a, other.a) and torch.equal(mine.b, other.b)
    elsewhere = (f"{ours}layers.3.",)
    stage = {n: target for n, target in targets.items() if not n.startswith(elsewhere)}
    half = LoRAModel.from_local_checkpoint("a", path, stage, LoRAConfig(), elsewhere=elsewhere)
    assert len(half.weights) == 3 * len(plain.weights) // 4


def test_key_is_name_and_contents(tmp_path: Path):
    path = write_adapter(tmp_path / "a", random_tensors(0))
    registry = AdapterRegistry()
    first = registry.read(LoRARequest("pirate", 1, path))
    assert first.key == f"pirate@{read_adapter(path).digest}"
    assert load(path, key=first.key).key == first.key
    (tmp_path / "a" / "adapter_config.json").write_text(
        json.dumps({"r": 8, "lora_alpha": 32, "target_modules": []})
    )
    assert registry.read(LoRARequest("pirate", 1, path)).key != first.key
    with pytest.raises(ValueError, match="have changed since"):
        load(path, key=first.key)


def test_registry(tmp_path: Path):
    registry = AdapterRegistry()
    request = LoRARequest("pirate", 1, "x")
    assert registry.find(request) is None
    from mini_vllm.lora.registry import Adapter

    registry.adapters[1] = known = Adapter("pirate@1", "pirate", "x")
    assert registry.find(request) is known
    assert registry.find(LoRARequest("pirate", 1, "x", load_inplace=True)) is None
    assert registry.find(LoRARequest("other", 1, "y")) is None
    with pytest.raises(ValueError, match=r"lora_int_id 1 of 'other'.*belongs to 'pirate'"):
        registry.find(LoRARequest("other", 1, "y"), in_use={"pirate@1"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", 0, "p"), "lora_int_id is 0"),
        (("a", -3, "p"), "lora_int_id is -3"),
        (("a", True, "p"), "lora_int_id is True"),
        (("a", 1, ""), "lora_path of 'a' is empty"),
        (("a", 1), "lora_path of 'a' is empty"),
        (("", 1, "p"), "lora_name is empty"),
        ((3, 1, "p"), "lora_name is 3; it must be a string"),
        (("a", 1, None), "lora_path is None; it must be a string"),
        (("a", 1, "p", True), "base_model_name is True; it must be a string or None"),
        (("a", 1, "p", None, {"x": 1}), "tensorizer_config_dict is {'x': 1}; adapters are read"),
        (("a", 1, "p", None, None, 1), "load_inplace is 1; it must be True or False"),
        (("a", 1, "p", None, None, False, True), "is_3d_lora_weight is True; adapters are of"),
    ],
)
def test_bad_requests(arguments: tuple, message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        LoRARequest(*arguments)


def test_a_folder_may_be_a_path(tmp_path: Path):
    assert LoRARequest("a", 1, tmp_path).lora_path == str(tmp_path)


def test_fields_are_in_the_order_of_vllm():
    given = LoRARequest("a", 1, "p", "storyteller", None, True)
    assert (given.base_model_name, given.load_inplace) == ("storyteller", True)


def test_requests_are_equal_by_name():
    assert LoRARequest("a", 1, "x") == LoRARequest("a", 2, "y") != LoRARequest("b", 1, "x")


def test_words_of_the_command_line():
    """As vLLM's --lora-modules takes them, and the name of a bundled adapter."""
    words = ["a=x/y=z", '{"name": "b", "path": "p", "base_model_name": "m"}', "pirate"]
    found = parse_lora_modules(words)
    assert [(r.lora_name, r.lora_int_id) for r in found.values()] == [
        ("a", 1), ("b", 2), ("pirate", 3),
    ]  # fmt: skip
    assert [found[name].lora_path for name in "ab"] == ["x/y=z", "p"]
    assert [found[name].base_model_name for name in "ab"] == [None, "m"]
    assert found["pirate"].lora_path == str(bundled.adapter_path("pirate"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parrot"], "has 'parrot'; write NAME=PATH, or a bundled adapter: "),
        (["a=x", "a=y"], "has 'a' twice"),
        (['{"name": "a"}'], "which is not of the form"),
        (["{a=x"], "which is not of the form"),
        (['{"name": 3, "path": "x"}'], "lora_name is 3; it must be a string"),
        (["=x"], "lora_name is empty"),
    ],
)
def test_wrong_words_of_the_command_line(words: list[str], message: str):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_lora_modules(words)
