"""The log of requests, with ``--enable-log-requests``: ids, prompts and parameters.

Source: vllm/entrypoints/logger.py#L17-L72 (RequestLogger) @ v0.22.1
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.inputs import PromptType
from mini_vllm.lora.request import LoRARequest

logger = logging.getLogger(__name__)


class RequestLogger:
    """Logs a line for each request; its prompt, too, where VLLM_LOGGING_LEVEL is DEBUG.

    Args:
        max_log_len: most characters and tokens of a prompt that are logged; None: all.
    """

    def __init__(self, max_log_len: int | None = None) -> None:
        self.max_log_len = max_log_len
        if not logger.isEnabledFor(logging.INFO):
            logger.warning(
                "--enable-log-requests is given, and VLLM_LOGGING_LEVEL lets none of its lines "
                "through; set it to INFO, or to DEBUG for the prompts, too"
            )

    def log_inputs(
        self, request_id: str, prompt: PromptType, params: Any, lora_request: LoRARequest | None
    ) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            text, token_ids = parts_of(prompt)
            logger.debug(
                "Request %s details: prompt: %r, prompt_token_ids: %s.",
                request_id,
                None if text is None else text[: self.max_log_len],
                None if token_ids is None else list(token_ids[: self.max_log_len]),
            )
        logger.info(
            "Received request %s: params: %s, lora_request: %s.", request_id, params, lora_request
        )


def parts_of(prompt: PromptType) -> tuple[str | None, Sequence[int] | None]:
    """The text and the token ids of a prompt, as far as it has them."""
    given: Any = prompt
    if isinstance(given, Mapping):
        return given.get("prompt"), given.get("prompt_token_ids")
    return (given, None) if isinstance(given, str) else (None, given)
