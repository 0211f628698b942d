"""Parameters of a beam search, with vLLM's names; `mini_vllm.sampling_params` has them, too."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real

from mini_vllm.errors import RequestError, show
from mini_vllm.param_checks import MAX_FLOAT32, MAX_INT64, MAX_N, check_scalar


@dataclass
class BeamSearchParams:
    """Parameters of :meth:`~mini_vllm.engine.llm.LLM.beam_search`, and of a server's beam search.

    Attributes:
        beam_width: number of texts that are kept in each step, and returned.
        max_tokens: most tokens of each, after the prompt.
        ignore_eos: treat the model's end-of-sequence tokens like other tokens.
        length_penalty: a text's log probability is divided by its length to this power; values
            above 0 favour longer texts, below 0 shorter ones.
        temperature: without effect, as in vLLM: texts are ranked by the model's own probabilities.
        include_stop_str_in_output: whether a server's answer includes the end token.
            :attr:`BeamSearchSequence.tokens` always does.

    Raises:
        ValueError: for a value out of range.

    Source: vllm/sampling_params.py#L977-L990 (BeamSearchParams) @ v0.22.1
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, kind, legal, limit, fix in (
            ("beam_width", Integral, lambda v: 1 <= v <= MAX_N, f"between 1 and {MAX_N}",
             "1 is greedy"),
            ("max_tokens", Integral, lambda v: 1 <= v <= MAX_INT64, "at least 1", "raise it"),
            ("length_penalty", Real, lambda v: -10 <= v <= 10, "between -10 and 10",
             "0 ranks by probability alone"),
            ("temperature", Real, lambda v: 0 <= v <= MAX_FLOAT32, "finite and at least 0",
             "beams are not drawn; leave it out"),
        ):  # fmt: skip
            value = check_scalar(name, getattr(self, name), kind, False, legal, limit, fix)
            setattr(self, name, value)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name} is {show(getattr(self, name))}; it must be True or False", param=name
                )
