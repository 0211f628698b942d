"""The figures of `docs/arena.md`: written by a command, and checked by the same command.

Text between `<!-- arena:NAME -->` and `<!-- /arena:NAME -->` is generated, the rest is written by
hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.arena.contest import Outcome
from labkit.arena.cost import CostModel, StepLoad
from labkit.arena.report import figures_table, goodput_matrix, promise
from labkit.arena.workloads import WORKLOADS, Workload
from labkit.course.root import ROOT

PAGE = ROOT / "docs/arena.md"
PICTURES = ROOT / "docs/pictures"
SEED = 0


def blocks(outcomes: Sequence[Outcome], cost: CostModel) -> dict[str, str]:
    """The generated parts of the page, by name."""
    workloads = [WORKLOADS[name] for name in dict.fromkeys(o.match.workload for o in outcomes)]
    details = "\n\n".join(
        f"### {w.name}\n\n{_story(w)}\n\n"
        + figures_table(w, [o for o in outcomes if o.match.workload == w.name])
        for w in workloads
    )
    return {
        "arena:goodput": goodput_matrix(workloads, outcomes),
        "arena:details": details,
        "arena:prices": prices(cost),
    }


def _story(workload: Workload) -> str:
    scheduler, cache = workload.scheduler, workload.cache
    assert cache.num_gpu_blocks is not None
    facts = [
        f"budget {scheduler.max_num_batched_tokens:,} tokens",
        f"{scheduler.max_num_seqs} rows",
        f"{cache.num_gpu_blocks - 1:,} blocks of {cache.block_size}",
    ]
    if scheduler.long_prefill_token_threshold:
        facts.append(
            f"at most {scheduler.long_prefill_token_threshold} tokens of one prompt a step"
        )
    if scheduler.policy != "fcfs":
        facts.append(f"order: {scheduler.policy}")
    about = workload.about[0].upper() + workload.about[1:]
    return f"{about}. {', '.join(facts).capitalize()}. SLO: {promise(workload)}."


def prices(cost: CostModel) -> str:
    """The cost model as a table."""
    units = {
        "step": "a step, whatever it does",
        "prefills": "a request that computes more than one token",
        "prefill_tokens": "each of these tokens",
        "prefill_pairs": "each such token, times the length of its sequence",
        "decodes": "a request that computes one token",
        "decode_context": "each token of its sequence",
        "swapped_blocks": "a block between device and host",
        "copied_blocks": "a block copied on the device",
    }
    lines = ["| for | microseconds |", "| --- | ---: |"]
    for name, price in zip(StepLoad._fields, cost.prices, strict=True):
        lines.append(f"| {units[name]} | {price * 1e6:.4g} |")
    error, machine = cost.facts["error_on_held_out_steps"], cost.facts["machine"]
    lines += [
        "",
        f"Fitted to {error['steps_fitted']:,} steps; on {error['steps_held_out']:,} others the "
        f"median error is {error['median']:.1%}, and nine of ten are within {error['p90']:.1%}. "
        f"Measured on {machine['processor']} ({machine['machine']}), {machine['threads']} thread, "
        f"torch {machine['torch']}.",
    ]
    if later := cost.facts.get("error_on_a_later_measurement"):
        lines.append(
            f"On {later['steps_held_out']:,} steps of a later measurement the median error is "
            f"{later['median']:.1%}, and the sum of their times is off by {later['total']:.1%}."
        )
    return "\n".join(lines)
