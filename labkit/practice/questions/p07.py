"""Questions of phase 07: padding, and what launches cost."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question


def bucket(rng: Random) -> Question:
    largest, users = rng.choice((64, 128, 200)), rng.randint(1, 130)

    def engine() -> int:
        from mini_vllm.worker.cuda_graphs import choose_bucket, make_buckets

        return choose_bucket(users, make_buckets(largest)) or 0

    def by_hand() -> int:
        rows = users if users <= 2 else 4 if users <= 4 else -(-users // 8) * 8
        return min(rows, largest) if users <= largest else 0

    return Question(
        f"max_num_seqs is {largest}. How many rows does the graph run that serves {users} decodes? (0:"
        " none fits)",
        engine,
        by_hand,
        f"Sizes are 1, 2, 4, then multiples of 8, and {largest} itself.",
    )


def launches(rng: Random) -> Question:
    kernels, micro = rng.choice((200, 300, 400)), rng.choice((3, 5, 8))
    work = rng.choice((0.5, 1.0, 2.0))

    def engine() -> float:
        launch = sum(micro for _ in range(kernels)) / 1000
        return max(launch, work) / work

    return Question(
        f"A decode step launches {kernels} kernels, each takes the CPU {micro} µs to launch. The GPU"
        f" would need {work} ms for their work. Launching and work overlap. How many times faster is"
        " the step as one graph, whose launch costs nothing?",
        engine,
        lambda: max(1.0, kernels * micro / (1000 * work)),
        f"{kernels} x {micro} µs = {kernels * micro / 1000:g} ms of launches against {work} ms of"
        " work: the longer of the two is the step.",
        tolerance=0.02,
    )


KINDS = {"bucket": bucket, "launches": launches}
