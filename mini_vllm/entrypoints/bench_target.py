"""The measured server: its models, its tokenizer, its counters of drafts, and its profiler."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.json_files import parse_json

DraftCounts = Counter[tuple[str, str]]
"""Counters of speculative decoding, by name (without ``vllm:spec_decode_num_``) and position."""
_PREFIX, _SUFFIX = "vllm:spec_decode_num_", "_total"


@dataclass
class Target:
    """The server that is measured.

    Attributes:
        base: its URL, without a slash at the end.
        insecure: do not verify its certificate.
    """

    base: str
    headers: Mapping[str, str]
    insecure: bool = False

    def ask(self, path: str, data: bytes | None = None, seconds: float = 10) -> bytes:
        """The answer to a GET, or to a POST of ``data``. Raises OSError if there is none."""
        import ssl
        from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

        context = ssl._create_unverified_context() if self.insecure else None
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        headers = {"Content-Type": "application/json", **self.headers}
        request = Request(self.base + path, data, headers)
        with opener.open(request, timeout=seconds) as answer:
            return bytes(answer.read())

    def first_model(self, patience: float) -> tuple[str, str]:
        """The name of the server's first model, and the model's path or repository if reported.

        Args:
            patience: seconds to wait for the server.

        Raises:
            ValueError: if it does not answer, or refuses the request.
        """
        from urllib.error import HTTPError

        end = time.monotonic() + patience
        where = f"{self.base}/v1/models"
        while True:
            try:
                card = parse_json(self.ask("/v1/models"))["data"][0]
                return str(card["id"]), str(card.get("root") or card["id"])
            except OSError as error:
                if isinstance(error, HTTPError) and error.code < 500:  # a retry would not help
                    raise ValueError(
                        f"{where} answers {error.code} {error.reason}; set OPENAI_API_KEY to "
                        "the server's key, or name the model with --model"
                    ) from error
                if time.monotonic() > end:
                    raise ValueError(
                        f"no server answers at {self.base}: {error}; is it running?"
                    ) from error
                time.sleep(0.5)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise ValueError(
                    f"{where} does not list models as OpenAI's does; name one with --model"
                ) from error

    def texts(self, model: str, prompts: Sequence[list[int]]) -> list[str] | None:
        """Prompts of token ids as text, by the server's own tokenizer; None for a server that does
        not tell.

        A text of random tokens has more tokens when it is read again, so it is cut to as many.

        Source: vllm/benchmarks/datasets/datasets.py#L470-L524 (gen_prompt_decode_to_target_len)
        @ v0.22.1
        """

        def answer(path: str, **body: Any) -> Any:
            return parse_json(self.ask(path, json.dumps({"model": model, **body}).encode()))

        def text(tokens: list[int]) -> str:
            drawn = answer("/detokenize", tokens=tokens)["prompt"]
            again = answer("/tokenize", prompt=drawn, add_special_tokens=False)["tokens"]
            return str(answer("/detokenize", tokens=again[: len(tokens)])["prompt"])

        try:
            return [text(tokens) for tokens in prompts]
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def profile(self, what: str) -> None:
        """ "start" or "stop" a recording. Raises ValueError if the server makes none."""
        try:
            self.ask(f"/{what}_profile", b"", seconds=600)
        except OSError as error:
            raise ValueError(
                f"--profile: {self.base}/{what}_profile answers {error}; the server must be "
                "started with --profiler-config"
            ) from error

    def draft_counts(self) -> DraftCounts:
        """The server's counters of drafts so far; empty if it makes or reports none.

        Source: vllm/benchmarks/serve.py#L105-L166 (fetch_spec_decode_metrics) @ v0.22.1
        """
        from prometheus_client.parser import text_string_to_metric_families

        counts: DraftCounts = Counter()
        try:
            families = list(text_string_to_metric_families(self.ask("/metrics").decode()))
        except (OSError, ValueError):
            return counts
        for sample in (sample for family in families for sample in family.samples):
            if sample.name.startswith(_PREFIX) and sample.name.endswith(_SUFFIX):
                name = sample.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
                counts[name, sample.labels.get("position", "")] += int(sample.value)
        return counts


def draft_figures(before: DraftCounts, after: DraftCounts) -> dict[str, Any]:
    """The acceptance of a run's drafts, under vLLM's names; empty if there were none.

    Source: vllm/benchmarks/serve.py#L873-L917 (benchmark) @ v0.22.1
    """
    drafts, tokens, accepted = (
        after[name, ""] - before[name, ""] for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if drafts <= 0 or tokens <= 0:
        return {}
    places = sorted((key for key in after if key[1]), key=lambda key: int(key[1]))
    return {
        "spec_decode_acceptance_rate": 100 * accepted / tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [
            (after[key] - before[key]) / drafts for key in places
        ],
    }
