"""PEFT gives modules ranks and alphas of their own; their scale is not that of the others."""

from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.peft_helper import PEFTHelper


def scale(module, **more):
    helper = PEFTHelper.from_dict(
        {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"], **more}
    )
    return LoRALayerWeights.from_config(f"model.layers.{module}", helper).scaling


def the_bug(draw):
    rank, alpha = draw.choice([1, 2, 4, 32]), draw.choice([4, 32, 64])
    more = {"rank_pattern": {"q_proj": rank}, "alpha_pattern": {"layers.1.self_attn.v_proj": alpha}}
    found = scale("0.self_attn.q_proj", **more)
    assert found == 16 / rank, f"q_proj has rank {rank}: its scale is {found}, not 16 / {rank}"
    found = scale("1.self_attn.v_proj", **more)
    assert found == alpha / 8, f"v_proj of layer 1 has alpha {alpha}: its scale is {found}"


def neighbour_the_other_modules():
    more = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"layers.1.self_attn.v_proj": 64}}
    assert (
        scale("0.self_attn.v_proj", **more) == 2.0 and scale("11.self_attn.v_proj", **more) == 2.0
    )
    assert scale("0.self_attn.o_proj", **more) == 2.0 == scale("0.self_attn.q_proj")
    assert scale("0.self_attn.big_q_proj", **more) == 2.0, "a name ends behind a dot"


def neighbour_rank_stabilized():
    assert scale("0.self_attn.q_proj", r=4, use_rslora=True) == 8.0
    assert scale("0.self_attn.q_proj", use_rslora=True, rank_pattern={"q_proj": 4}) == 8.0


def neighbour_both_patterns_and_expressions():
    more = {"rank_pattern": {r"layers\.\d\.self_attn\.q_proj": 2}, "alpha_pattern": {"q_proj": 6}}
    assert scale("3.self_attn.q_proj", **more) == 3.0
