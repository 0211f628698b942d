"""What would change results and is not computed is refused by name; nothing is assumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.families.record import read
from benchmarks.families.tiny import write
from mini_vllm import LLM
from mini_vllm.model.build import load_model
from mini_vllm.model.config import ModelArgs, load_config
from mini_vllm.model.families.tripwire import EFFECTS, SCALES

ANSWERS = read()

PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA = {
    "model.embed_tokens.weight": [128, 32],
    "lm_head.weight": [128, 32],
    "model.norm.weight": [32],
    "model.layers.0.input_layernorm.weight": [32],
    "model.layers.0.post_attention_layernorm.weight": [32],
    "model.layers.0.self_attn.q_proj.weight": [32, 32],
    "model.layers.0.self_attn.k_proj.weight": [16, 32],
    "model.layers.0.self_attn.v_proj.weight": [16, 32],
    "model.layers.0.self_attn.o_proj.weight": [32, 32],
    "model.layers.0.mlp.gate_proj.weight": [48, 32],
    "model.layers.0.mlp.up_proj.weight": [48, 32],
    "model.layers.0.mlp.down_proj.weight": [32, 48],
}


BIASES = {
    "model.layers.0.self_attn.q_proj.bias": [32],
    "model.layers.0.self_attn.k_proj.bias": [16],
    "model.layers.0.self_attn.v_proj.bias": [16],
}
HAVE_RULES = {"attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention",
              "vision_config"}  # fmt: skip


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        load_model(folder, **options)
    return str(error.value)


def test_an_entry_that_is_switched_on_is_refused_by_name() -> None:
    for name, part in EFFECTS.items():
        if name in HAVE_RULES:
            continue
        says = rf"config.json: {name} is 3; .*without {re.escape(part)}"
        with pytest.raises(ValueError, match=says):
            ModelArgs.from_dict({**PLAIN, name: 3})


def test_an_entry_that_is_switched_off_is_none() -> None:
    plain, names = ModelArgs.from_dict(PLAIN), EFFECTS.keys() - HAVE_RULES - {"num_experts"}
    for value in (None, 0):
        assert ModelArgs.from_dict({**PLAIN, **dict.fromkeys(names, value)}) == plain
    assert ModelArgs.from_dict({**PLAIN, **dict.fromkeys(SCALES, 1.0)}) == plain
    assert ModelArgs.from_dict({**PLAIN, "no_rope_layers": [1]}) == plain


def test_a_family_that_is_not_known_hears_what_it_would_need(tmp_path: Path) -> None:
    more = {"architectures": ["FalconH1ForCausalLM"], "mamba_d_state": 64, "key_multiplier": 0.5}
    write(tmp_path, PLAIN | more, LLAMA)
    for message in (refused(tmp_path), _refused_by_engine(tmp_path)):
        assert "['FalconH1ForCausalLM'] is not supported" in message
        assert "a state (Mamba) (mamba_d_state 64)" in message
        assert "a scale (key_multiplier 0.5)" in message
        assert "hf_overrides" not in message


def _refused_by_engine(folder: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        LLM(folder, skip_tokenizer_init=True, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("more", "same"),
    [
        ({}, "LlamaForCausalLM"),
        (BIASES, "Qwen2ForCausalLM"),
        ({f"model.layers.0.self_attn.{p}_norm.weight": [8] for p in "qk"}, "Qwen3ForCausalLM"),
    ],
)  # fmt: skip
def test_one_that_has_a_known_familys_tensors_is_offered_it(
    more: dict[str, list[int]], same: str, tmp_path: Path
) -> None:
    """The user must say so; with the option that the message names, it runs."""
    config = PLAIN | {"architectures": ["BrandNewForCausalLM"], "head_dim": 8}
    write(tmp_path, config, LLAMA | more)
    message = _refused_by_engine(tmp_path)
    option = f'hf_overrides={{"architectures": ["{same}"]}}'
    assert message == refused(tmp_path) and option in message
    assert type(
        load_model(tmp_path, hf_overrides={"architectures": [same]})
    ).__name__ == same.replace("Qwen2", "Llama")
    write(tmp_path, config, LLAMA | more | {"model.layers.0.self_attn.sinks": [4]})
    assert "hf_overrides" not in refused(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ("model.layers.0.self_attn.q_norm.weight", "norms of queries and keys"),
        ("model.layers.0.self_attn.sinks", "sinks"),
        ("model.layers.0.mlp.experts.0.up_proj.weight", "experts"),
        ("model.layers.0.self_attn.q_proj.bias", "biases; see attention_bias and mlp_bias"),
        ("score.weight", "a head that classifies"),
        ("model.layers.0.mixer.A_log", "a state"),
    ],
)
def test_a_tensor_that_is_not_read_is_refused_with_what_it_belongs_to(
    tensor: str, part: str, tmp_path: Path
) -> None:
    write(tmp_path, PLAIN, LLAMA | {tensor: [4]})
    message = refused(tmp_path)
    assert f"first '{tensor}'" in message and f"(the first belongs to: {part})" in message


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    answer = ANSWERS["deepseek_v3"]
    lost = "model.layers.2.mlp.experts.3.down_proj.weight"
    shapes = {name: shape for name, shape in answer["shapes"].items() if name != lost}
    assert len(shapes) == len(answer["shapes"]) - 1
    write(tmp_path, answer["config"], shapes)
    message = refused(tmp_path)
    assert "1 tensor(s) missing" in message and f"first '{lost}'" in message


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"num_experts_per_tok": 9}, r"num_experts_per_tok is 9 and the number of experts 8"),
        ({"n_group": 3}, r"n_group is 3 and the number of experts 8"),
        ({"topk_group": 5}, r"topk_group is 5 and n_group 4"),
        (
            {"topk_group": 1},
            r"num_experts_per_tok is 3; topk_group 1 of n_group 4 leaves a token 2",
        ),
        ({"n_routed_experts": 0}, r"n_routed_experts is 0; it must be an integer of at least 1"),
        ({"topk_method": "random"}, r"topk_method is 'random'; choose from"),
        ({"kv_lora_rank": None}, r"kv_lora_rank is None"),
    ],
)
def test_numbers_of_experts_that_cannot_be(entries: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ModelArgs.from_dict(ANSWERS["deepseek_v3"]["config"] | entries)


def test_entries_of_large_models_are_read() -> None:
    """Sizes and switches, those without effect among them, written by hand after such models'
    configs: the files themselves are on a hub that tests do not ask."""
    written = json.loads(Path(__file__).with_name("written_configs.json").read_text())
    args = {name: ModelArgs.from_dict(config, name) for name, config in written.items()}
    assert args["deepseek-v3"].max_position_embeddings == 163840
    assert args["deepseek-v3"].moe.dense_layers == (0, 1, 2)
    assert args["gpt-oss-20b"].sliding_windows[:3] == (128, None, 128)
    assert args["command-r7b"].parts.rotates[:4] == [True, True, True, False]
    assert args["exaone4-1.2b"].sliding_windows == (None,) * 30
    assert args["gemma-2b"].hidden_act == "gelu_pytorch_tanh"
    assert args["olmo3"].local_rope_parameters == {"rope_type": "default", "rope_theta": 500000}
    assert args["phi-2"].rotary_dim == 32
    assert round(args["hunyuan-7b"].rope_parameters["rope_theta"]) == 11158840


def test_an_override_of_a_familys_own_entry_is_read(tmp_path: Path) -> None:
    """Also if the file leaves the entry out; and an override that nothing reads is refused."""
    answer = ANSWERS["deepseek_v3"]
    config = {name: value for name, value in answer["config"].items() if name != "topk_group"}
    write(tmp_path, config, answer["shapes"])
    assert load_config(tmp_path, {"topk_group": 3}).moe.topk_group == 3
    with pytest.raises(ValueError, match="hf_overrides has topk_groups=3"):
        load_config(tmp_path, {"topk_groups": 3})


@torch.inference_mode()
def test_experts_in_mxfp4_are_the_numbers_that_they_mean(tmp_path: Path) -> None:
    """gpt-oss as it is published. Blocks without scales are a sentence, and so the other way."""
    answer = ANSWERS["gpt_oss"]
    config, shapes = answer["config"] | {"intermediate_size": 32}, dict(answer["shapes"])
    for name, shape in shapes.items():
        if ".experts.gate_up_proj" in name:
            shapes[name] = [*shape[:-1], 64]
        elif name.endswith("experts.down_proj"):
            shapes[name] = [shape[0], 32, shape[2]]
    write(tmp_path / "plain", config, shapes)
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    packed = dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        rows = packed.pop(name).mT.unflatten(-1, (-1, 32))  # [E, out, in / 32, 32]
        codes = (rows[..., None] * 4 - values).abs().argmin(-1).to(torch.uint8)
        tensors[name] = (values[codes.long()] / 4).flatten(-2).mT.contiguous()
        packed[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        packed[f"{name}_scales"] = torch.full(rows.shape[:-1], 127 - 2, dtype=torch.uint8)
    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    folder = tmp_path / "packed"
    folder.mkdir()
    quantization = {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config | quantization))
    save_file(packed, folder / "model.safetensors")
    outputs = [_tokens(each) for each in (tmp_path / "plain", folder)]
    assert outputs[0] == outputs[1]
    for kind, other in (("_blocks", "_scales"), ("_scales", "_blocks")):
        lost = f"model.layers.0.mlp.experts.down_proj{kind}"
        left = {name: tensor for name, tensor in packed.items() if name != lost}
        save_file(left, folder / "model.safetensors")
        message = _refused_by_engine(folder, dtype="float32", num_gpu_blocks=20, max_model_len=32)
        assert lost in message and lost.replace(kind, other) in message


def _tokens(folder: Path) -> list[int]:
    from mini_vllm import SamplingParams

    options: dict[str, Any] = dict(dtype="float32", num_gpu_blocks=20, max_model_len=32)
    llm = LLM(folder, skip_tokenizer_init=True, **options)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    return list(llm.generate([[3, 14, 15, 9]], params, use_tqdm=False)[0].outputs[0].token_ids)
