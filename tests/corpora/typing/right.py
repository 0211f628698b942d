"""Scripts as users of vLLM write them: type checkers have nothing to say about any line."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mini_vllm
from mini_vllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    EngineArgs,
    EngineDeadError,
    EngineGenerateError,
    LLMEngine,
    ModelRegistry,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    RepetitionDetectionParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    ScoringOutput,
    ScoringRequestOutput,
    TextPrompt,
    TokensPrompt,
)
from mini_vllm.config import EngineConfig, KVTransferConfig, VllmConfig
from mini_vllm.distributed import cleanup_dist_env_and_memory
from mini_vllm.engine.arg_utils import AsyncEngineArgs as AsyncArgs
from mini_vllm.engine.arg_utils import EngineArgs as Args
from mini_vllm.engine.async_llm import AsyncLLM as V1AsyncLLM
from mini_vllm.engine.exceptions import EngineDeadError as Dead
from mini_vllm.lora.request import LoRARequest
from mini_vllm.observability.reader import Counter, Gauge, Histogram, Vector
from mini_vllm.sample.custom import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    RequestLogitsProcessor,
    process_dict_updates,
)
from mini_vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

print(mini_vllm.__version__, mini_vllm.__version_tuple__[0], ModelRegistry.get_supported_archs())
print(mini_vllm.LLM, VllmConfig, AsyncArgs, V1AsyncLLM, Dead)
print(AdapterLogitsProcessor, RequestLogitsProcessor, process_dict_updates)


# ---------------------------------------------------------------- one model, many prompts
llm = LLM(model="storyteller", seed=0, dtype="float32", trust_remote_code=True, max_model_len=512)
prompts = ["Once upon a time", "The capital of France is"]
params = SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=16, stop=["\n"], seed=1)
for output in llm.generate(prompts, params):
    text: str = output.outputs[0].text
    tokens: list[int] = output.outputs[0].token_ids
    first: CompletionOutput = output.outputs[0]
    print(f"{output.prompt!r} -> {text!r}", len(tokens), first.finish_reason, first.stop_reason)
whole: list[RequestOutput] = llm.generate("Once", use_tqdm=False)
llm.generate([1, 2, 3])
llm.generate({"prompt": "Once"})
llm.generate([{"prompt_token_ids": [1, 2, 3]}, {"prompt": "Once", "cache_salt": "mine"}])
llm.generate(TextPrompt(prompt="Once"), SamplingParams())
llm.generate([TokensPrompt(prompt_token_ids=[1, 2])], [SamplingParams()], priority=[0])
mixed: list[PromptType] = ["Once", [1, 2], {"prompt": "Once"}]
llm.generate(mixed)
made = [{"prompt_token_ids": ids} for ids in ([1, 2], [3])]
llm.generate(made, [params, params], lora_request=[None, LoRARequest("pirate", 1, "folder")])
for output in llm.stream("Once", SamplingParams(max_tokens=None)):
    print(output.outputs[0].text, output.finished)

ids: list[str] = llm.enqueue(prompts, params)
print(llm.wait_for_completion(), ids)
default: SamplingParams = llm.get_default_sampling_params()
default.max_tokens = 100
print(llm.get_tokenizer().encode("Once"), llm.llm_engine.get_num_unfinished_requests())

# ---------------------------------------------------------------- chats
llm.chat([{"role": "user", "content": "Hello"}], params, use_tqdm=False)
conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
]
llm.chat(conversation)
llm.chat([conversation, conversation], params, chat_template_kwargs={"enable_thinking": False})
weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
llm.chat(conversation, tools=[weather], add_generation_prompt=True)
seen = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0"}},
        ],
    }
]
llm.chat(seen, SamplingParams(max_tokens=8), mm_processor_kwargs={"max_pixels": 200704})
print(llm.apply_chat_template(conversation, enable_thinking=False))

# ---------------------------------------------------------------- beams
for found in llm.beam_search(["Once"], BeamSearchParams(beam_width=4, max_tokens=16)):
    for sequence in found.sequences:
        print(sequence.text, sequence.cum_logprob)

# ---------------------------------------------------------------- what form the text must have
for form in (
    StructuredOutputsParams(choice=["yes", "no"]),
    StructuredOutputsParams(regex=r"\d+"),
    StructuredOutputsParams(json={"type": "object", "properties": {"age": {"type": "integer"}}}),
    StructuredOutputsParams(grammar='root ::= "a"'),
):
    llm.generate("Once", SamplingParams(structured_outputs=form, temperature=0))
loop = RepetitionDetectionParams(max_pattern_size=8, min_count=3)
SamplingParams(repetition_detection=loop, logit_bias={7: -100}, bad_words=["fox"], top_k=5)
SamplingParams.from_optional(temperature=None, top_p=0.5)
SamplingParams(logprobs=3, prompt_logprobs=1, extra_args={"mine": 1}).clone()
for output in llm.generate("Once", SamplingParams(logprobs=3)):
    for entries in output.outputs[0].logprobs or []:
        print({token: entry.logprob for token, entry in entries.items()})
    if output.metrics is not None:
        print(output.metrics.first_token_time, output.num_cached_tokens)

# ---------------------------------------------------------------- features by argument
draft = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
LLM("storyteller", speculative_config=draft, enable_chunked_prefill=None, max_num_seqs=4)
LLM("storyteller", enable_lora=True, max_loras=2, max_lora_rank=16, max_cpu_loras=4)
LLM(Path("model"), tensor_parallel_size=2, distributed_executor_backend="mp")
LLM("vision", limit_mm_per_prompt={"image": 2}, mm_processor_kwargs={"max_pixels": 1000})
connector = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both")
LLM("storyteller", kv_transfer_config=connector, structured_outputs_config={"backend": "native"})
LLM("storyteller", quantization="int8", kv_cache_dtype="fp8", gpu_memory_utilization=0.5)
LLM("storyteller", runner="generate", tokenizer_mode="auto", enable_sleep_mode=True, swap_space=4)
LLM("storyteller", scheduler_cls="vllm-v0", disable_log_stats=False, skip_tokenizer_init=True)
LLM("storyteller", hf_overrides={"rope_theta": 1e6}, profiler_config={"torch_profiler_dir": "x"})
settings: dict[str, Any] = {"max_num_seqs": 4, "block_size": 16}
LLM("storyteller", **settings)

config: EngineConfig = llm.config
blocks: int | None = config.cache.num_gpu_blocks
print(config.scheduler.max_num_seqs, config.model.seed, blocks, config.lora is None)
print(config.scheduler_config.max_model_len, config.model_config.dtype, config.cache_config)
print(config.parallel_config.world_size, config.lora_config, config.speculative_config)

llm.sleep(level=1)
llm.wake_up()
done: bool = llm.reset_prefix_cache()
ranks: list[Any] = llm.collective_rpc(lambda worker: worker.rank)
llm.apply_model(lambda model: type(model).__name__)
for metric in llm.get_metrics():
    if isinstance(metric, Gauge | Counter):
        print(metric.name, metric.value)
    elif isinstance(metric, Vector):
        print(metric.name, metric.values)
    else:
        histogram: Histogram = metric
        print(histogram.name, histogram.sum, histogram.buckets)
llm.shutdown()
cleanup_dist_env_and_memory()

# ---------------------------------------------------------------- stepping the engine
parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
LLM(**vars(parser.parse_args()))
LLM.from_engine_args(EngineArgs.from_cli_args(parser.parse_args()))
engine = LLMEngine.from_engine_args(Args("storyteller", max_num_seqs=4, disable_log_stats=False))
engine.add_request("r0", "Once", SamplingParams(max_tokens=8), lora_request=None)
while engine.has_unfinished_requests():
    for output in engine.step():
        print(output.request_id, output.outputs[0].text)
engine.abort_request(["r0"])


# ---------------------------------------------------------------- a logits processor
class Quiet(LogitsProcessor):
    """Lets everything be."""

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        return None

    def apply(self, logits: Any) -> Any:
        return logits

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if params.extra_args is not None:
            raise ValueError("extra_args is not read; leave it out")


LLM("storyteller", logits_processors=[Quiet, "mine:Loud"])


# ---------------------------------------------------------------- models that pool
pool = LLM("embedder", runner="pooling")
asked = PoolingParams(dimensions=8)
vectors: list[EmbeddingRequestOutput] = pool.embed(["Once"], pooling_params=asked)
vector: EmbeddingOutput = vectors[0].outputs
classes: list[ClassificationRequestOutput] = pool.classify(["Once"])
one: ClassificationOutput = classes[0].outputs
scores: list[ScoringRequestOutput] = pool.score("Once", ["upon", "a time"])
points: ScoringOutput = scores[0].outputs
states: list[PoolingRequestOutput[PoolingOutput]] = pool.encode(["Once"], pooling_task="embed")
print(vector.embedding, one.probs, points.score, states[0].outputs.data.shape)


# ---------------------------------------------------------------- many callers
async def read(engine: AsyncLLM, number: int) -> str:
    params = SamplingParams(max_tokens=8, output_kind=RequestOutputKind.DELTA)
    outputs: AsyncIterator[RequestOutput] = engine.generate("Once", params, f"r{number}")
    return "".join([output.outputs[0].text async for output in outputs])


async def main() -> None:
    args = AsyncEngineArgs(model="storyteller", max_num_seqs=4, stream_interval=2, seed=1)
    engine = AsyncLLM.from_engine_args(args)
    try:
        print(await asyncio.gather(*(read(engine, number) for number in range(3))))
        await engine.add_lora(LoRARequest("pirate", 1, "folder"))
        adapters: set[int] = await engine.list_loras()
        await engine.sleep()
        await engine.abort("r0")
        print(adapters, await engine.is_sleeping(), engine.tokenizer, engine.errored)
    except (EngineDeadError, EngineGenerateError) as error:
        print(error)
    finally:
        engine.shutdown()
    other = AsyncLLMEngine.from_vllm_config(args.create_engine_config(), stream_interval=4)
    other.shutdown()


asyncio.run(main())
