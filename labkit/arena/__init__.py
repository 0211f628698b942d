"""The arena: schedulers race on the same load, in a simulator, without a model.

What decides is the real scheduler code; only the forward pass is replaced, by its duration::

    workloads   who arrives when, with which prompt       (seeded)
    cost        how long a step takes                     (fitted to the real engine by `measure`)
    simulator   arrivals ─► scheduler ─► cost ─► clock    (a virtual one)
    referee     shadow KV: is every token really computed, in a block of its own?
    metrics     latencies, goodput, fairness
    contest     several schedulers over several workloads; one that breaks a rule is out
    score       one scheduler against vllm-v1: the grade of the capstone

`report`, `plots`, `page` and `leaderboard` show and keep results; `cli` is the command
`python -m labkit arena`.
"""
