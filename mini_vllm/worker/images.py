"""The runner's slot for images: encode what the plan says, and mix it into the step's embeddings.

::

    update   forget ─► encode, all images of the step in one batch
    apply    positions [T] or [3, T] ─► gather the rows of this chunk ─► merge into the embeddings
    keep     the step has succeeded: its encodings stay for later ones

Source: vllm/v1/worker/gpu_model_runner.py#L2860-L3069 (GPUModelRunner._execute_mm_encoder)
@ v0.22.1
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, NewRequestData, SchedulerOutput
from mini_vllm.mm_features import MultiModalFeatureSpec
from mini_vllm.model.layers import compute_dtype
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration
from mini_vllm.multimodal.gather import gather_mm_embeddings, merge_multimodal_embeddings
from mini_vllm.multimodal.mrope import get_mrope_input_positions, positions_of_range
from mini_vllm.platforms.transfer import Transfer
from mini_vllm.worker.step_inputs import StepInputs


def encoder_cache_bytes(
    model: Qwen3VLForConditionalGeneration, num_rows: int, device: torch.device
) -> int:
    """What encodings take up: each row is ``1 + levels`` times as wide as the decoder, for it
    holds what DeepStack adds to the first layers, too."""
    vision = model.config.vision
    assert vision is not None
    width = model.config.hidden_size * (1 + len(vision.deepstack_visual_indexes))
    return num_rows * width * compute_dtype(model.dtype, device).itemsize


def profile_encoder(
    model: Qwen3VLForConditionalGeneration, num_tokens: int, device: torch.device
) -> None:
    """Encode one gray picture of ``num_tokens`` tokens, as many as a step may encode.

    Source: vllm/v1/worker/gpu_model_runner.py#L6104-L6176 (GPUModelRunner.profile_run) @ v0.22.1
    """
    vision = model.config.vision
    assert vision is not None
    merge = vision.spatial_merge_size
    patches = torch.zeros(num_tokens * merge**2, vision.patch_dim, device=device)
    grid = torch.tensor([[1, merge, num_tokens * merge]])
    model.embed_multimodal(pixel_values=patches, image_grid_thw=grid)


class RunnerImages:
    """The images of all requests, and their encodings.

    Args:
        model: has the encoder.
        encoder_cache: of the runner, ``[rows, width]`` by hash.
        transfer: of the runner.
    """

    def __init__(
        self,
        model: Qwen3VLForConditionalGeneration,
        encoder_cache: dict[str, Tensor],
        transfer: Transfer,
    ) -> None:
        self.model, self.encoder_cache, self.transfer = model, encoder_cache, transfer
        assert model.config.vision is not None
        self.merge_size = model.config.vision.spatial_merge_size
        self.features: dict[str, list[MultiModalFeatureSpec]] = {}
        self.positions: dict[str, tuple[NDArray[np.int64], int]] = {}
        """Of each prompt with images: ``[3, P]``, and what the tokens behind it are moved by."""
        self.num_encoded = 0
        """Images encoded so far."""
        self._fresh: dict[str, Tensor] = {}
        """This step's encodings, and the request of each; they are kept if the step succeeds."""
        self._owner: dict[str, str] = {}
        self._broken: set[str] = set()
        """Images whose encoding, of this step or a kept one, is not to be used."""

    def update(self, plan: SchedulerOutput, req_ids: Container[str]) -> None:
        """Forget what the scheduler has evicted, then encode what it has planned.

        In this order: an image may have been evicted and be encoded again in one step.

        Args:
            req_ids: of all requests that the runner knows.
        """
        for mm_hash in plan.free_encoder_mm_hashes:
            self.encoder_cache.pop(mm_hash, None)
        self._broken &= self.encoder_cache.keys()
        for req_id in [i for i in self.features if i not in req_ids]:
            self._forget(req_id)
        for new in plan.scheduled_new_reqs:
            self._add(new)
        self._encode(plan)

    def _add(self, new: NewRequestData) -> None:
        self._forget(new.req_id)  # the id may come back as another request
        if new.mm_features:
            self.features[new.req_id] = new.mm_features
            self.positions[new.req_id] = get_mrope_input_positions(
                len(new.prompt_token_ids), new.mm_features, self.merge_size
            )

    def _forget(self, req_id: str) -> None:
        self.features.pop(req_id, None)
        self.positions.pop(req_id, None)

    def _encode(self, plan: SchedulerOutput) -> None:
        self._fresh, self._owner = {}, {}
        images: dict[str, MultiModalFeatureSpec] = {}
        for req_id, input_ids in plan.scheduled_encoder_inputs.items():
            for index in input_ids:
                feature = self.features[req_id][index]
                images[feature.identifier] = feature
                self._owner[feature.identifier] = req_id
        if not images:
            return
        data = [feature.data for feature in images.values()]
        pixels = np.concatenate([item["pixel_values"] for item in data])
        grids = torch.tensor([item["image_grid_thw"] for item in data])
        outputs = self.model.embed_multimodal(
            pixel_values=torch.from_numpy(pixels).to(self.transfer.device), image_grid_thw=grids
        )
        self.num_encoded += len(outputs)
        is_good = torch.stack([output.isfinite().all() for output in outputs]).tolist()
        for mm_hash, output, good in zip(images, outputs, is_good, strict=True):
            self._fresh[mm_hash] = output if good else torch.zeros_like(output)
            (self._broken.discard if good else self._broken.add)(mm_hash)

    def apply(self, inputs: StepInputs, result: ModelRunnerOutput) -> None:
        """Put image positions and embeddings into a step that needs them.

        A decode is text: its position in three dimensions is one number three times, and turns as
        plain RoPE does. So a step without image tokens keeps ``[T]`` positions, and its CUDA graph.
        """
        if not any(req_id in self.features for req_id in inputs.req_ids):
            return
        num_scheduled = inputs.metadata.query_lens_cpu
        ends = inputs.metadata.seq_lens_cpu
        num_computed = [end - n for end, n in zip(ends, num_scheduled, strict=True)]
        features = [self.features.get(req_id, []) for req_id in inputs.req_ids]
        rows, mask = gather_mm_embeddings(
            features, num_computed, num_scheduled, ChainMap(self._fresh, self.encoder_cache)
        )
        spans = zip(inputs.req_ids, num_computed, ends, strict=True)
        positions = np.concatenate([self._positions(*span) for span in spans], axis=1)
        if not rows:
            inputs.positions = self.transfer.put(torch.from_numpy(positions[0]))
            return
        inputs.positions = self.transfer.put(torch.from_numpy(positions))
        embeds = self.model.embed(inputs.input_ids)
        embeds, deepstack = merge_multimodal_embeddings(embeds, rows, mask)
        inputs.extra |= {"inputs_embeds": embeds, "deepstack": deepstack}
        self._fail(inputs.req_ids, features, result)

    def _positions(self, req_id: str, start: int, end: int) -> NDArray[np.int64]:
        """``[3, end - start]``; without images all three are the place in the request."""
        if req_id not in self.positions:
            return np.broadcast_to(np.arange(start, end), (3, end - start))
        return positions_of_range(*self.positions[req_id], start, end)

    def _fail(
        self,
        req_ids: list[str],
        features: list[list[MultiModalFeatureSpec]],
        result: ModelRunnerOutput,
    ) -> None:
        """End the requests of an image whose encoding holds NaN or infinities."""
        if not self._broken:
            return
        for req_id, images in zip(req_ids, features, strict=True):
            if any(feature.identifier in self._broken for feature in images):
                result.failed[req_id] = "the encoder returned NaN or infinity for one of its images"

    def keep(self, failed: Container[str]) -> None:
        """The step is done: keep its encodings, but not those of requests that failed."""
        for mm_hash, rows in self._fresh.items():
            if self._owner[mm_hash] not in failed:
                self.encoder_cache[mm_hash] = rows
        self._fresh = {}

    def restart(self) -> None:
        """An interrupted step was undone: the scheduler has forgotten all encodings, too."""
        self.encoder_cache.clear()
        self._fresh = {}
