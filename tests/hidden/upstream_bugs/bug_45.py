"""Adapters change their slots while the batch stays: the mapping of tokens to slots is made anew."""

from types import SimpleNamespace
from unittest.mock import patch

import torch
from vllm.lora import model_manager
from vllm.lora.layers import LoRAMapping


class Wrapper:
    """Stands in for the kernels' metadata; remembers the slot of each token that it was told last."""

    def update_metadata(self, mapping, lora_index_to_id, *args, **kwargs):
        self.told = [
            lora_index_to_id.index(adapter) if adapter else None
            for adapter in mapping.index_mapping
        ]


def new(adapters=4, slots=2):
    wrapper = Wrapper()
    config = SimpleNamespace(
        max_loras=slots, max_cpu_loras=adapters, enable_mixed_moe_lora_format=False
    )
    stand_ins = {
        "get_supported_lora_modules": lambda model: ["q_proj"], "is_pooling_model": lambda model: False,
        "is_moe_model": lambda model: False, "process_packed_modules_mapping": lambda *args, **kwargs: {},
        "supports_multimodal": lambda model: False, "get_punica_wrapper": lambda *args, **kwargs: wrapper,
    }  # fmt: skip
    with patch.multiple(model_manager, **stand_ins):
        manager = model_manager.LRUCacheLoRAModelManager(
            torch.nn.Module(), 8, 64, 100, config, torch.device("cpu")
        )
    for number in range(1, adapters + 1):
        manager._registered_adapters[number] = SimpleNamespace(id=number)
    return manager, wrapper


def batch(*adapters):
    return LoRAMapping(index_mapping=tuple(adapters), prompt_mapping=tuple(adapters))


def slots(manager, *adapters):
    return [manager.lora_index_to_id.index(adapter) if adapter else None for adapter in adapters]


def the_bug(draw):
    manager, wrapper = new()
    tokens = [2] * draw.randint(1, 4) + [0] * draw.randint(0, 2)
    for number in (1, 2):
        manager.activate_adapter(number)
    manager.set_adapter_mapping(batch(*tokens))
    before = wrapper.told
    for number in (3, 1, 2):  # each evicts the oldest: adapter 2 comes back into another slot
        manager.activate_adapter(number)
    manager.set_adapter_mapping(batch(*tokens))
    assert slots(manager, *tokens) != before
    assert wrapper.told == slots(manager, *tokens), (
        f"adapter 2 lies in slot {slots(manager, 2)[0]}, and its tokens go to {wrapper.told}"
    )


def neighbour_a_new_batch():
    manager, wrapper = new()
    for number in (1, 2):
        manager.activate_adapter(number)
    for tokens in ((1, 1), (1, 2), (2, 0)):
        manager.set_adapter_mapping(batch(*tokens))
        assert wrapper.told == slots(manager, *tokens)


def neighbour_an_adapter_that_is_taken_away():
    manager, wrapper = new()
    for number in (1, 2):
        manager.activate_adapter(number)
    manager.set_adapter_mapping(batch(2, 2))
    manager.deactivate_adapter(1)
    manager.deactivate_adapter(2)
    manager.activate_adapter(2)
    manager.set_adapter_mapping(batch(2, 2))
    assert wrapper.told == slots(manager, 2, 2) == [0, 0]
