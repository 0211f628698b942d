"""OpenAI's HTTP interface, as vLLM speaks it."""
