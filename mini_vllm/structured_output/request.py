"""The constraint of one request, and the state of its compilation.

Source: vllm/v1/structured_output/request.py#L22-L74 (StructuredOutputRequest) @ v0.22.1
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from mini_vllm.errors import Fault, RequestFailure
from mini_vllm.sampling_params import SamplingParams, StructuredOutputsParams
from mini_vllm.structured_output.backend_types import (
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)


@dataclass
class StructuredOutputRequest:
    """Made when a request with a constraint arrives.

    Attributes:
        params: the constraint; None for a budget of the reasoning alone.
        wrap: turns the compiled grammar into the one of this request.
        submitted: when the compilation was submitted, in seconds of the monotonic clock.
    """

    params: StructuredOutputsParams | None
    future: Future[StructuredOutputGrammar] | None = None
    submitted: float = 0.0
    _grammar: StructuredOutputGrammar | None = None
    wrap: Callable[[StructuredOutputGrammar], StructuredOutputGrammar] | None = None

    @staticmethod
    def from_sampling_params(params: SamplingParams | None) -> StructuredOutputRequest | None:
        """None for a request without a constraint and without a budget for its reasoning."""
        if params is None:
            return None
        if params.structured_outputs is None and params.thinking_token_budget is None:
            return None
        return StructuredOutputRequest(params.structured_outputs)

    @property
    def structured_output_key(self) -> StructuredOutputKey:
        if self.params is None:
            return StructuredOutputOptions.ANYTHING, ""
        return get_structured_output_key(self.params)

    @property
    def grammar(self) -> StructuredOutputGrammar | None:
        """The compiled grammar; None while it compiles and if compiling has failed."""
        if self._grammar is None:  # kept, because each call of a future's methods takes a lock
            if self.future is None or not self.future.done() or self.future.cancelled():
                return None
            if self.future.exception() is None:
                grammar = self.future.result()
                self._grammar = grammar if self.wrap is None else self.wrap(grammar)
        return self._grammar

    @property
    def failure(self) -> RequestFailure | None:
        """Why compiling has failed, or None. For a ValueError the constraint is at fault. Never
        waits."""
        if self._grammar is not None:
            return None
        if self.future is None or not self.future.done() or self.future.cancelled():
            return None
        error = self.future.exception()
        if isinstance(error, ValueError):
            return RequestFailure(str(error), "structured_outputs", Fault.REQUEST)
        return None if error is None else RequestFailure(str(error))


def get_structured_output_key(params: StructuredOutputsParams) -> StructuredOutputKey:
    """The kind of constraint and its text; a schema given as a dict is written out first.

    Source: vllm/v1/structured_output/request.py#L77-L98 (get_structured_output_key) @ v0.22.1
    """
    if params.json is not None:
        spec = params.json if isinstance(params.json, str) else json.dumps(params.json)
        compact = params.disable_any_whitespace
        kind = StructuredOutputOptions.COMPACT_JSON if compact else StructuredOutputOptions.JSON
        return kind, spec
    if params.json_object:
        return StructuredOutputOptions.JSON_OBJECT, ""
    if params.regex is not None:
        return StructuredOutputOptions.REGEX, params.regex
    if params.choice is not None:
        return StructuredOutputOptions.CHOICE, json.dumps(params.choice)
    if params.grammar is not None:
        return StructuredOutputOptions.GRAMMAR, params.grammar
    tag = params.structural_tag
    assert tag is not None, "__post_init__ lets exactly one through"
    spec = tag if isinstance(tag, str) else json.dumps(tag)
    return StructuredOutputOptions.STRUCTURAL_TAG, spec
