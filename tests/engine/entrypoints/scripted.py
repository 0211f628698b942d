"""A server in this process whose engine says what a test has written, in pieces of any size.

Only the engine is missing: routes, parsers and events are the real ones, asked by real clients
(starlette's test client is one of httpx, and so takes the place of theirs).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from mini_vllm.config import StructuredOutputsConfig
from mini_vllm.engine.vocabulary import Vocabulary
from mini_vllm.entrypoints.openai.api_server import build_app
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind

SPECIAL = {256: "<|turn|>", 257: "<|end|>"}
"""All other tokens are bytes."""


class Tokenizer:
    """A token is a byte. Its chat template writes thoughts, calls and tools as JSON.

    Args:
        behind: what its generation prompt ends with; ``{enable_thinking: False}`` closes a thought.
    """

    chat_template = "its own"
    all_special_ids = tuple(SPECIAL)

    def __init__(self, behind: str = "") -> None:
        self.behind = behind
        self.added_tokens_decoder = {
            i: SimpleNamespace(content=text, special=True) for i, text in SPECIAL.items()
        }

    def __len__(self) -> int:
        return 256 + len(SPECIAL)

    def get_vocab(self) -> dict[str, int]:
        from mini_vllm.structured_output.token_index import byte_of_character

        return byte_of_character() | {text: i for i, text in SPECIAL.items()}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(text.split("<|turn|>")):
            ids += [256] * bool(index) + list(part.encode())
        return ids

    def apply_chat_template(
        self, messages: Sequence[dict[str, Any]], tools: Any = None, **options: Any
    ) -> str:
        text = "" if tools is None else f"<|turn|>tools{json.dumps(tools)}"
        for message in messages:
            rest = {key: value for key, value in message.items() if key != "role"}
            text += f"<|turn|>{message['role']}{json.dumps(rest)}"
        if options["add_generation_prompt"]:
            is_quiet = options.get("enable_thinking") is False
            text += "<|turn|>assistant\n" + ("<think>\n\n</think>\n\n" if is_quiet else self.behind)
        return text


class ScriptedEngine:
    """Says ``script``: for each request the next text, in random pieces if it streams.

    Attributes:
        prompts: what it was asked, as text.
        params: how.
    """

    def __init__(self, script: Sequence[str], structured: StructuredOutputsConfig, behind: str):
        self.script, self.prompts, self.params = list(script), [], []  # type: ignore[var-annotated]
        self.tokenizer = Tokenizer(behind)
        self.config = SimpleNamespace(
            structured=structured, scheduler=SimpleNamespace(policy="fcfs"), speculative=None
        )
        self.errored, self.profiler_config = False, None
        self.output_processor = SimpleNamespace(vocabulary=Vocabulary(self.tokenizer))
        self.limits = SimpleNamespace(
            vocab_size=len(self.tokenizer), max_model_len=8192, check=lambda *given: None
        )
        self.admission = SimpleNamespace(check=lambda *given: None)
        self.input_processor = SimpleNamespace(
            images=None, check_length=lambda *given: None, longest_text=lambda *given: 10**6,
            num_logprobs=lambda name, wanted: wanted, check_constraint=lambda params: None,
            pooling=None,
        )  # fmt: skip
        self.random = random.Random(0)

    def request_refused(self, params: Any) -> None: ...

    def close_stream(self, stream: Any) -> None: ...

    async def add_request(self, request_id: str, prompt: Any, params: Any, **more: Any) -> Any:
        token_ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt
        vocabulary = self.output_processor.vocabulary
        self.prompts.append(b"".join(map(vocabulary.bytes_of, token_ids)).decode())
        self.params.append(params)
        ready = asyncio.Event()
        ready.set()
        live = SimpleNamespace(prompt_token_ids=token_ids, num_cached_tokens=0)
        output = RequestOutput(request_id, None, token_ids, outputs=[])
        collector = SimpleNamespace(ready=ready, output=output)
        return SimpleNamespace(live=live, collector=collector, params=params, id=request_id)

    async def outputs(self, stream: Any) -> AsyncIterator[RequestOutput]:
        text = self.script.pop(0)
        stop = next((s for s in stream.params.stop or () if s in text), None)
        text = text.partition(stop)[0] if stop else text
        is_cut = len(text.encode()) > stream.params.max_tokens
        text = text.encode()[: stream.params.max_tokens].decode() if is_cut else text
        pieces = [text]
        if stream.params.output_kind is RequestOutputKind.DELTA:
            places = sorted(self.random.choices(range(len(text) + 1), k=len(text) // 3))
            pieces = [text[a:b] for a, b in zip([0, *places], [*places, None], strict=True)]
        for index, piece in enumerate(pieces):
            is_last = index == len(pieces) - 1
            reason = ("length" if is_cut else "stop") if is_last else None
            completion = CompletionOutput(
                0, piece, list(piece.encode()), finish_reason=reason,
                stop_reason=stop if is_last else None,
            )  # fmt: skip
            token_ids = stream.live.prompt_token_ids
            yield RequestOutput(stream.id, None, token_ids, outputs=[completion], finished=is_last)


def scripted(
    *script: str, behind: str = "", structured: dict[str, Any] | None = None, **of_state: Any
) -> tuple[TestClient, ScriptedEngine]:
    """A client of a server that says ``script``, and its engine.

    Args:
        behind: what the template's generation prompt ends with.
        structured: of StructuredOutputsConfig, such as the reasoning parser.
        of_state: further options of the server; tools are on unless they say otherwise.
    """
    engine: Any = ScriptedEngine(script, StructuredOutputsConfig(**structured or {}), behind)
    metrics: Any = SimpleNamespace(registry=CollectorRegistry())
    tools: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    keys = of_state.pop("api_keys", ())
    state = ServerState(engine, metrics, ["m"], **tools | of_state)
    return TestClient(build_app(state, keys)), engine
