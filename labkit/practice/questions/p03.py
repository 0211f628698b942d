"""Questions of phase 03: what one step computes, and who must leave."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question, counted


def _lines(config: dict[str, Any], prompts: list[int], outputs: list[int]) -> list[dict[str, Any]]:
    """A replay of requests r0, r1, … that arrive together and share nothing."""
    from labkit.trace.format import Add, Drain, Prompt, Trace, TraceConfig
    from labkit.trace.runner import ReferenceSubject, replay

    adds = [
        Add(f"r{i}", Prompt(length, seed=i), max_tokens=most, ignore_eos=True)
        for i, (length, most) in enumerate(zip(prompts, outputs, strict=True))
    ]
    trace = Trace(TraceConfig(**config), (*adds, Drain(400)))
    return list(replay(trace, ReferenceSubject(trace.config)))


def _by_hand(
    budget: int, rows: int, prompts: list[int], outputs: list[int]
) -> list[dict[str, int]]:
    """The plans of a pool that is never short: who runs first, then who waits, within the
    budget."""
    known, computed = list(prompts), [0] * len(prompts)
    running, waiting, plans = list[int](), list(range(len(prompts))), list[dict[str, int]]()
    while running or waiting:
        left, plan = budget, dict[str, int]()
        for i in running:
            take = min(known[i] - computed[i], left)
            if take:
                plan[f"r{i}"], left = take, left - take
        while waiting and left and len(running) < rows:
            i = waiting.pop(0)
            running.append(i)
            plan[f"r{i}"] = min(known[i], left)
            left -= plan[f"r{i}"]
        for i in list(running):
            computed[i] += plan.get(f"r{i}", 0)
            if computed[i] == known[i]:
                known[i] += 1
                if known[i] - prompts[i] == outputs[i]:
                    running.remove(i)
        plans.append(plan)
    return plans


def _drawn(rng: Random) -> tuple[int, int, list[int], list[int], dict[str, Any]]:
    budget, rows = rng.choice((8, 12, 16)), rng.choice((2, 3, 4))
    prompts = [rng.randint(2, 30) for _ in range(4)]
    outputs = [rng.randint(2, 6) for _ in range(4)]
    config = {"max_num_batched_tokens": budget, "max_num_seqs": rows, "block_size": 4}
    return budget, rows, prompts, outputs, config | {"num_gpu_blocks": 200}


def _story(budget: int, rows: int, prompts: list[int], outputs: list[int]) -> str:
    told = ", ".join(
        f"r{i} {p} + {o}" for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))
    )
    return (
        f"A budget of {budget} tokens a step, {rows} rows, a pool that is never short, chunked"
        f" prefill. Before step 0 arrive, in this order (prompt + output): {told}."
    )


def tokens_of_a_step(rng: Random) -> Question:
    budget, rows, prompts, outputs, config = _drawn(rng)
    plans = _by_hand(budget, rows, prompts, outputs)
    step = rng.randrange(1, min(6, len(plans)))
    name = rng.choice(list(plans[step]) or ["r0"])
    return Question(
        f"{_story(budget, rows, prompts, outputs)} How many tokens does {name} compute in step"
        f" {step}?",
        lambda: int(_lines(config, prompts, outputs)[step]["scheduled"].get(name, 0)),
        lambda: plans[step].get(name, 0),
        "Running requests come first, in order, each with all that it misses; then the waiting"
        " ones, each with what is left: " + "; ".join(f"step {n}: {p}" for n, p in
                                                      enumerate(plans[: step + 1])) + ".",
    )  # fmt: skip


def end_of_a_request(rng: Random) -> Question:
    budget, rows, prompts, outputs, config = _drawn(rng)
    who = rng.randrange(4)

    def engine() -> int:
        lines = _lines(config, prompts, outputs)
        return next(line["step"] for line in lines
                    if any(done[0] == f"r{who}" for done in line["finished"]))  # fmt: skip

    def by_hand() -> int:
        plans = _by_hand(budget, rows, prompts, outputs)
        return max(n for n, plan in enumerate(plans) if f"r{who}" in plan)

    return Question(
        f"{_story(budget, rows, prompts, outputs)} In which step does r{who} end?",
        engine,
        by_hand,
        f"It samples its first token in the step that computes the last of its {prompts[who]} prompt"
        f" tokens, and one in each step after that, {outputs[who]} in all.",
    )


def recomputed(rng: Random) -> Question:
    size = 4
    prompts = [rng.randint(5, 12), rng.randint(5, 12)]
    blocks = sum(-(-p // size) for p in prompts) + 1
    config = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "block_size": size,
              "num_gpu_blocks": blocks + 1, "enable_prefix_caching": False,
              "scheduler_reserve_full_isl": False}  # fmt: skip
    outputs = [12, 12]

    def engine() -> int:
        for line in _lines(config, prompts, outputs):
            if line["preempted"]:
                return int(line["step"])
        return -1

    def by_hand() -> int:
        lengths = list(prompts)  # step 0 computes both prompts whole
        for step in range(1, 12):
            lengths = [length + 1 for length in lengths]
            if sum(-(-length // size) for length in lengths) > blocks:
                return step
        return -1

    return Question(
        f"Blocks of {size}, {blocks} usable, no prefix caching. r0 has a prompt of {prompts[0]} tokens"
        f" and r1 of {prompts[1]}; both arrive before step 0 and want 12 tokens each. In which step is"
        " a request preempted for the first time?",
        engine,
        by_hand,
        f"After step n they have {prompts[0]} + n and {prompts[1]} + n tokens with slots. Count the"
        f" blocks of both until there are more than {blocks}.",
    )


def clamped(rng: Random) -> Question:
    wanted, computed = rng.randint(1, 60), rng.randint(0, 90)
    budget, threshold, longest = rng.choice((8, 16, 64)), rng.choice((0, 10, 24)), 96

    def engine() -> int:
        from types import SimpleNamespace

        from mini_vllm.core.scheduler import Scheduler

        config = SimpleNamespace(long_prefill_token_threshold=threshold)
        scheduler: Any = SimpleNamespace(
            scheduler_config=config, max_model_len=longest, long_prefill_cap=threshold
        )
        return Scheduler._clamp_new_tokens(scheduler, wanted, computed, budget)

    limits = [wanted, budget, longest - 1 - computed] + [threshold] * bool(threshold)
    return Question(
        f"max_model_len {longest}, long_prefill_token_threshold {threshold}, {budget} tokens of budget"
        f" left. A running request has {counted(computed, 'token')} computed and misses {wanted}. How"
        " many does it compute in this step?",
        engine,
        lambda: max(min(limits), 0),
        f"The least of {limits}, and never below 0. The last token of a full sequence is never"
        " computed; a threshold of 0 is none.",
    )


def priority_order(rng: Random) -> Question:
    requests = [(name, rng.randint(0, 2), rng.randint(1, 3)) for name in "abcd"]

    def engine() -> str:
        from mini_vllm.core.request_queue import PriorityRequestQueue
        from mini_vllm.request import Request

        queue = PriorityRequestQueue()
        for name, priority, arrival in requests:
            queue.add_request(Request(name, [1], priority=priority, arrival_time=float(arrival)))
        return " ".join(queue.pop_request().request_id for _ in requests)

    told = ", ".join(f"{name} ({p}, {a})" for name, p, a in requests)
    return Question(
        f"The priority policy. Requests with (priority, arrival): {told}. In which order are they"
        " served?",
        engine,
        lambda: " ".join(sorted("abcd", key=lambda n: requests["abcd".index(n)][1:] + (n,))),
        "The smaller priority number first, then the earlier arrival, then the name.",
    )


KINDS = {
    "tokens-of-a-step": tokens_of_a_step,
    "end-of-a-request": end_of_a_request,
    "first-preemption": recomputed,
    "clamped": clamped,
    "priority-order": priority_order,
}
