"""Anthropic's HTTP interface, as vLLM speaks it."""

import mini_vllm.entrypoints.openai  # noqa: F401  its packages are needed here, too
