"""OpenAI's HTTP interface, as vLLM speaks it."""

from mini_vllm.extras import from_extra

with from_extra("serve", "the HTTP server"):  # each module of this package needs some of these
    import fastapi  # noqa: F401
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
