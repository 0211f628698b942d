"""Look into a run: requests by steps, the token budget, the block pool, step by step.

`sources` reads a recording or replays a trace, `recording` checks its lines, `rows` and `pool`
reconstruct what happened, and three views show it: `page` (one HTML file, `packing` its data),
`terminal` and `perfetto`.
"""
