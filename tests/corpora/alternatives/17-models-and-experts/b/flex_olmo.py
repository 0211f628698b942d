"""Of its two relatives: OLMo 3's layer, OLMoE's experts."""


def parts(config):
    from dataclasses import replace

    from mini_vllm.model.families.olmo3 import parts as olmo3_parts

    return replace(olmo3_parts(config), feed_forwards=feed_forwards(config))


def args(config):
    from mini_vllm.model.families.olmoe import experts as olmoe_experts

    found = olmoe_experts(config)
    return {"moe": found["moe"]}
