"""One rank: a device, its part of the model, its part of the KV cache, and a runner for both.

Source: vllm/v1/worker/gpu_worker.py#L109-L1112 (Worker) @ v0.22.1
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mini_vllm.attention import AttentionBackend, get_backend
from mini_vllm.attention.selector import AttentionSelectorConfig
from mini_vllm.config import EngineConfig
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.scheduler_output import (
    GrammarOutput,
    KVConnectorOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.distributed import parallel_state
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import Rendezvous
from mini_vllm.distributed.pipeline import PipelineStage
from mini_vllm.hub import in_units
from mini_vllm.kv_transfer.base import ConnectorContext, KVConnectorRole
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.kv_transfer.identity import kv_namespace
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.model.build import compile_model, load_model
from mini_vllm.model.interface import can_be_recorded
from mini_vllm.model.layers import compute_dtype
from mini_vllm.model.layout import SINGLE, Parallel
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.qwen3_vl import Qwen3VLForConditionalGeneration
from mini_vllm.platforms import pick_device, platform_of
from mini_vllm.platforms.interface import Platform
from mini_vllm.plugins import load_general_plugins
from mini_vllm.pooling.pooler import Pooler, make_pooler
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.sample.custom import load_classes
from mini_vllm.worker.adapters import WorkerAdapters, check_slots
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.cuda_graphs import make_buckets
from mini_vllm.worker.group_tables import GroupTables
from mini_vllm.worker.images import RunnerImages, encoder_cache_bytes, profile_encoder
from mini_vllm.worker.kv_cache import (
    KVCache,
    available_memory,
    bytes_per_block,
    choose_num_blocks,
    given_memory,
    how_to_hold,
    shared_memory,
)
from mini_vllm.worker.kv_connector import RunnerConnector, works_by_layer
from mini_vllm.worker.late_results import LateOutput, LateResults
from mini_vllm.worker.model_runner import ModelRunner
from mini_vllm.worker.pooling import RunnerPooler
from mini_vllm.worker.profile import PLAIN, largest_step, peak_bytes, run_step
from mini_vllm.worker.threads import StepThreads

if TYPE_CHECKING:
    from mini_vllm.distributed.eplb.state import EplbState
    from mini_vllm.spec_decode.build import Drafter

logger = logging.getLogger(__name__)


class Worker(WorkerAdapters):
    """Made ready in this order, because each step needs the result of the one before::

        init_device()          the device, and the group of all ranks
        load_model()           weights, on the device; slots for adapters
        num_blocks_that_fit()  what memory is left, in KV blocks
        initialize(n, length)  the KV cache and the runner
        warm_up()              kernels compiled, graphs recorded

    The number of blocks goes up to the engine and comes down again, because all ranks must have
    the same.

    Args:
        config: of the whole engine.
        rank: which of its workers this is.
        rendezvous: where the workers meet; None for one alone.
        device_index: which of this machine's devices is its own, if there are several.
    """

    device: torch.device
    parallel: Parallel
    backend: AttentionBackend
    model: LlamaForCausalLM
    layout: CacheLayout
    """How the model's layers share the blocks of the cache."""
    drafter: Drafter | None
    pooler: Pooler | None
    model_runner: ModelRunner
    threads: StepThreads | None = None
    connector: RunnerConnector | None = None
    may_record = True
    """Whether decode steps may be replayed from CUDA graphs."""

    def __init__(
        self,
        config: EngineConfig,
        rank: int = 0,
        rendezvous: Rendezvous | None = None,
        device_index: int | None = None,
    ) -> None:
        self.config = config
        self.rank = rank
        self._asleep: set[str] = set()
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rendezvous, self.device_index = rendezvous, device_index
        self.eplb: EplbState | None = None

    @property
    def platform(self) -> Platform:
        """What is known of the device."""
        return platform_of(self.device)

    def init_device(self) -> None:
        """Raises ValueError if there is no such device."""
        wanted, ranks = self.config.model, self.config.parallel
        load_general_plugins()  # a process of its own has none yet
        self.device = pick_device(wanted.device, self.device_index)
        self.platform.check_workers(ranks.world_size)
        dtype = None if wanted.dtype == "auto" else getattr(torch, wanted.dtype)
        needs = AttentionSelectorConfig(dtype, self.config.cache.block_size)
        self.backend = get_backend(self.device, wanted.attention_backend, needs)
        parallel_state.init_distributed_environment(
            ranks.world_size, self.rank, self.rendezvous, self.platform.dist_backend,
            ranks.distributed_timeout_seconds,
        )  # fmt: skip
        parallel_state.initialize_model_parallel(
            ranks.tensor_parallel_size, ranks.pipeline_parallel_size, self.rank,
            ranks.distributed_timeout_seconds, ranks.disable_custom_all_reduce,
        )  # fmt: skip
        self.tp_group, self.pp_group = parallel_state.get_tp_group(), parallel_state.get_pp_group()
        alone = ranks.world_size == 1
        copies = ranks.eplb_config.num_redundant_experts
        groups = self.tp_group, self.pp_group
        self.parallel = (
            SINGLE if alone else ModelParallel(*groups, ranks.enable_expert_parallel, copies)
        )

    def load_model(self) -> None:
        """Raises ValueError for what cannot be loaded, or a budget of tokens that states forbid."""
        self._say("loading %s on %s", Path(self.config.model.model).name, self.device)
        wanted, kv_cache_dtype = self.config.model, self.config.cache.kv_cache_dtype
        quant = get_quantization_config(wanted.model, wanted.quantization, wanted.hf_overrides)
        if kv_cache_dtype == "auto" and quant is not None and quant.kv_cache_dtype:
            kv_cache_dtype = quant.kv_cache_dtype
        self.model = load_model(
            wanted.model,
            wanted.dtype,
            self.device,
            self.backend,
            wanted.load_format,
            wanted.seed,
            quant,
            self.parallel,
            kv_cache_dtype,
            wanted.hf_overrides,
            show_progress=wanted.use_tqdm_on_load and self.rank == 0,
            pools=wanted.pools,
        )
        self.pooler = make_pooler(self.config, self.device)
        args = self.model.config
        if self.config.parallel.enable_eplb:
            from mini_vllm.distributed.eplb.state import EplbState  # models without experts skip it

            assert args.moe is not None
            state = EplbState(self.model, self.config.parallel.eplb_config, args.moe.n_group)
            self.eplb = state if state.layers else None  # a stage may have layers without experts
        self.layout = CacheLayout.of(self.model.kv_cache_spec(), self.config)
        self.drafter = None
        if self.config.speculative is not None:
            from mini_vllm.spec_decode.build import load_drafter

            self.drafter = load_drafter(self.config, self.model, self.device)
        if self.platform.is_host:
            num_workers, hidden_size = self.config.parallel.num_workers, args.hidden_size
            most = max(1, (os.cpu_count() or 1) // num_workers) if num_workers > 1 else None
            self.threads = StepThreads(wanted.num_threads, hidden_size, most)
        if self.config.lora is not None:  # before memory is counted: slots take some of it
            max_num_tokens = self.config.scheduler.max_num_batched_tokens
            check_slots(self.model, self.config.lora, self.device)
            self.lora = LoRAModelManager(self.model, self.config.lora, max_num_tokens, self.device)

    def cache_groups(self) -> tuple[GroupSpec, ...]:
        """What the groups of layers remember, for the scheduler."""
        return self.layout.groups

    def num_blocks_that_fit(self) -> int:
        """KV blocks for this rank, the null block included.

        Raises:
            ValueError: if memory does not suffice for one request of full length.
        """
        drafter_spec = self.drafter.kv_cache_spec if self.drafter is not None else None
        memory = self._memory_for_cache()
        spec = self.model.kv_cache_spec()
        return choose_num_blocks(self.config, spec, self.device, drafter_spec, memory)

    def how_to_hold(self, num_tokens: int) -> str:
        """What the user may do so that the KV cache holds a request of so many tokens."""
        block_bytes = self.layout.block_bytes
        if self.drafter is not None and self.drafter.kv_cache_spec is not None:
            drafts = self.drafter.kv_cache_spec
            block_bytes += bytes_per_block(drafts, self.config.cache.block_size)
        num_blocks = 1 + self.layout.peak_blocks(num_tokens, self.config)
        return how_to_hold(self.config, self.device, block_bytes, num_blocks)

    def _memory_for_cache(self) -> int | None:
        """Bytes that the KV cache may take when steps, the encoder and its cache have their share.

        None: what is there now, or not asked for, because the configuration says how many.

        Raises:
            ValueError: if the encoder cache alone takes all there is.
        """
        cache, limits = self.config.cache, self.config.scheduler
        memory = given_memory(self.config, self.device)
        is_given = memory is not None or cache.num_gpu_blocks is not None
        sees = isinstance(self.model, Qwen3VLForConditionalGeneration)
        if is_given or (self.platform.is_host and not sees):
            return None
        available = available_memory(self.device, cache.gpu_memory_utilization)
        there = max(available - self._step_bytes(), 0)
        if not isinstance(self.model, Qwen3VLForConditionalGeneration):
            return there
        num_rows = limits.encoder_cache_size
        assert num_rows is not None
        num_caches = self.config.parallel.num_workers if self.platform.is_host else 1
        taken = num_caches * encoder_cache_bytes(self.model, num_rows, self.device)
        if taken >= there:
            raise ValueError(
                f"encoder_cache_size is {num_rows} tokens of images, which take "
                f"{taken / 2**20:.0f} MiB; {self.device} has {there / 2**20:.0f} MiB for them and "
                "the KV cache; lower it, or set kv_cache_memory_bytes to what the KV cache alone "
                "may take; mm_processor_kwargs can make images smaller"
            )
        return shared_memory(self.config, self.device, there - taken)

    def _step_bytes(self) -> int:
        """Bytes of a GPU that the largest step takes beside weights and KV cache, and what recorded
        steps keep; 0 where a device does not count them.

        A pipeline stage cannot run alone, and takes what is free.
        """
        limits = self.config.scheduler
        if self.pp_group.world_size > 1 or not self.platform.counts_peak_memory:
            return 0
        if self.lora is not None:
            self.lora.prepare_capture()
        lengths = largest_step(limits)
        num_bytes = peak_bytes(
            lambda: run_step(self.model, self.layout, lengths, limits.max_num_seqs, self.device),
            self.device,
        )
        if isinstance(self.model, Qwen3VLForConditionalGeneration):
            model, num_tokens = self.model, limits.max_num_encoder_input_tokens
            assert num_tokens is not None
            encoder = peak_bytes(
                lambda: profile_encoder(model, num_tokens, self.device), self.device
            )
            num_bytes = max(num_bytes, encoder)
        self._say("the largest step takes %s", in_units(num_bytes))
        if self.platform.support_static_graph_mode() and self.can_record():
            num_bytes += self._recorded_bytes()
        return num_bytes

    def _recorded_bytes(self) -> int:
        """What recorded steps keep: memory for the largest, into which the others fit, and the
        hidden states of each."""
        buckets = make_buckets(self.config.scheduler.max_num_seqs)
        rows, model = buckets[-1], self.model
        dtype = compute_dtype(model.dtype, self.device)
        kept = sum(buckets) * model.config.hidden_size * dtype.itemsize
        kept += peak_bytes(
            lambda: run_step(model, self.layout, [1] * rows, rows, self.device, PLAIN), self.device
        )
        self._say("recorded steps keep %s", in_units(kept))
        return kept

    def initialize(self, num_blocks: int, max_model_len: int) -> None:
        """Allocate the KV cache and make the runner, for requests of at most `max_model_len`."""
        limits = replace(self.config.scheduler, max_model_len=max_model_len)
        self.config = replace(self.config, scheduler=limits)
        cache = self.config.cache
        layout = self.layout
        kv_cache = KVCache(
            layout.spec, num_blocks, layout.block_size, self.device, cache.num_cpu_blocks, layout
        )
        self._say(
            "KV cache: %d blocks of %d tokens, %s%s%s", num_blocks - 1, layout.block_size,
            in_units(num_blocks * layout.block_bytes),
            ", taken as they fill" if self.platform.is_host else "",
            "" if layout.is_single else f", shared by {len(layout.groups)} groups of layers",
        )  # fmt: skip
        self.model_runner = ModelRunner(
            self.model,
            kv_cache,
            limits.max_num_seqs,
            limits.max_model_len,
            layout.block_size,
            self.device,
        )
        if not layout.is_single:
            runner = self.model_runner
            sizes = limits.max_num_seqs, limits.max_model_len
            runner.group_tables = GroupTables(layout, *sizes, runner._to_device)
        if self.pp_group.world_size > 1:
            dtype = compute_dtype(self.model.dtype, self.device)
            self.model_runner.pipeline = PipelineStage(
                self.pp_group, self.model.config.hidden_size, dtype, self.device
            )
        if isinstance(self.model, Qwen3VLForConditionalGeneration):
            runner = self.model_runner
            runner.images = RunnerImages(self.model, runner.encoder_cache, runner.transfer)
        classes = load_classes(self.config.model.logits_processors)
        pins = self.platform.is_pin_memory_available
        self.model_runner.use_processors([cls(self.config, self.device, pins) for cls in classes])
        if self.pooler is not None:
            self.model_runner.pooler = RunnerPooler(self.pooler)
        if self.lora is not None:
            self.model_runner.lora = self.lora
        if limits.async_scheduling and self.config.parallel.backend == "uni":
            self.model_runner.late = LateResults(self.model_runner.batch, self.device)
        if self.drafter is not None:
            from mini_vllm.spec_decode.build import make_speculator

            runner = self.model_runner
            runner.speculator = make_speculator(self.config, self.drafter, runner, num_blocks)

    def kv_context(self, num_blocks: int) -> ConnectorContext:
        """What a KV connector needs to know about this rank's cache."""
        spec, block_size = self.model.kv_cache_spec(), self.config.cache.block_size
        namespace = kv_namespace(self.config, spec)
        num_bytes = bytes_per_block(spec, block_size)
        return ConnectorContext(namespace, block_size, num_bytes, num_blocks)

    def connect(self, context: ConnectorContext) -> Any:
        """Start the worker's half of the KV connector; returns what the scheduler's half needs."""
        assert self.config.kv_transfer is not None
        half = KVConnectorFactory.create_connector(
            self.config.kv_transfer, KVConnectorRole.WORKER, context
        )
        self.connector = RunnerConnector(half, self.model, self.model_runner.kv_cache.layers)
        self.model_runner.connector = self.connector
        if works_by_layer(half):  # a replayed graph calls no layer
            self.model_runner.graphs, self.may_record = None, False
        return half.get_handshake_metadata()

    def take_kv_report(self) -> KVConnectorOutput | None:
        """The connector's report of a step that has failed."""
        return None if self.connector is None else self.connector.report

    def wait_for_kv(self, timeout: float) -> None:
        """Nothing can run before a transfer of KV ends: sleep until one may have ended."""
        assert self.connector is not None
        self.connector.connector.wait_for_transfer(timeout)

    def flush_kv(self) -> None:
        """Return when all KV that was handed over to be saved is where others find it."""
        assert self.connector is not None
        self.connector.connector.flush()

    def warm_up(self) -> None:
        """Compile what is to be compiled; on a GPU, record the decode graphs."""
        wanted = self.config.model
        if wanted.compile_model:
            self._say("torch.compile works on the model's operations during the first steps")
            compile_model(self.model, self.backend)
        if not self.platform.is_host:
            has_graphs = self.platform.support_static_graph_mode() and self.can_record()
            record = self.platform.make_recorder() if has_graphs else None
            self._say("running the largest step%s", ", recording CUDA graphs" if record else "")
            self.model_runner.warm_up(self.config.scheduler.max_num_batched_tokens, record)
        if self.eplb is not None:
            self.eplb.forget()

    def can_record(self) -> bool:
        """Whether steps of this model can be replayed, where a device has recordings."""
        spec = self.layout.spec
        return (
            self.may_record
            and not self.config.model.enforce_eager
            and can_be_recorded(self.model)
            and self.pooler is None
            and spec.dtype != torch.int8
            and not spec.keeps_states
            and self.parallel is SINGLE  # an exchange is not recorded
        )

    def execute_model(self, plan: SchedulerOutput) -> None:
        if self.threads is not None:
            num_requests = len(plan.num_scheduled_tokens)
            self.threads.prepare(plan.total_num_scheduled_tokens, num_requests)
        self.model_runner.execute_model(plan)
        if self.eplb is not None:
            self.eplb.step()

    def sample_tokens(self, masks: GrammarOutput | None) -> ModelRunnerOutput:
        output = self.model_runner.sample_tokens(masks)
        if self.eplb is not None:
            output.expert_load = self.eplb.report()
        return output

    def sample_tokens_late(self, masks: GrammarOutput | None) -> LateOutput:
        """:meth:`sample_tokens` without waiting for the tokens, for an engine in this process."""
        return self.model_runner.sample_tokens_late(masks)

    def is_lost(self) -> bool:
        """Whether the device no longer responds: an error of CUDA stays until the process ends."""
        try:
            self.platform.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def restart(self, req_ids: Sequence[str]) -> None:
        """Forget all rows, and all requests but these: an interrupted step was undone."""
        self.model_runner.restart(req_ids)
        if self.lora is not None:
            self.lora.empty_slots()
        if self.connector is not None:
            self.connector.connector.reset()

    def scrub(self) -> None:
        """A request has failed: replace NaN and infinities that it left in the cache."""
        self.model_runner.scrub()

    def pid(self) -> int:
        """The process of the worker."""
        return os.getpid()

    def model_dtype(self) -> str:
        """The name of what the model's weights are kept in."""
        return str(self.model.dtype).removeprefix("torch.")

    def leave_a_core(self) -> None:
        """Leave a CPU core to the front end's process, which has much to do where steps are
        short."""
        if self.threads is not None:
            self.threads.leaves_a_core = True

    def sleep(self) -> None:
        """Give the KV cache's memory back, and on a GPU the weights': they wait in main memory."""
        self._asleep = {"weights", "kv_cache"}
        for cache in self._kv_caches():
            cache.release()
        if not self.platform.is_host:
            self.model_runner.forget_recordings()
            self._kept = [(weight, weight.data.cpu()) for weight in self.model.parameters()]
            for weight, _ in self._kept:
                weight.data = torch.empty(0, dtype=weight.dtype, device=self.device)
            self.platform.empty_cache()

    def wake_up(self, tags: list[str]) -> None:
        """Take the memory of "weights", of "kv_cache", or of both again."""
        self._asleep -= set(tags)
        if "kv_cache" in tags:
            for cache in self._kv_caches():
                cache.restore()
        if "weights" in tags:
            for weight, values in self._kept:
                weight.data = values.to(self.device)
            self._kept = []
        if not self._asleep and not self.platform.is_host:
            self.warm_up()

    def _say(self, message: str, *args: Any) -> None:
        """Log what all ranks do, once."""
        if self.rank == 0:
            logger.info(message, *args, stacklevel=2)

    def _kv_caches(self) -> list[KVCache]:
        """The model's, and the drafter's if it has one."""
        proposer = getattr(self.model_runner.speculator, "proposer", None)
        drafted = getattr(proposer, "kv_cache", None)
        return [self.model_runner.kv_cache, *([] if drafted is None else [drafted])]

    def check_health(self) -> None:
        """Returns if the worker still answers."""

    def shutdown(self) -> None:
        """Leave the other ranks, end what runs beside, give a GPU's memory back. May be called
        twice."""
        if self.connector is not None:
            self.connector.connector.shutdown()
        parallel_state.destroy_model_parallel()
        if hasattr(self, "device") and not self.platform.is_host:
            self._let_go()

    def _let_go(self) -> None:
        """Free graphs, KV cache and weights, even if the engine is still held."""
        if hasattr(self, "model_runner"):
            self.model_runner.forget_recordings()
            for cache in self._kv_caches():
                cache.release()
        if hasattr(self, "model"):
            for weight in self.model.parameters():
                weight.data = torch.empty(0, dtype=weight.dtype, device=self.device)
        self.platform.empty_cache()
