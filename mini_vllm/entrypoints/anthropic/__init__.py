"""Anthropic's HTTP interface, as vLLM implements it."""

import mini_vllm.entrypoints.openai  # noqa: F401  checks that the packages are installed
