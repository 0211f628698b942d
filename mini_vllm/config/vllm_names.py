"""Arguments of vLLM's `LLM` and `serve` that have no counterpart here, and why.

A script written for vLLM should need only its import changed. So an argument that asks for what is
so anyway is taken and dropped, and one that cannot be had is refused by its name, not as a typing
error. `docs/api.md` shows both lists.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, NoReturn

ALIASES: dict[str, str] = {
    "num_gpu_blocks_override": "num_gpu_blocks",
    "scheduling_policy": "policy",
}
"""vLLM's names of arguments that have another here; both are taken."""

IGNORED: dict[str, str] = {
    "trust_remote_code": "no code of a model is ever run",
    "disable_log_stats": "a server counts always, and logs nothing without being asked for",
    "safetensors_load_strategy": "files are mapped",
    "ignore_patterns": "only what is needed is downloaded",
    "code_revision": "no code of a model is ever run",
    "tokenizer_mode": "transformers chooses",
    "config_format": "config.json is the one that is read",
    "max_seq_len_to_capture": "every length is replayed from the same graph",
    "swap_space": "V1 does not swap",
    "disable_cascade_attn": "there is none",
    "enable_log_requests": "requests are not logged",
    "disable_log_requests": "requests are not logged",
    "enable_server_load_tracking": "GET /load counts them always",
    "prefix_caching_hash_algo": "always sha256",
    "logprobs_mode": "raw_logprobs, vLLM's default",
    "enable_sleep_mode": "LLM.sleep() works without it",
    "additional_config": "no platform reads it",
    "nccl_so_path": "torch brings its own",
}
"""Taken and dropped."""

AS_IT_IS: dict[str, tuple[Any, ...]] = {
    "logprobs_mode": ("raw_logprobs",),
    "tokenizer_mode": ("auto", "hf", "slow"),
    "config_format": ("auto", "hf"),
    "runner": ("auto", "generate"),
    "convert": ("auto", "none"),
    "model_impl": ("auto", "vllm"),
    "performance_mode": ("balanced",),
    "stream_interval": (1,),
}
"""Values that ask for what is so anyway; others of these arguments are refused."""

SPELLINGS: dict[str, dict[str, str]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"gguf": "auto"},  # a file says for itself what it is
}
"""vLLM's words for values that have another here."""

SECTION_KEYS: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    "speculative_config": {
        "enforce_eager": ("drafts run as the model does", (True,)),
        "quantization": ("a drafter's checkpoint says for itself", ()),
        "attention_backend": ("drafts run as the model does", ()),
        "moe_backend": ("drafts run as the model does", ("auto",)),
        "revision": ("give a folder", ()),
        "code_revision": ("no code of a model is ever run", ()),
        "disable_padded_drafter_batch": ("drafts have no padding", (True,)),
        "use_local_argmax_reduction": ("each rank has the whole row", ()),
        "parallel_drafting": ("drafters are ngram, draft_model, medusa and eagle", ()),
        "draft_load_config": ("files are mapped and copied once", ()),
        "suffix_decoding_max_tree_depth": ("there is no suffix decoding", (24,)),
        "suffix_decoding_max_cached_requests": ("there is no suffix decoding", (10000,)),
        "suffix_decoding_max_spec_factor": ("there is no suffix decoding", (1.0,)),
        "suffix_decoding_min_token_prob": ("there is no suffix decoding", (0.1,)),
    },
    "structured_outputs_config": {
        "reasoning_parser": ("reasoning is part of the text", ()),
        "reasoning_parser_plugin": ("reasoning is part of the text", ()),
        "enable_in_reasoning": ("reasoning is part of the text", ()),
    },
    "kv_transfer_config": {
        "kv_buffer_device": ("blocks are copied by way of the host", ("cpu",)),
        "kv_buffer_size": ("see kv_connector_extra_config", (1e9,)),
        "kv_rank": ("who is who is told by engine_id", ()),
        "kv_parallel_size": ("as many engines as you like", (1,)),
        "kv_ip": ("see kv_connector_extra_config", ("127.0.0.1",)),
        "kv_port": ("see kv_connector_extra_config", (14579,)),
        "enable_permute_local_kv": ("blocks have one layout", ()),
    },
    "profiler_config": {
        "profiler": ("torch's profiler is the one there is", ("torch",)),
        "torch_profiler_with_stack": ("operations are recorded by name and time", ()),
        "torch_profiler_with_flops": ("operations are recorded by name and time", ()),
        "torch_profiler_record_shapes": ("operations are recorded by name and time", ()),
        "torch_profiler_with_memory": ("operations are recorded by name and time", ()),
        "torch_profiler_use_gzip": ("the trace is plain JSON", ()),
        "torch_profiler_dump_cuda_time_total": ("add it up from the trace", ()),
        "ignore_frontend": ("one process is recorded", (True,)),
        "delay_iterations": ("call start_profile later", ()),
        "max_iterations": ("call stop_profile earlier", ()),
        "warmup_iterations": ("call start_profile later", ()),
        "wait_iterations": ("call start_profile later", ()),
        "active_iterations": ("call stop_profile earlier", (5,)),
    },
}
"""Keys of vLLM's sections that are not here: why, and the values that ask for what is so anyway."""


def asks_for_nothing(value: Any, as_it_is: Collection[Any] = ()) -> bool:
    """Whether a value of an argument that is not here asks for what is so without it."""
    return value in (None, False, 0, "", "auto", *as_it_is)


REFUSED: dict[str, str] = {
    "vllm_config": "use config",
    "model_config": "use config.model",
    "data_parallel_rank": "replicas are made by data_parallel_size in one place",
    "data_parallel_size_local": "replicas are made by data_parallel_size, on one machine",
    "cpu_distributed_timeout_seconds": "one limit for all: distributed_timeout_seconds",
    "dbo_prefill_token_threshold": "a step is not split in two",
    "enable_expert_parallel": "experts of a layer stay together; leave it out",
    "pipeline_parallel_microbatches": "leave it out",
    "decode_context_parallel_size": "a request's cache is not split; leave it out",
    "prefill_context_parallel_size": "a request's cache is not split; leave it out",
    "hf_config_path": "config.json lies beside the weights",
    "stream_interval": "generate() and chat() return whole answers",
    "kv_sharing_fast_prefill": "leave it out",
    "calculate_kv_scales": "take a checkpoint that has them, or 'fp8_per_token_head'",
    "enable_prompt_embeds": "pass tokens",
    "runner": "models generate here, and neither embed nor classify",
    "convert": "models generate here, and neither embed nor classify",
    "pooler_config": "models generate here, and neither embed nor classify",
    "compilation_config": "use compile_model=True, or enforce_eager",
    "reasoning_parser": "reasoning is part of the text",
    "reasoning_config": "reasoning is part of the text",
    "model_impl": "the families of docs/models.md run, and no others",
    "rope_scaling": "use hf_overrides={'rope_parameters': {...}}",
    "rope_theta": "use hf_overrides={'rope_theta': ...}",
    "max_cudagraph_capture_size": "graphs are made for the batch sizes up to max_num_seqs",
    "cudagraph_capture_sizes": "graphs are made for the batch sizes up to max_num_seqs",
    "kv_offloading_size": "use kv_transfer_config with the OffloadingConnector",
    "kv_offloading_backend": "use kv_transfer_config with the OffloadingConnector",
    "worker_cls": "write an executor",
    "worker_extension_cls": "write an executor",
    "otlp_traces_endpoint": "use bench --profile, or the metrics of the server",
    "weight_transfer_config": "make a new engine of the folder with the new weights",
    "ec_transfer_config": "images are encoded where they are used",
}
"""Refused by name; what to do instead."""

GROUPS: tuple[tuple[str, str], ...] = (
    ("data_parallel_*", "replicas are made by data_parallel_size, on one machine"),
    ("*_bind*", "threads go where the system puts them; use num_threads"),
    ("dbo_*", "a step is not split in two"),
    ("enable_dbo", "a step is not split in two"),
    ("ubatch_size", "a step is not split in two"),
    ("*eplb*", "experts of a layer stay together"),
    ("enable_return_routed_experts", "which experts ran is not reported"),
    ("*expert*", "experts of a layer stay together"),
    ("*elastic_ep", "experts of a layer stay together"),
    ("enable_ep_*", "experts of a layer stay together"),
    ("*moe*", "experts run one product each"),
    ("all2all_backend", "experts of a layer stay together"),
    ("*cp_*", "a request's cache is not split"),
    ("*mamba*", "no Mamba models run here"),
    ("gdn_*", "no Mamba models run here"),
    ("offload_*", "weights lie on one device"),
    ("cpu_offload_*", "weights lie on one device"),
    ("reset_mm_cache", "pictures are named by their contents, and weights never change"),
    ("reset_encoder_cache", "pictures are named by their contents, and weights never change"),
    ("*mm_*", "images are encoded by the model's own rules"),
    ("*multimodal*", "images are encoded by the model's own rules"),
    ("video_*", "no videos"),
    ("media_io_kwargs", "images are passed as objects"),
    ("language_model_only", "models with images load whole"),
    ("*lora*", "adapters are LoRA of linear layers, whole on each rank"),
    ("*metrics*", "see the metrics of the server"),
    ("collect_detailed_traces", "use bench --profile"),
    ("*_stats", "see the metrics of the server"),
    ("*logging*", "VLLM_LOGGING_LEVEL says how much is logged"),
    ("*log_*", "uvicorn's log is the one there is"),
    ("*nsight", "use bench --profile"),
    ("*nvtx*", "use bench --profile"),
    ("*cudagraph*", "graphs are made for the batch sizes up to max_num_seqs"),
    ("*parser_plugin", "the tool parser is hermes"),
    ("tool_server", "tools are the caller's"),
    ("*attention_*", "use attention_backend"),
    ("kernel_config", "use attention_backend"),
    ("*flashinfer*", "use attention_backend"),
    ("*flash_late*", "models generate here, and neither embed nor classify"),
    ("linear_backend", "the fastest that is there is taken"),
    ("safetensors_*", "files are mapped"),
    ("*loader*", "files are mapped and copied once"),
    ("*load_*", "files are mapped and copied once"),
    ("max_parallel_loading_workers", "files are mapped and copied once"),
    ("*quantization*", "see quantization"),
    ("*partial_prefills", "V1 of vLLM refuses them, too"),
    ("*weight_transfer*", "make a new engine of the folder with the new weights"),
    ("*weight_update", "make a new engine of the folder with the new weights"),
    ("update_*", "make a new engine of the folder with the new weights"),
    ("*weight*", "give the folder"),
    ("*ssl*", "key, certificate and CA are what is read"),
    ("*docs", "the routes are those of docs/models.md and phase 14"),
    ("*supervisor*", "replicas are made by data_parallel_size, on one machine"),
    ("h11_max_header_count", "h11's own limit"),
    ("middleware", "put a proxy in front"),
    ("fingerprint_*", "answers have none"),
    ("*chat_template*", "--chat-template is the one that is read"),
    ("return_tokens_as_token_ids", "a request asks for it"),
    ("tokens_only", "use skip_tokenizer_init"),
    ("master_*", "several machines are Ray's business"),
    ("nnodes", "several machines are Ray's business"),
    ("node_rank", "several machines are Ray's business"),
    ("*distributed_timeout*", "one limit for all: distributed_timeout_seconds"),
    ("_api_*", "one front end"),
    ("*hybrid_kv*", "all layers share one kind of cache"),
    ("disable_sliding_window", "use hf_overrides={'sliding_window': None}"),
    ("kv_cache_dtype_skip_layers", "all layers share one kind of cache"),
    ("ir_op_priority", "use compile_model=True, or enforce_eager"),
    ("optimization_level", "use compile_model=True, or enforce_eager"),
    ("performance_mode", "use compile_model=True, or enforce_eager"),
    ("use_fp64_gumbel", "sampling inverts the distribution"),
    ("enable_cumem_allocator", "torch's allocator"),
    ("renderer_num_workers", "one front end"),
    ("io_processor_plugin", "no plugins"),
    ("fail_on_environ_validation", "unknown variables are nobody's"),
    ("disable_nccl_*", "gloo or nccl, by device"),
    ("output_text_buffer_length", "internal"),
    ("from_vllm_config", "use from_engine_args"),
    ("notify_kv_transfer_*", "use request_refused"),
    ("scale_*", "replicas are made by data_parallel_size, on one machine"),
    ("enqueue_chat", "use apply_chat_template, then enqueue"),
    ("compute_tokens", "use get_tokenizer"),
    ("encode", "models generate here, and neither embed nor classify"),
    ("embed", "models generate here, and neither embed nor classify"),
    ("classify", "models generate here, and neither embed nor classify"),
    ("reward", "models generate here, and neither embed nor classify"),
    ("score", "models generate here, and neither embed nor classify"),
    ("pooling_*", "models generate here, and neither embed nor classify"),
)
"""The rest by pattern: what to do instead, or why not."""


def why_not(name: str) -> str | None:
    """Why an argument, parameter or method of vLLM is not here; None if nobody has said so."""
    if name in REFUSED:
        return REFUSED[name]
    return next((why for pattern, why in GROUPS if fnmatchcase(name, pattern)), None)


DIFFERS: dict[str, str] = {
    "max_model_len": "without it, as with -1: the longest that model and KV cache hold",
    "gpu_memory_utilization": "on a CPU at most half of what is free",
    "attention_backend": "'reference', 'cpu' or 'triton'",
    "quantization": "'int8' and 'fp8' while loading, 'gguf' keeps a GGUF file's blocks; "
    "checkpoints say for themselves",
    "load_format": "'auto', which is 'gguf' for such a file, or 'dummy'",
    "structured_outputs_config": "backends 'native' and 'xgrammar'",
    "kv_transfer_config": "connectors of phase 15",
    "speculative_config": "methods ngram, draft_model, medusa and eagle",
    "profiler_config": "{'torch_profiler_dir': FOLDER}",
    "cpu_offload_gb": "only 0",
    "logits_processors": "applied after penalties; not beside speculative_config",
    "sleep": "level 1, modes 'abort' and 'wait'",
    "reset_prefix_cache": "reset_connector must be False",
    "generate": "mm_processor_kwargs belong to a prompt; no tokenization_kwargs",
    "enqueue": "mm_processor_kwargs belong to a prompt; no tokenization_kwargs",
    "chat": "templates are given text, not parts; no tokenization_kwargs",
    "disable_log_stats": "False: LLM.get_metrics() tells all; no line is logged unasked",
    "collective_rpc": "AsyncLLM's takes names of methods, and plain data",
    "do_log_stats": "the line is written when it is asked for, not each ten seconds",
    "wake_up": "tags are taken, and all is woken at once",
    "wait_for_completion": "without output_type: all outputs are of one kind",
    "thinking_token_budget": "refused: it needs a reasoning parser",
    "spaces_between_special_tokens": "no effect: tokens carry their own spaces",
    "flat_logprobs": "only False",
    "routed_experts_prompt_start": "only 0",
    "skip_clone": "only False",
}
"""There, with another range or meaning."""


def refuse(owner: object, name: str) -> NoReturn:
    """What an object says of a name that it does not have: of one of vLLM's, what to do instead.

    For its ``__getattr__``.
    """
    if hasattr(type(owner), name):  # a property that has failed: its own error is the one to see
        object.__getattribute__(owner, name)
    why = None if name.startswith("_") else why_not(name)
    said = f"{type(owner).__name__} has no {name!r}" + (f": {why}" if why else "")
    raise AttributeError(said, name=name, obj=owner)
