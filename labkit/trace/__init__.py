"""Traces: small files that say what arrives when, and replays that print every decision.

`format` reads and checks a trace, `runner` replays it on a scheduler, `diff` compares two replays,
`generate` makes random traces, `coverage` says what they exercise, `golden` holds recorded ones.
`vllm_oracle` replays on vLLM's own scheduler, in an environment of its own (`oracle` talks to it).

Nothing here imports more than the standard library until a replay starts.
"""
