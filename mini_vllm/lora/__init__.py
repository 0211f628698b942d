"""LoRA: many adapters of one base model in one batch.

request.py      LoRARequest: which adapter a request uses
registry.py     from a request to the adapter's key, `name@digest of its contents`
scheduling.py   limits how many adapters run at once
peft.py         reads an adapter's config and the names of its tensors
checkpoint.py   an adapter's folder -> LoRAModel, every shape checked
slots.py        LoRAModelManager: adapters in host memory, some of them in slots on the device
mapping.py      which token of a step uses which slot
layers.py       LinearLoRA: the slots of one Linear, and what they add to its output
ops.py          that addition on a CPU
triton_ops.py   that addition on a GPU
"""
