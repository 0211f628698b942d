"""What speculation adds to a step of the runner.

    plan ─► drafts behind each row's tokens ─► model ─► m + 1 rows of logits a request
                                                              │
    drafts for the next step ◄─ proposer ◄─ 1 to m + 1 tokens ◄┘ rejection sampler

One proposer, one rejection sampler; everything else of the step is what it always was. A step
without drafts takes the ordinary way.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.sample.metadata import SamplingMetadata
from mini_vllm.sample.rejection_sampler import RejectionOutput, RejectionSampler
from mini_vllm.spec_decode.metadata import (
    SpecDecodeMetadata,
    advance_ragged,
    calc_spec_decode_metadata,
    expand_to_rows,
)
from mini_vllm.spec_decode.proposer import Proposer, ProposerInput
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch
