"""Replay traces on the real vLLM 0.22.1 scheduler. Runs in the environment that has vLLM.

    .venv-upstream/bin/python -m labkit.trace.vllm_oracle

Reads one trace (JSON) a line from standard input and answers each with one line:
`{"lines": [...]}`, and `"error"` beside it if the scheduler raised. Importing vLLM takes seconds,
so one process answers many traces. The first line it prints says which version it drives.

vLLM's scheduler is pure Python: it needs neither a GPU nor a model, only the parts of the
configuration that it reads. Those are stood in for by plain namespaces.

Source: vllm/v1/core/sched/scheduler.py#L63-L329 (Scheduler.__init__) @ v0.22.1
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from labkit.trace.external import Script
from labkit.trace.format import (
    Add,
    Image,
    TraceConfig,
    draft_tokens,
    placeholder,
)
from labkit.trace.groups import GroupWatch
from labkit.trace.runner import (
    Line,
    Plan,
    answer_with,
    end_reason,
    ordered_blocks,
    replay,
    sampled_tokens,
)
from mini_vllm.core.cache_groups import GroupSpec


class VllmSubject:
    """vLLM's `Scheduler`, or its `AsyncScheduler`, as a `labkit.trace.runner.Subject`."""

    def __init__(self, config: TraceConfig) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self.config = config
        self.block_hasher = get_request_block_hasher(block_sizes(config)[1], sha256)
        self.scheduler = make_scheduler(config)
        self.watch: GroupWatch | None = None
        if config.groups:
            manager = self.scheduler.kv_cache_manager
            self.watch = GroupWatch(manager, "_maybe_evict_cached_block", _ids_of_groups)
        self.requests: dict[str, Any] = {}
        self.preempted: list[str] = []
        self.late: Plan | None = None
        """With `async_scheduling`: the plan that has not been taken in yet."""
        self.lora_ids: dict[str, int] = {}
        self.grammars: dict[str, int] = {}
        """Steps until a request's grammar is ready."""
        self.script: Script | None = None
        self.rewound: dict[str, int] = {}
        if config.connector:
            self._connect()
        self._watch_preemptions()

    def _connect(self) -> None:
        """Give vLLM's scheduler a connector that does what the trace says."""
        self.script = Script(self.config.connector == "async")
        scheduler = self.scheduler
        scheduler.connector = _scripted_connector(self.script, self.config.block_size)
        scheduler.recompute_kv_load_failures = self.config.kv_load_failure_policy == "recompute"
        original = scheduler._update_requests_with_invalid_blocks

        def watch(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            for request_id in answer[0]:
                self.rewound[request_id] = scheduler.requests[request_id].num_computed_tokens
            return answer

        scheduler._update_requests_with_invalid_blocks = watch

    def _watch_preemptions(self) -> None:
        """Note the order of preemption: vLLM's output has only a set."""
        original: Callable[..., None] = self.scheduler._preempt_request

        def preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(request.request_id)
            original(request, *args, **kwargs)

        self.scheduler._preempt_request = preempt

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(
            temperature=0.0,
            max_tokens=event.max_tokens,
            min_tokens=event.min_tokens,
            stop_token_ids=list(event.stop_token_ids),
            ignore_eos=event.ignore_eos,
        )
        params.update_from_generation_config({}, self.config.eos_token_id)
        request = Request(
            event.id,
            prompt_token_ids,
            params,
            None,
            arrival_time=float(event.arrival),
            priority=event.priority,
            lora_request=self._lora_request(event.lora) if event.lora else None,
            mm_features=[_feature(image) for image in event.images],
            block_hasher=self.block_hasher,
        )
        if event.grammar is not None:
            self._expect_grammar(request, event.grammar)
        if self.script is not None:
            self.script.add(event.id, event.external)
        self.requests[event.id] = request
        self.scheduler.add_request(request)

    def _lora_request(self, name: str) -> Any:
        from vllm.lora.request import LoRARequest

        number = self.lora_ids.setdefault(name, len(self.lora_ids) + 1)
        return LoRARequest(name, number, "/none")

    def _expect_grammar(self, request: Any, num_steps: int) -> None:
        """Let a request wait for a grammar, as one with structured outputs does."""
        from vllm.v1.request import RequestStatus

        request.structured_output_request = SimpleNamespace(grammar=_grammar(num_steps))
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self.grammars[request.request_id] = num_steps

    def _advance_grammars(self) -> None:
        for request_id in self.grammars:
            self.grammars[request_id] -= 1
            if request_id in self.requests:
                waiting = self.requests[request_id].structured_output_request
                waiting.grammar = _grammar(self.grammars[request_id])

    def abort(self, request_id: str) -> bool:
        from vllm.v1.request import RequestStatus

        if self.requests.pop(request_id, None) is None:
            return False
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        return True

    def has_unfinished(self) -> bool:
        return self.scheduler.get_num_unfinished_requests() > 0

    def step(self) -> Line:
        self.preempted, self.rewound = [], {}
        output = self.scheduler.schedule()
        self._advance_grammars()
        scheduled = dict(output.num_scheduled_tokens)
        tables = self._tables()
        drafts = {i: list(d) for i, d in output.scheduled_spec_decode_tokens.items()}
        planned = {i: self.requests[i] for i in scheduled}
        late = self.late.sampled if self.late is not None else {}
        due: Plan | None = Plan(
            output, planned, sampled_tokens(planned, drafts, late, self.config.vocab_size)
        )
        if self.config.async_scheduling:
            due, self.late = self.late, due
        sampled = {} if due is None else self._take_in(due)
        pool = self.scheduler.kv_cache_manager.block_pool
        return {
            "scheduled": scheduled,
            "preempted": self.preempted,
            "finished": self._take_finished(list(due.requests) if due is not None else []),
            "new_block_ids": ordered_blocks(_new_block_ids(output), scheduled),
            "computed": {i: r.num_computed_tokens for i, r in self.requests.items()},
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in _waiting(self.scheduler)],
            "free_blocks": pool.get_num_free_blocks(),
            "spec": drafts,
            "sampled": {i: tokens for i, tokens in sampled.items() if tokens},
            "drafts": {
                i: list(r.spec_token_ids) for i, r in self.requests.items() if r.spec_token_ids
            },
            "encode": {i: list(ids) for i, ids in output.scheduled_encoder_inputs.items()},
            "forgotten": list(output.free_encoder_mm_hashes),
            "loading": [
                i for i, r in self.requests.items() if r.status.name == "WAITING_FOR_REMOTE_KVS"
            ],
            "held": sorted(i for i, r in self.scheduler.requests.items() if r.is_finished()),
            "rewound": dict(sorted(self.rewound.items())),
            **self._groups(output),
            "tables": tables,
        }

    def _tables(self) -> dict[str, list[list[int]]]:
        """The block tables of those who run, by group, if there are groups."""
        if self.watch is None:
            return {}
        get_blocks = self.scheduler.kv_cache_manager.coordinator.get_blocks
        return {
            r.request_id: [[b.block_id for b in table] for table in get_blocks(r.request_id)]
            for r in self.scheduler.running
        }

    def _groups(self, output: Any) -> dict[str, Any]:
        if self.watch is None:
            return {}
        cached = output.scheduled_cached_reqs
        admitted = {r.req_id for r in output.scheduled_new_reqs} | cached.resumed_req_ids
        blocks = {r.req_id: [list(b) for b in r.block_ids[1:]] for r in output.scheduled_new_reqs}
        for request_id, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            blocks[request_id] = [list(b) for b in new[1:]] if new is not None else []
        order = list(output.num_scheduled_tokens)
        return self.watch.line(
            [i for i in order if i in admitted], {i: blocks[i] for i in order if i in blocks}
        )

    def _propose(self, planned: dict[str, Any], sampled: dict[str, list[int]]) -> None:
        """Hand in guesses, as `EngineCore.post_step` does."""
        from vllm.v1.outputs import DraftTokenIds

        guesses = [
            draft_tokens(i, r.num_tokens, self.config, bool(sampled[i])) for i, r in planned.items()
        ]
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(planned), guesses))

    def _take_in(self, plan: Plan) -> dict[str, list[int]]:
        """The tokens that the requests of a plan got in the end, by id."""
        lengths = {i: r.num_tokens for i, r in plan.requests.items()}
        self.scheduler.update_from_output(plan.output, self._answer(plan))
        sampled = {i: list(r.all_token_ids)[lengths[i] :] for i, r in plan.requests.items()}
        if self.config.num_speculative_tokens:
            self._propose(plan.requests, sampled)
        return sampled

    def _answer(self, plan: Plan) -> Any:
        """The runner's answer to a plan."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(plan.requests)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: k for k, i in enumerate(ids)},
            sampled_token_ids=[plan.sampled.get(i, []) for i in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self._transfers(),
        )

    def _transfers(self) -> Any:
        from vllm.v1.outputs import KVConnectorOutput

        if self.script is None:
            return None
        report = self.script.report()
        return KVConnectorOutput(
            finished_sending=report.sent,  # type: ignore[arg-type]  # in order
            finished_recving=sorted(report.received),  # type: ignore[arg-type]
            invalid_block_ids=report.invalid,
        )

    def _take_finished(self, scheduled: list[str]) -> list[list[Any]]:
        """Forget the requests that ended in this step: the scheduled ones first."""
        order = [i for i in scheduled if i in self.requests]  # not those aborted since
        order += [i for i in self.requests if i not in scheduled]
        ended = [self.requests[i] for i in order if self.requests[i].is_finished()]
        for request in ended:
            del self.requests[request.request_id]
        return [
            [r.request_id, r.status.name, end_reason(str(r.get_finished_reason()), r.stop_reason)]
            for r in ended
        ]


def _scripted_connector(script: Script, block_size: int) -> Any:
    """The scheduler's half of a connector that follows the script."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
    )

    class Scripted(KVConnectorBase_V1):
        def __init__(self) -> None:
            self.num_computed: dict[str, int] = {}

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
            self.num_computed[request.request_id] = num_computed_tokens
            return script.answer(request.request_id, request.num_tokens, num_computed_tokens)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external: int) -> None:
            num_computed = self.num_computed.get(request.request_id, 0)
            ids = blocks.get_block_ids()[0]
            script.allocated(request.request_id, ids, num_external, num_computed, block_size)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            return KVConnectorMetadata()

        def request_finished(self, request: Any, block_ids: list[int]) -> Any:
            return script.finished(request.request_id, block_ids), None

        def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
            return (0,)

        def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_for_layer_load(self, layer_name: str) -> None: ...
        def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
        def wait_for_save(self) -> None: ...

    return Scripted()


def _grammar(num_steps: int) -> bool | None:
    """A grammar that is ready in so many steps: None until then."""
    return True if num_steps <= 0 else None


def _ids_of_groups(blocks: Any) -> list[list[int]]:
    return [[block.block_id for block in table] for table in blocks.blocks]


def _new_block_ids(output: Any) -> dict[str, list[int]]:
    """Blocks of group 0 by request, from the two halves of a `SchedulerOutput`."""
    blocks = {r.req_id: r.block_ids[0] for r in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    for request_id, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
        blocks[request_id] = list(new[0]) if new is not None else []
    return blocks


def _feature(image: Image) -> Any:
    """An image as vLLM's front end describes it, without the pixels."""
    import torch
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    offset, length, mm_hash, mask = placeholder(image)
    is_embed = None if mask is None else torch.tensor(mask)
    position = PlaceholderRange(offset=offset, length=length, is_embed=is_embed)
    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=mm_hash, mm_position=position, mm_hash=mm_hash
    )


def _waiting(scheduler: Any) -> list[Any]:
    """All waiting requests in the order of popping: under "priority" the two queues are merged."""
    if hasattr(scheduler, "kv_holding_waiting"):  # always asked before the others
        return [*_popped(scheduler.kv_holding_waiting), *_popped(scheduler.waiting)]
    both = [*scheduler.skipped_waiting, *scheduler.waiting]
    return both if scheduler.policy.value == "fcfs" else sorted(both)


def _popped(queue: Any) -> list[Any]:
    """A queue in the order of popping."""
    return list(queue)


def make_cache(config: TraceConfig) -> Any:
    """vLLM's description of the cache: one layer that remembers everything, or one a group."""
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    groups = config.groups or (GroupSpec("full", config.block_size),)
    specs: list[Any] = []
    for group in groups:
        heads = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
        size = group.block_size
        if group.kind == "full":
            specs.append(FullAttentionSpec(block_size=size, **heads))
        elif group.kind == "sliding_window":
            specs.append(SlidingWindowSpec(block_size=size, sliding_window=group.window, **heads))
        elif group.kind == "chunked_local":
            specs.append(
                ChunkedLocalAttentionSpec(
                    block_size=size, attention_chunk_size=group.chunk, **heads
                )
            )
        else:
            specs.append(
                MambaSpec(
                    block_size=size,
                    shapes=((1,),),
                    dtypes=(torch.float32,),
                    mamba_cache_mode=group.mode,
                )
            )
    newer: dict[str, Any] = {}
    if config.profile != "v0.22":
        interval = config.prefix_cache_retention_interval
        newer["prefix_cache_retention_interval"] = 0 if interval is None else interval
    return KVCacheConfig(
        num_blocks=config.num_gpu_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer{i}"], s) for i, s in enumerate(specs)],
        **newer,
    )


def block_sizes(config: TraceConfig) -> tuple[int, int]:
    """Tokens to which the scheduler aligns, and tokens that one hash covers."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    return resolve_kv_cache_block_sizes(make_cache(config), make_config(config))


def make_scheduler(config: TraceConfig, grammars: Any = None, log_stats: bool = False) -> Any:
    """vLLM's scheduler for such a cache, with everything switched off that is not asked for.

    Args:
        grammars: stands in for its StructuredOutputManager; None: one without grammars.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler_block_size, hash_block_size = block_sizes(config)
    no_images = SimpleNamespace(supports_multimodal_inputs=lambda *args: False)
    scheduler = (AsyncScheduler if config.async_scheduling else Scheduler)(
        make_config(config),
        make_cache(config),
        grammars or no_grammars(),
        block_size=scheduler_block_size,
        hash_block_size=hash_block_size,
        mm_registry=no_images,
        log_stats=log_stats,
    )
    if config.encoder_cache_size:  # what it would have got from a model that sees
        from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

        budget = config.max_num_encoder_input_tokens or config.max_num_batched_tokens
        scheduler.max_num_encoder_input_tokens = budget
        scheduler.encoder_cache_manager = EncoderCacheManager(config.encoder_cache_size)
    return scheduler


def no_grammars() -> Any:
    """vLLM's manager of grammars, none of which advances; nothing of its set-up is done."""
    from vllm.v1.structured_output import StructuredOutputManager

    class NoGrammars(StructuredOutputManager):
        enable_in_reasoning = False

        def __init__(self) -> None: ...

        def _get_reasoner(self, request: Any) -> None:
            return None

        def should_advance(self, request: Any) -> bool:
            return False

        def accept_tokens(self, request: Any, token_ids: list[int]) -> bool:
            return True

        def validate_tokens(self, request: Any, token_ids: list[int]) -> list[int]:
            return token_ids

    return NoGrammars()


def make_config(config: TraceConfig) -> SimpleNamespace:
    """The parts of `VllmConfig` that the scheduler reads."""
    scheduler = SimpleNamespace(
        max_num_seqs=config.max_num_seqs,
        max_num_scheduled_tokens=None,
        max_num_batched_tokens=config.max_num_batched_tokens,
        policy=config.policy,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        enable_chunked_prefill=config.enable_chunked_prefill,
        disable_chunked_mm_input=config.disable_chunked_mm_input,
        scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
        async_scheduling=config.async_scheduling,
        **_since_the_pin(config),
    )
    num_batches = 2 if config.async_scheduling else 1
    return SimpleNamespace(
        scheduler_config=scheduler,
        cache_config=SimpleNamespace(
            num_gpu_blocks=config.num_gpu_blocks,
            enable_prefix_caching=config.enable_prefix_caching,
            block_size=config.block_size,
            hash_block_size=None,
            mamba_cache_mode=next((g.mode for g in config.groups if g.kind == "mamba"), "none"),
            prefix_match_unit=None,
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            max_model_len=config.max_model_len,
            enable_return_routed_experts=False,
            uses_mrope=False,
            runner_type="generate",
            is_diffusion=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False,
            enable_mfu_metrics=False,
            per_request_spec_decode_metrics="none",
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        num_speculative_tokens=config.num_speculative_tokens,
        num_lookahead_tokens=0 if config.spec_method == "ngram" else config.num_speculative_tokens,
        num_prefill_lookahead_tokens=int(_uses_eagle(config)),
        max_concurrent_batches=num_batches,
        max_in_flight_tokens=num_batches * config.max_num_batched_tokens,
        lora_config=SimpleNamespace(max_loras=config.max_loras) if config.max_loras else None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=_speculation(config) if config.num_speculative_tokens else None,
        use_v2_model_runner=False,  # so that resumed requests are told apart from new ones
    )


def _since_the_pin(config: TraceConfig) -> dict[str, Any]:
    """Settings of the scheduler that newer releases have."""
    return {
        "max_num_active_seqs": None,
        "long_prefill_token_threshold_adaptive": config.long_prefill_token_threshold_adaptive,
        "watermark": config.admission_watermark,
    }


def _uses_eagle(config: TraceConfig) -> bool:
    return config.num_speculative_tokens > 0 and config.spec_method == "eagle"


def _speculation(config: TraceConfig) -> SimpleNamespace:
    return SimpleNamespace(
        num_speculative_tokens=config.num_speculative_tokens,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,  # our drafter's rows are a batch of their own
        use_eagle_block_drop=lambda: config.spec_method == "eagle",
        use_eagle=lambda: config.spec_method == "eagle",
        uses_draft_model=lambda: config.spec_method == "draft_model",
    )


def answer(text: str) -> dict[str, Any]:
    """See `runner.answer_with`."""
    return answer_with(lambda trace: replay(trace, VllmSubject(trace.config)), text)


def main() -> None:
    """Answer the traces of standard input until it ends."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    replies = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # vLLM may print; the replies must stay clean
        import vllm

        importlib.import_module("vllm.v1.core.sched.scheduler")  # the slow part
        print(json.dumps({"vllm": vllm.__version__}), file=replies, flush=True)
        for text in sys.stdin:
            print(json.dumps(answer(text), separators=(",", ":")), file=replies, flush=True)


if __name__ == "__main__":
    main()
