"""Beam search: of all texts that a prompt may become, look for the most probable ones.

In each step every beam proposes the tokens that are most probable after it, and the best of all
proposals are the beams of the next step, here with a width of 2::

    prompt ─┬─ a  -0.4 ─┬─ a c  -1.2   kept
            │           └─ a d  -2.8
            └─ b  -1.1 ─┬─ b e  -1.5   kept
                        └─ b </s> -1.9  complete: it proposes nothing more, and competes in the end

A beam's step is a request of one token. All but the last token of it were computed by the step
before, and stand in the prefix cache.

Source: vllm/entrypoints/generate/beam_search/offline.py#L24-L182 (BeamSearchOfflineMixin) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.inputs import PromptType
from mini_vllm.lora.request import LoRARequest
from mini_vllm.outputs import Logprob, RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams


@dataclass
class BeamSearchSequence:
    """One text: ``tokens`` and ``text`` begin with the prompt, ``logprobs`` behind it."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None

    def followed_by(self, token_id: int, proposals: dict[int, Logprob]) -> BeamSearchSequence:
        """This text and one of the tokens that were proposed for it."""
        return BeamSearchSequence(
            [*self.tokens, token_id],
            [*self.logprobs, proposals],
            self.lora_request,
            self.cum_logprob + proposals[token_id].logprob,
        )


@dataclass
class BeamSearchOutput:
    """What became of one prompt: at most ``beam_width`` texts, the best first."""

    sequences: list[BeamSearchSequence]


class BeamSearch:
    """The beams of one prompt, and the texts that are complete.

    Args:
        prompt: as it was given; images and salts go with every beam.
        token_ids: of the prompt.
        eos_token_ids: tokens that end a text.
    """

    def __init__(
        self,
        prompt: PromptType,
        token_ids: list[int],
        params: BeamSearchParams,
        eos_token_ids: Sequence[int],
        lora_request: LoRARequest | None = None,
    ) -> None:
        self.prompt = {**prompt} if isinstance(prompt, Mapping) else {}
        self.token_ids, self.params = token_ids, params
        self.eos_token_ids = eos_token_ids
        self.beams = [BeamSearchSequence(token_ids, lora_request=lora_request)]
        self.completed: list[BeamSearchSequence] = []

    def prompt_of(self, beam: BeamSearchSequence) -> Any:
        """The prompt that asks for a beam's next token."""
        return {**self.prompt, "prompt_token_ids": beam.tokens}

    def score(self, beam: BeamSearchSequence) -> float:
        """How good a text is; larger is better::

            cum_logprob / length ** length_penalty

        The length counts the tokens of the prompt too. An end token at the end is not counted.
        Log probabilities are negative, so a larger penalty favours longer texts; with penalty 0 the
        probability alone decides.

        Source: vllm/entrypoints/generate/beam_search/utils.py#L137-L153 (get_beam_search_score)
        @ v0.22.1
        """
        length = len(beam.tokens) - (beam.tokens[-1] in self.eos_token_ids)
        return float(beam.cum_logprob / length**self.params.length_penalty)

    def best(self, beams: Sequence[BeamSearchSequence]) -> list[BeamSearchSequence]:
        """The ``beam_width`` texts with the best score, the best first.

        Of equal ones the first in ``beams`` wins. ``beams`` itself is not changed.

        Source: vllm/entrypoints/generate/beam_search/offline.py#L164-L167
        (BeamSearchOfflineMixin.beam_search) @ v0.22.1
        """
        return sorted(beams, key=self.score, reverse=True)[: self.params.beam_width]

    def grow(self, proposals: Sequence[dict[int, Logprob]]) -> None:
        """Take one step: each beam tries each of its proposals, and the best texts are the beams of
        the next step.

        All proposals of all beams compete in one pool, so both children of one beam may win and a
        beam may be left without any. A text that a token of ``eos_token_ids`` ends is complete: it
        gets ``finish_reason`` "stop" and the token as ``stop_reason``, joins ``completed``, and
        takes no place among the beams. With ``params.ignore_eos`` no token ends a text.

        Args:
            proposals: for each beam, its most probable next tokens, the best first.

        Raises:
            ValueError: if there is not one dict for each beam.

        Source: vllm/entrypoints/generate/beam_search/offline.py#L139-L167
        (BeamSearchOfflineMixin.beam_search) @ v0.22.1
        """
        pool = []
        for beam, proposed in zip(self.beams, proposals, strict=True):
            for token_id in proposed:
                longer = beam.followed_by(token_id, proposed)
                if token_id in self.eos_token_ids and not self.params.ignore_eos:
                    longer.finish_reason, longer.stop_reason = "stop", token_id
                    self.completed.append(longer)
                else:
                    pool.append(longer)
        self.beams = self.best(pool)

    def finished(self) -> list[BeamSearchSequence]:
        """The best of all texts when there are no more steps: of the complete ones, and of the
        beams, which compete with them. Of equal ones a complete text comes first.

        A beam among them gets ``finish_reason`` "length".

        Source: vllm/entrypoints/generate/beam_search/offline.py#L169-L175
        (BeamSearchOfflineMixin.beam_search) @ v0.22.1
        """
        texts = self.best([*self.completed, *self.beams])
        for text in texts:
            text.finish_reason = text.finish_reason or "length"
        return texts

    def output(self, tokenizer: Any) -> BeamSearchOutput:
        """What :meth:`finished` has found, as tokens and as text."""
        sequences = self.finished()
        for sequence in sequences:
            sequence.text = None if tokenizer is None else tokenizer.decode(sequence.tokens)
        return BeamSearchOutput(sequences)


def run_searches(
    searches: Sequence[BeamSearch],
    params: BeamSearchParams,
    generate: Callable[..., list[RequestOutput]],
    step_done: Callable[[], Any],
) -> None:
    """Let all searches take their steps together.

    Args:
        generate: :meth:`~mini_vllm.engine.llm.LLM.generate`.
        step_done: called after each step.

    Raises:
        ValueError: if a beam cannot be served; with the reason.
    """
    step = step_params(params)
    for _ in range(params.max_tokens):
        pairs = [(search, beam) for search in searches for beam in search.beams]
        outputs = generate(
            [search.prompt_of(beam) for search, beam in pairs],
            step,
            use_tqdm=False,
            lora_request=[beam.lora_request for _, beam in pairs],
        )
        grow(searches, outputs)
        step_done()


def step_params(params: BeamSearchParams) -> SamplingParams:
    """How a beam is asked for its next tokens.

    It proposes twice as many as there are beams: if half of them end a text, enough are left.
    """
    return SamplingParams(temperature=0, max_tokens=1, logprobs=2 * params.beam_width)


def check_width(beam_width: int, max_logprobs: int) -> None:
    """Raises ValueError for more beams than an engine with ``max_logprobs`` has proposals for."""
    proposals = 2 * beam_width
    if max_logprobs != -1 and proposals > max_logprobs:
        raise ValueError(
            f"beam_width is {beam_width}; a beam proposes twice as many tokens by their logprobs, "
            f"{proposals}, and max_logprobs is {max_logprobs}; lower it, or start the engine with "
            f"max_logprobs={proposals}"
        )


def grow(searches: Sequence[BeamSearch], outputs: Sequence[RequestOutput]) -> None:
    """Let every search take its step.

    Args:
        outputs: one for each beam, search by search.

    Raises:
        ValueError: if a beam could not be served; with the reason. No search has grown then.
    """
    beams = [beam for search in searches for beam in search.beams]
    proposals = iter([_proposals(b, output) for b, output in zip(beams, outputs, strict=True)])
    for search in searches:
        search.grow([next(proposals) for _ in search.beams])


def _proposals(beam: BeamSearchSequence, output: RequestOutput) -> dict[int, Logprob]:
    """The most probable next tokens of a beam, the best first."""
    completion = output.outputs[0]
    if not completion.logprobs:
        why = output.error or f"it ended with {completion.stop_reason or completion.finish_reason}"
        raise ValueError(
            f"a beam of {len(beam.tokens)} tokens cannot be served: {why}; or lower max_tokens"
        )
    return completion.logprobs[0]
