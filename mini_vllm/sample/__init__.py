"""From logits to the next token of every row of a batch."""

from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow, make_sampling_metadata
from mini_vllm.sample.sampler import LogprobsTensors, Sampler, SamplerOutput

__all__ = [
    "LogprobsTensors",
    "Sampler",
    "SamplerOutput",
    "SamplingMetadata",
    "SamplingRow",
    "make_sampling_metadata",
]
