"""``use_beam_search``: the most probable continuations of a prompt, instead of sampled ones.

As in :meth:`LLM.beam_search`, each step is a request for one token a beam::

    prompt ──► step 1 ──► step 2 ──► ... ──► step max_tokens      no text is final before the last
               1 beam     n beams            n beams
                                                │
                                                ▼
                             one stream a prompt, complete from the start

Source: vllm/entrypoints/generate/beam_search/online.py#L28-L225 (BeamSearchOnlineMixin.beam_search)
@ v0.22.1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mini_vllm.engine.async_llm import Stream
from mini_vllm.engine.beam_search import (
    BeamSearch,
    BeamSearchSequence,
    check_width,
    grow,
    step_params,
)
from mini_vllm.engine.collector import OutputCutter, RequestOutputCollector
from mini_vllm.engine.detokenizer import IncrementalDetokenizer
from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.state import ServerState, Turns
from mini_vllm.inputs import PromptType, text_of
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams


async def search_beams(
    state: ServerState,
    request_id: str,
    prompts: Sequence[PromptType],
    params: Sequence[BeamSearchParams],
    lora: LoRARequest | None = None,
    priority: int = 0,
    headers: Mapping[str, str] | None = None,
) -> list[Stream]:
    """Search for all prompts together, to the end. Returns what :meth:`ServerState.submit` returns.

    Args:
        params: of each prompt; they differ in ``max_tokens`` only.

    Raises:
        ValueError, QueueFullError, EngineDeadError, APIError: the engine then has no part of the
            request any more.
    """
    try:
        check_width(params[0].beam_width, state.engine.config.model.max_logprobs)
    except ValueError as error:
        raise APIError(f"n is the number of beams, and {error}", param="n") from error
    eos_token_ids = state.engine.input_processor.model.eos_token_ids
    searches = []
    for prompt, one in zip(prompts, params, strict=True):
        token_ids = await state.engine.tokenize(prompt)
        searches.append(BeamSearch(prompt, token_ids, one, eos_token_ids, lora))
    firsts: list[RequestOutput] = []
    """Outputs of the first step, which computes the prompts: they have the prompts' token ids and
    the number of cached tokens."""
    turns = Turns()
    for step in range(max(one.max_tokens for one in params)):
        growing = [search for search in searches if step < search.params.max_tokens]
        outputs = await _propose(state, request_id, growing, lora, priority, headers)
        firsts = firsts or outputs
        rest = iter(outputs)
        for search in growing:
            grow([search], [next(rest) for _ in search.beams])
            await turns.pass_on()
    streams = []
    for search, first in zip(searches, firsts, strict=True):
        streams.append(_as_stream(state, search, first))
        await turns.pass_on()
    return streams


async def _propose(
    state: ServerState,
    request_id: str,
    searches: Sequence[BeamSearch],
    lora: LoRARequest | None,
    priority: int,
    headers: Mapping[str, str] | None,
) -> list[RequestOutput]:
    """One step of the engine for all beams of all searches: one output a beam, in their order."""
    prompts = [search.prompt_of(beam) for search in searches for beam in search.beams]
    params = [step_params(searches[0].params) for _ in prompts]
    for one in params:
        one.output_kind = RequestOutputKind.FINAL_ONLY
    streams = await state.submit(request_id, prompts, params, lora, priority, headers)
    try:
        outputs = [await stream.collector.get() for stream in streams]
        for output in outputs:
            state.check_output(output)
        return outputs
    finally:
        state.close(streams)


def _as_stream(state: ServerState, search: BeamSearch, first: RequestOutput) -> Stream:
    """A complete stream: one output, with the best beams of a search."""
    sequences = search.output(state.engine.tokenizer).sequences
    live = dataclasses.replace(
        first,
        prompt=text_of(search.prompt),
        outputs=[_completion(state, one, i, search) for i, one in enumerate(sequences)],
        finished=True,
    )
    kind = RequestOutputKind.FINAL_ONLY
    cutter = OutputCutter(live, live.request_id, kind)
    stream = Stream(live.request_id, live, cutter, RequestOutputCollector(kind), child_ids=[])
    stream.collector.put(live)
    return stream


def _completion(
    state: ServerState, beam: BeamSearchSequence, index: int, search: BeamSearch
) -> CompletionOutput:
    """A beam as an answer: without the prompt, and without the end token unless the request asks
    for it. As in vLLM, the logprobs of the end token stay."""
    new_ids = beam.tokens[len(search.token_ids) :]
    ends = beam.finish_reason == "stop"
    detokenizer = IncrementalDetokenizer(state.engine.tokenizer, search.token_ids, SamplingParams())
    text = detokenizer.append(new_ids[: len(new_ids) - ends])
    return CompletionOutput(
        index,
        text + detokenizer.flush(),
        new_ids if search.params.include_stop_str_in_output else new_ids[: len(new_ids) - ends],
        beam.cum_logprob,
        beam.logprobs,
        beam.finish_reason,
        beam.stop_reason,
    )
