"""Slips of the fingers. A line that is wrong ends with mypy's and pyright's code of the error."""

# ruff: noqa: B018, E501, F401, I001
# fmt: off

import mini_vllm
from mini_vllm import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from mini_vllm import Sampling  # ✗ attr-defined reportAttributeAccessIssue
from mini_vllm.config import EngineConfig
from mini_vllm.lora.request import LoRARequest
from mini_vllm.sampling_params import BeamSearchParams, StructuredOutputsParams

# ---------------------------------------------------------------- names that are not there
llm = LLM("storyteller")
mini_vllm.LMM  # ✗ attr-defined reportAttributeAccessIssue
llm.generat("Once")  # ✗ attr-defined reportAttributeAccessIssue
llm.embedd("Once")  # ✗ attr-defined reportAttributeAccessIssue
llm.config.schedular  # ✗ attr-defined reportAttributeAccessIssue
llm.config.scheduler.max_num_seq  # ✗ attr-defined reportAttributeAccessIssue
llm.config.scheduler_config.max_num_seq  # ✗ attr-defined reportAttributeAccessIssue
llm.config.lora_configs  # ✗ attr-defined reportAttributeAccessIssue
llm.llm_engine.add_requests  # ✗ attr-defined reportAttributeAccessIssue
output = llm.generate("Once")[0]
output.outputs[0].txt  # ✗ attr-defined reportAttributeAccessIssue
output.output  # ✗ attr-defined reportAttributeAccessIssue
output.outputs[0].logprobs[0]  # ✗ index reportOptionalSubscript
llm.chat([{"role": "user", "content": "Hello"}])[0].text  # ✗ attr-defined reportAttributeAccessIssue
llm.beam_search("Once", BeamSearchParams(2, 8))[0].outputs  # ✗ attr-defined reportAttributeAccessIssue
SamplingParams().temprature  # ✗ attr-defined reportAttributeAccessIssue

# ---------------------------------------------------------------- arguments that are not there
LLM("storyteller", max_num_seq=3)  # ✗ call-arg reportCallIssue
LLM()  # ✗ call-arg reportCallIssue
EngineArgs("storyteller", max_num_seq=3)  # ✗ call-arg reportCallIssue
AsyncEngineArgs("storyteller", max_num_seq=3)  # ✗ call-arg reportCallIssue
EngineConfig.from_kwargs("storyteller", max_num_seq=3)  # ✗ call-arg reportCallIssue
SamplingParams(temprature=1)  # ✗ call-arg reportCallIssue
SamplingParams.from_optional(temprature=1)  # ✗ call-arg reportCallIssue
StructuredOutputsParams(jsn={})  # ✗ call-arg reportCallIssue
BeamSearchParams(width=2, max_tokens=8)  # ✗ call-arg reportCallIssue
LoRARequest("pirate", 1, path="folder")  # ✗ call-arg reportCallIssue
llm.generate("Once", sampling_param=SamplingParams())  # ✗ call-arg reportCallIssue
llm.chat([], tool=[])  # ✗ call-arg reportCallIssue

# ---------------------------------------------------------------- values of another type
LLM("storyteller", max_num_seqs="3")  # ✗ arg-type reportArgumentType
LLM("storyteller", enable_lora=None)  # ✗ arg-type reportArgumentType
LLM("storyteller", policy="lifo")  # ✗ arg-type reportArgumentType
LLM("storyteller", runner=1)  # ✗ arg-type reportArgumentType
LLM("storyteller", speculative_config=3)  # ✗ arg-type reportArgumentType
LLM("storyteller", scheduler_cls=3)  # ✗ arg-type reportArgumentType
LLM(3)  # ✗ arg-type reportArgumentType
AsyncEngineArgs("storyteller", block_size="16")  # ✗ arg-type reportArgumentType
SamplingParams(temperature="hot")  # ✗ arg-type reportArgumentType
SamplingParams(max_tokens=1.5)  # ✗ arg-type reportArgumentType
SamplingParams.from_optional(top_p="all")  # ✗ arg-type reportArgumentType
StructuredOutputsParams(choice="yes")  # ✗ arg-type reportArgumentType
LoRARequest("pirate", "1", "folder")  # ✗ arg-type reportArgumentType
llm.generate(3)  # ✗ arg-type reportArgumentType
llm.generate("Once", "hot")  # ✗ arg-type reportArgumentType
llm.generate("Once", {"temperature": 1})  # ✗ arg-type reportArgumentType
llm.generate("Once", use_tqdm="no")  # ✗ arg-type reportArgumentType
llm.generate("Once", lora_request="pirate")  # ✗ arg-type reportArgumentType
llm.chat("Hello")  # ✗ arg-type reportArgumentType
llm.beam_search("Once", SamplingParams())  # ✗ arg-type reportArgumentType
LLMEngine.from_engine_args("storyteller")  # ✗ arg-type reportArgumentType
number: int = output.outputs[0].text  # ✗ assignment reportAssignmentType


# ---------------------------------------------------------------- and with many callers
async def main() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs("storyteller"))
    engine.generat("Once", SamplingParams(), "r0")  # ✗ attr-defined reportAttributeAccessIssue
    engine.generate("Once", SamplingParams())  # ✗ call-arg reportCallIssue
    engine.generate("Once", {"top_p": 1}, "r0")  # ✗ arg-type reportArgumentType
    async for output in engine.generate("Once", SamplingParams(), "r0"):
        output.outputs[0].txt  # ✗ attr-defined reportAttributeAccessIssue
    await engine.list_lora()  # ✗ attr-defined reportAttributeAccessIssue
    await engine.add_lora("pirate")  # ✗ arg-type reportArgumentType
    engine.config.schedular  # ✗ attr-defined reportAttributeAccessIssue
    AsyncLLM.from_engine_args("storyteller")  # ✗ arg-type reportArgumentType
    AsyncLLM.from_vllm_config(engine.config, stream_intervals=4)  # ✗ call-arg reportCallIssue
