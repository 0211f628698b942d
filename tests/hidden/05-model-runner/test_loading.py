"""Checkpoints of random shapes: every value arrives, and each broken one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from labkit.process.worker import Program

many = settings(max_examples=20, phases=[Phase.generate])
LOADER = "mini_vllm.model.loader:"
LOAD_MODEL = "mini_vllm.model.build:load_model"
STACKS = {"qkv": "qkv", "gate_up": ("gate", "up")}

shapes = st.fixed_dictionaries(
    {
        "architectures": st.sampled_from(
            [["Qwen3ForCausalLM"], ["Qwen2ForCausalLM"], ["LlamaForCausalLM"]]
        ),
        "num_key_value_heads": st.integers(1, 2),
        "group": st.integers(1, 3),
        "head_dim": st.sampled_from([2, 4]),
        "intermediate_size": st.integers(3, 6),
        "num_hidden_layers": st.integers(1, 3),
        "tie_word_embeddings": st.booleans(),
    }
)


def config_of(shape: dict[str, Any]) -> dict[str, Any]:
    heads = shape["num_key_value_heads"] * shape["group"]
    rest = dict(vocab_size=11, hidden_size=8, max_position_embeddings=16, dtype="float32")
    return rest | {k: v for k, v in shape.items() if k != "group"} | {"num_attention_heads": heads}


def tensors_of(config: dict[str, Any]) -> dict[str, Tensor]:
    """What a checkpoint for this config holds, filled with different numbers."""
    hidden, head = config["hidden_size"], config["head_dim"]
    rows = {
        "q": config["num_attention_heads"] * head,
        "k": config["num_key_value_heads"] * head,
        "v": config["num_key_value_heads"] * head,
    }
    kind = config["architectures"][0]
    sizes: dict[str, list[int]] = {"model.norm.weight": [hidden]}
    sizes["model.embed_tokens.weight"] = [config["vocab_size"], hidden]
    if not config["tie_word_embeddings"]:
        sizes["lm_head.weight"] = [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for part, number in rows.items():
            sizes[f"{at}self_attn.{part}_proj.weight"] = [number, hidden]
            if kind == "Qwen2ForCausalLM":
                sizes[f"{at}self_attn.{part}_proj.bias"] = [number]
        if kind == "Qwen3ForCausalLM":
            for part in "qk":
                sizes[f"{at}self_attn.{part}_norm.weight"] = [head]
        sizes[f"{at}self_attn.o_proj.weight"] = [hidden, rows["q"]]
        for part in ("gate", "up"):
            sizes[f"{at}mlp.{part}_proj.weight"] = [config["intermediate_size"], hidden]
        sizes[f"{at}mlp.down_proj.weight"] = [hidden, config["intermediate_size"]]
        for part in ("input_layernorm", "post_attention_layernorm"):
            sizes[f"{at}{part}.weight"] = [hidden]
    tensors, start = {}, 0
    for name, size in sizes.items():
        count = int(np.prod(size))
        tensors[name] = torch.arange(start, start + count, dtype=torch.float32).view(size)
        start += count
    return tensors


def parameters_of(tensors: dict[str, Tensor], tied: bool) -> dict[str, list[Any]]:
    """Our parameters, made from the checkpoint by hand."""
    parts = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}
    stacks: dict[str, list[Tensor]] = {}
    for name, tensor in tensors.items():
        for part, stack in parts.items():
            name = name.replace(f".{part}_proj.", f".{stack}_proj.")
        stacks.setdefault(name, []).append(tensor)
    whole = {name: torch.cat(pieces).tolist() for name, pieces in stacks.items()}
    if tied:
        whole["lm_head.weight"] = whole["model.embed_tokens.weight"]
    return whole


def write(
    p: Program, config: dict[str, Any], tensors: dict[str, Tensor], files: int, kind: str
) -> Any:
    """Steps that write a checkpoint where the child runs: it may not see this process's files."""
    box = p.call("tempfile:TemporaryDirectory")  # its end is the program's

    def path(name: str) -> Any:
        return p.call("os.path:join", box.name, name)

    names = {name: f"part-{i % files}.safetensors" for i, name in enumerate(sorted(tensors))}
    if files > 1:
        index = json.dumps({"weight_map": names})
        p.call("pathlib:Path", path("model.safetensors.index.json")).write_text(index)
    for file in sorted(set(names.values())):
        dtype = p.name(f"torch:{kind}")
        part = {
            n: p.call("torch:tensor", t.numpy(), dtype=dtype)
            for n, t in tensors.items()
            if names[n] == file
        }
        p.call("safetensors.torch:save_file", part, path(file))
    p.call("pathlib:Path", path("config.json")).write_text(json.dumps(config))
    return box


def load(
    subject: Any,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    files: int = 1,
    kind: str = "float32",
    cut: int = 0,
) -> Any:
    """The parameters of a checkpoint as lists, or {"!raises": ...}.

    Args:
        files: that it is split into.
        kind: the dtype in the files.
        cut: bytes that are missing at the end of the first file.
    """
    p = Program()
    box = write(p, config, tensors, files, kind)
    if cut:
        file = p.call("os.path:join", box.name, "part-0.safetensors")
        size = p.call("os.path:getsize", file)
        p.call("os:truncate", file, p.call("operator:sub", size, cut))
    p.see("written")
    model = p.call(LOAD_MODEL, box.name, dtype="float32")
    p.see(p.call("builtins:dict", model.state_dict()))
    written, seen = subject.run(p)
    assert written == "written"
    if "!raises" in seen:
        return seen
    return {name: np.asarray(a).tolist() for name, a in seen.items()}


@many
@given(shape=shapes, files=st.integers(1, 3))
def test_05_7_every_value_arrives(subject: Any, shape: dict[str, Any], files: int) -> None:
    """Grouped heads, biases, norms, tied heads, one file or three."""
    config = config_of(shape)
    tensors = tensors_of(config)
    yours = load(subject, config, tensors, files)
    assert yours == parameters_of(tensors, config["tie_word_embeddings"])


@pytest.mark.history("nano-vllm#17")
def test_05_7_bug_nano_vllm_17_biases_are_parameters_too(subject: Any) -> None:
    """Qwen2's biases on q, k and v were no parameters and were not loaded."""
    shape = dict(
        architectures=["Qwen2ForCausalLM"],
        num_key_value_heads=2,
        group=2,
        head_dim=4,
        intermediate_size=5,
        num_hidden_layers=1,
        tie_word_embeddings=False,
    )
    config = config_of(shape)
    tensors = tensors_of(config)
    yours = load(subject, config, tensors)
    right = [tensors[f"model.layers.0.self_attn.{part}_proj.bias"] for part in "qkv"]
    assert yours["model.layers.0.self_attn.qkv_proj.bias"] == torch.cat(right).tolist()


def small() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = config_of(
        dict(
            architectures=["Qwen3ForCausalLM"],
            num_key_value_heads=1,
            group=2,
            head_dim=4,
            intermediate_size=5,
            num_hidden_layers=2,
            tie_word_embeddings=True,
        )
    )
    return config, tensors_of(config)


Change = Callable[[dict[str, Tensor]], None]


def drop(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, tensor: Tensor) -> Change:
    return lambda tensors: tensors.__setitem__(name, tensor)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    "change",
    [
        drop(UP),
        drop("model.norm.weight"),
        put("model.layers.2.mlp.up_proj.weight", torch.ones(5, 8)),
        put("model.layers.1.self_attn.q_proj.bias", torch.ones(8)),
        put(UP, torch.ones(4, 8)),
        put(UP, torch.ones(1, 8)),
        put(UP, torch.ones(8, 5)),
        put("model.norm.weight", torch.ones(1)),
        put("model.norm.weight", torch.ones(8, 1)),
        put(UP, torch.ones(5, 8, 1)),
        put("lm_head.bias", torch.ones(11)),
        put("draft.lm_head.weight", torch.ones(11, 8)),
        put("model.norm.weight", torch.ones(1, 8)),
        put("model.layers.0.self_attn.rotary_emb.weight", torch.ones(2)),
        put("model.layers.0.self_attn.inv_freq", torch.ones(2)),
    ],
    ids=[
        "no up",
        "no norm",
        "a layer too many",
        "a bias",
        "short",
        "one row",
        "turned",
        "scalar",
        "a column",
        "a third dimension",
        "a head's bias",
        "another head",
        "a dimension in front",
        "weights of a rotary_emb",
        "frequencies of something else",
    ],
)
def test_05_8_what_does_not_fit_is_refused(subject: Any, reference: Any, change: Change) -> None:
    """Missing, unexpected, or of another shape, also where torch would not complain."""
    config, tensors = small()
    change(tensors)
    assert load(reference, config, tensors) == {"!raises": "ValueError"}
    assert load(subject, config, tensors) == {"!raises": "ValueError"}


@pytest.mark.parametrize(
    "change",
    [drop(UP), put("model.layers.2.mlp.up_proj.weight", torch.ones(5, 8))],
    ids=["no up", "a layer too many"],
)
def test_05_8_names_are_compared_before_the_first_copy(subject: Any, change: Change) -> None:
    """A folder that is refused leaves the model as it was, and not half replaced."""
    config, tensors = small()
    change(tensors)
    p = Program()
    box = write(p, config, tensors, 2, "float32")
    model = p.call(LOAD_MODEL, box.name, dtype="float32", load_format="dummy")
    p.see(p.call("copy:deepcopy", p.call("builtins:dict", model.state_dict())))
    load_weights, folder = p.name(f"{LOADER}load_weights"), p.call("pathlib:Path", box.name)
    p.refuse("ValueError", load_weights, model, folder)
    p.see(p.call("builtins:dict", model.state_dict()))
    before, after = subject.run(p)
    assert list(after) == list(before), after
    assert [name for name in before if not np.array_equal(before[name], after[name])] == []


@many
@given(shape=shapes, files=st.integers(1, 3), data=st.data())
def test_05_8_any_tensor_may_be_the_wrong_one(
    subject: Any, shape: dict[str, Any], files: int, data: st.DataObject
) -> None:
    """One tensor of any checkpoint is missing, turned or too long, or one too many is there; with
    all as it should be every value arrives."""
    config = config_of(shape)
    tensors = tensors_of(config)
    whole = parameters_of(tensors, config["tie_word_embeddings"])
    change = data.draw(st.sampled_from(["nothing", "missing", "longer", "shorter", "another"]))
    name = data.draw(st.sampled_from(sorted(tensors)))
    if change == "missing":
        del tensors[name]
    elif change == "longer":
        tensors[name] = torch.cat([tensors[name], tensors[name][-1:]])
    elif change == "shorter":
        tensors[name] = tensors[name][:1] if len(tensors[name]) > 1 else tensors[name][:0]
    elif change == "another":
        tensors[f"{name}.{data.draw(st.text('abc', min_size=1, max_size=5))}"] = tensors[name]
    right = whole if change == "nothing" else {"!raises": "ValueError"}
    assert load(subject, config, tensors, files) == right, (change, name)


def test_05_8_what_is_not_needed_does_no_harm(subject: Any) -> None:
    """Rotary frequencies of an old checkpoint, and a copy of the tied head."""
    config, tensors = small()
    right = parameters_of(tensors, True)
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert load(subject, config, tensors, files=2) == right


@pytest.mark.parametrize("shape", [[2, 3], [2, 2], [6], [1, 3, 2], [3, 1]], ids=str)
def test_05_8_a_refused_tensor_changes_nothing(subject: Any, shape: list[int]) -> None:
    """As many numbers, fewer, or such as torch would repeat: not one of them is copied, and the
    message has both shapes."""
    p = Program()
    target, tensor = p.call("torch:zeros", 3, 2), p.call("torch:ones", shape)
    copy_weight, file = p.name(f"{LOADER}copy_weight"), p.call("pathlib:Path", "model.safetensors")
    sizes = (r"\D+".join(map(str, size)) for size in (shape, [3, 2]))
    words = "".join(rf"(?=.*\b{size}\b)" for size in sizes)
    p.refuse("ValueError", copy_weight, target, tensor, "norm", file, says=rf"(?s){words}")
    p.see(target.tolist())
    assert subject.run(p) == [[[0.0, 0.0]] * 3], "a tensor that was refused has been copied"


def test_05_8_a_file_for_each_tensor(subject: Any) -> None:
    """A large model is cut into dozens of files."""
    config, tensors = small()
    assert load(subject, config, tensors, files=len(tensors)) == parameters_of(tensors, True)


def test_05_8_each_value_is_copied_once(subject: Any) -> None:
    """From the file's memory into the parameter; a copy between the two costs a large model as much
    memory again as its largest file."""
    config, _ = small()
    tensors = tensors_of(config | {"tie_word_embeddings": False})
    p = Program()
    box = write(p, config | {"tie_word_embeddings": False}, tensors, 1, "float32")
    model = p.call(LOAD_MODEL, box.name, dtype="float32")
    folder = p.call("pathlib:Path", box.name)
    load_weights = p.name(f"{LOADER}load_weights")
    p.see(p.call("labkit.inside.cost:elements", load_weights, model, folder))
    assert subject.run(p)[0] < 1.5 * sum(tensor.numel() for tensor in tensors.values())


def test_05_8_half_precision_is_widened(subject: Any) -> None:
    """A bfloat16 file fills a float32 model with the same values."""
    config, tensors = small()
    widened = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    assert load(subject, config, tensors, kind="bfloat16") == parameters_of(widened, True)


def test_05_8_the_last_bytes_count(subject: Any) -> None:
    """A download that was cut off is refused, not half loaded."""
    config, tensors = small()
    assert load(subject, config, tensors, cut=4) == {"!raises": "ValueError"}


@many
@given(kind=st.sampled_from(["float32", "float16", "bfloat16"]), data=st.data())
def test_05_8_values_arrive_as_they_are(subject: Any, kind: str, data: st.DataObject) -> None:
    """Fractions, large and tiny numbers: each as exactly as the file has it."""
    config, tensors = small()
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    scale = data.draw(st.sampled_from([1.0, 3e-5, 2e4]))
    dtype = getattr(torch, kind)
    for name, tensor in tensors.items():
        drawn = torch.randn(tensor.shape, generator=generator) * scale
        tensors[name] = drawn.clamp(-6e4, 6e4).to(dtype).float()
    assert load(subject, config, tensors, kind=kind) == parameters_of(tensors, True)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("layers.0.mlp.gate_up_proj.weight", ["layers.0.mlp.gate_proj.weight",
                                              "layers.0.mlp.up_proj.weight"]),
        ("model.layers.1234.self_attn.qkv_proj.bias", [
            f"model.layers.1234.self_attn.{part}_proj.bias" for part in "qkv"]),
        ("model.layers.1234.self_attn.o_proj.weight", None),
        ("model.embed_tokens.weight", None),
        ("model.layers.2.self_attn.qkv_projection.weight", None),
        ("model.layers.2.mlp.my_gate_up_proj.weight", None),
    ],
)  # fmt: skip
def test_05_7_names_anywhere_in_a_model(subject: Any, name: str, parts: list[str] | None) -> None:
    """Whatever stands before, however many layers there are; a name that only looks like a stack's
    keeps itself."""
    p = Program()
    p.see(p.call(f"{LOADER}checkpoint_names", name))
    assert subject.run(p) == [parts or [name]]
