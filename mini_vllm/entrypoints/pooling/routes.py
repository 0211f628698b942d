"""Routes of pooling models, and the check of routes that a pooling model cannot serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.entrypoints.pooling.cohere import create_cohere_embedding
from mini_vllm.entrypoints.pooling.protocol import (
    ClassificationRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from mini_vllm.entrypoints.pooling.serving import (
    create_classify,
    create_embedding,
    create_pooling,
    create_rerank,
    create_score,
)

ROUTES: dict[str, tuple[type[BaseModel], Callable[..., Any]]] = {
    "/v1/embeddings": (EmbeddingRequest, create_embedding),
    "/v2/embed": (CohereEmbedRequest, create_cohere_embedding),
    "/classify": (ClassificationRequest, create_classify),
    "/pooling": (PoolingRequest, create_pooling),
    "/score": (ScoreRequest, create_score),
    "/v1/score": (ScoreRequest, create_score),
    "/rerank": (RerankRequest, create_rerank),
    "/v1/rerank": (RerankRequest, create_rerank),
    "/v2/rerank": (RerankRequest, create_rerank),
}
GUARDED = ("/classify", "/pooling", "/score", "/rerank", "/v2/rerank", "/v2/embed")
"""Paths of ``ROUTES`` that need a key, if the server has one, and do not begin with `/v1`."""
GENERATES = {
    "/v1/completions": "Completions API",
    "/v1/chat/completions": "Chat Completions API",
    "/v1/responses": "Responses API",
    "/v1/messages": "Messages API",
}


def check_task(state: ServerState, path: str) -> None:
    """Raises APIError (400) if a path generates text and the model does not.

    Source: vllm/entrypoints/openai/chat_completion/api_router.py#L51-L78
    (create_chat_completion) @ v0.22.1, where such a server does not have the path.
    """
    if path in GENERATES and state.engine.input_processor.pooling is not None:
        raise APIError(
            f"The model does not support {GENERATES[path]}; start the server with --runner generate"
        )
