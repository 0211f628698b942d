"""Questions of phase 00: the life of a request, and what it counts."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question, counted

BLOCKED = (
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
    "WAITING_FOR_REMOTE_KVS",
    "WAITING_FOR_STREAMING_REQ",
)
REASONS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_IGNORED": "length",
    "FINISHED_ERROR": "error",
    "FINISHED_REPETITION": "repetition",
}
LIVE = ("WAITING", *BLOCKED, "RUNNING", "PREEMPTED")
ARROWS = (
    "WAITING and PREEMPTED may start to run, or become blocked; a blocked request goes back to"
    " WAITING; only RUNNING becomes PREEMPTED; an unfinished one may always finish, a finished one"
    " never changes."
)


def _status(name: str) -> Any:
    from mini_vllm.request import RequestStatus

    return RequestStatus[name]


def _may(old: str, new: str) -> bool:
    """The arrows by hand."""
    if old in REASONS or new in REASONS:
        return old not in REASONS
    if old in BLOCKED:
        return new == "WAITING"
    return new == "PREEMPTED" if old == "RUNNING" else new == "RUNNING" or new in BLOCKED


def may_change(rng: Random) -> Question:
    old, new = rng.choice((*LIVE, "FINISHED_STOPPED")), rng.choice((*LIVE, "FINISHED_ABORTED"))

    def engine() -> str:
        from mini_vllm.request import RequestStatus

        return "yes" if RequestStatus.can_become(_status(old), _status(new)) else "no"

    return Question(
        f"May a request go from {old} to {new}?",
        engine,
        lambda: "yes" if _may(old, new) else "no",
        ARROWS,
        choices=("yes", "no"),
    )


def walked(rng: Random) -> Question:
    path = [rng.choice((*LIVE, "FINISHED_STOPPED")) for _ in range(5)]

    def engine() -> str:
        from mini_vllm.request import Request

        request = Request("r", [1])
        for name in path:
            try:
                request.transition_to(_status(name))
            except ValueError:
                continue
        return request.status.name

    def by_hand() -> str:
        at = "WAITING"
        for name in path:
            at = name if _may(at, name) else at
        return at

    return Question(
        f"A new request is asked to become, one after the other: {', '.join(path)}. What is not"
        " allowed raises and changes nothing. What is its status at the end?",
        engine,
        by_hand,
        ARROWS,
        choices=(*LIVE, "FINISHED_STOPPED"),
    )


def reasons(rng: Random) -> Question:
    ends = rng.sample(list(REASONS), 3)

    def engine() -> str:
        from mini_vllm.request import RequestStatus

        return " ".join(str(RequestStatus.get_finished_reason(_status(name))) for name in ends)

    return Question(
        f"Three requests end as {', '.join(ends)}. Which finish_reason does each client read, in"
        " order? (three words)",
        engine,
        lambda: " ".join(REASONS[name] for name in ends),
        "A request that was too long from the start is IGNORED, and its client reads length, as for"
        " one that reached its limit.",
    )


def to_compute(rng: Random) -> Question:
    prompt, output, drafts = rng.randint(3, 30), rng.randint(0, 12), rng.randint(0, 5)

    def engine() -> str:
        from mini_vllm.request import Request

        request = Request("r", range(prompt))
        request.append_output_token_ids(list(range(output)))
        request.spec_token_ids = list(range(drafts))
        return f"{request.num_tokens} {request.num_tokens_with_spec}"

    return Question(
        f"A prompt of {counted(prompt, 'token')}, {counted(output, 'output token')},"
        f" {counted(drafts, 'draft')}. What are num_tokens"
        " and num_tokens_with_spec? (two numbers)",
        engine,
        lambda: f"{prompt + output} {prompt + output + drafts}",
        "Prompt and output are certain; drafts are guesses that must be computed all the same.",
    )


def hashed(rng: Random) -> Question:
    size, prompt, output = rng.choice((4, 8, 16)), rng.randint(1, 40), rng.randint(0, 20)

    def engine() -> int:
        from mini_vllm.core.block_hash import BlockHasher
        from mini_vllm.request import Request

        request = Request("r", range(prompt))
        request.set_block_hasher(BlockHasher(size, b"quiz"))
        for token in range(output):
            request.append_output_token_ids(token)
        return len(request.block_hashes)

    return Question(
        f"Blocks of {size} tokens. A prompt of {counted(prompt, 'token')}, then"
        f" {counted(output, 'output token')}, one by"
        " one. How many blocks of the request have a hash?",
        engine,
        lambda: (prompt + output) // size,
        f"Only full blocks: {prompt + output} // {size}.",
    )


def turns(rng: Random) -> Question:
    prompt, output, budget = rng.randint(2, 30), rng.randint(1, 9), rng.choice((4, 8, 16))

    def engine() -> int:
        from labkit.inside.loop import CountingEngine
        from mini_vllm.engine.step import step

        limits = {"max_num_batched_tokens": budget, "max_num_seqs": 4}
        engine = CountingEngine({"r": (prompt, output)}, 40, **limits)
        return len(engine.run(step))

    return Question(
        f"A lone request with {counted(prompt, 'token')} of prompt wants"
        f" {counted(output, 'token')}; a step computes {budget}"
        " tokens at most. How often is step called until has_requests says no?",
        engine,
        lambda: -(-prompt // budget) + output,
        "Chunks of the prompt; the last samples the first token, each further step one more. Then one"
        " turn tells the workers who has finished.",
    )


KINDS = {
    "may-change": may_change,
    "walked": walked,
    "reasons": reasons,
    "to-compute": to_compute,
    "hashed": hashed,
    "turns": turns,
}
