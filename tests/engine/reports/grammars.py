"""The ways of reports of constraints: is a text legal? Each answer maps a text to yes or no."""

from __future__ import annotations

from functools import partial
from typing import Any

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.tool_parser import tool_schema
from mini_vllm.sampling_params import StructuredOutputsParams
from mini_vllm.structured_output.choose import backends_for, check_constraint, make_backend
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.structured_output.token_index import TokenTable

END = 256
BYTES = TokenTable([bytes([byte]) for byte in range(256)] + [b""])


def constraint(given: dict[str, Any], backend: str | None = None) -> dict[str, bool | str]:
    """Of `texts`: whether each has the form of `structured_outputs`; or the words of a refusal."""
    params = StructuredOutputsParams(**given["structured_outputs"])
    return {text: _accepts(params, text, backend or "native") for text in given["texts"]}


constraint_of_xgrammar = partial(constraint, backend="xgrammar")


def required(given: dict[str, Any], backend: str | None = None) -> dict[str, bool | str]:
    """Of `texts`: whether each is an answer to `tool_choice` "required" with `tools`.

    A tool is its parameters; tool 0 is called "t0".
    """
    tools = [
        {"type": "function", "function": {"name": f"t{index}", "parameters": parameters}}
        for index, parameters in enumerate(given["tools"])
    ]
    wanted = {"json": tool_schema(tools, "required"), "disable_any_whitespace": True}
    return constraint({"structured_outputs": wanted, "texts": given["texts"]}, backend)


required_of_xgrammar = partial(required, backend="xgrammar")


def request(given: dict[str, Any]) -> dict[str, Any]:
    """What the engine is asked to enforce, of a chat with these fields; or the refusal."""
    chat = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi."}], **given)
    try:
        chat.check_fields(1000)
        params = chat.sampling_params({}, 16, None).structured_outputs
    except (APIError, ValueError) as error:
        return {"refused": str(error)}
    if params is None:
        return {}
    kind, text = get_structured_output_key(params)
    return {kind.value: text}


def _accepts(params: StructuredOutputsParams, text: str, name: str) -> bool | str:
    config = StructuredOutputsConfig(backend=name)
    check_constraint(config, params)
    kind, spec = get_structured_output_key(params)
    (name,) = backends_for(config, kind)
    grammar = make_backend(name, BYTES, [END], config).compile_grammar(kind, spec)
    return grammar.accept_tokens("", [*text.encode(), END])
