"""Questions of phase 05: rows, positions, and who is sampled."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question


def positions(rng: Random) -> Question:
    scheduled = [rng.randint(1, 4) for _ in range(3)]
    computed = [rng.randint(0, 20) for _ in range(3)]

    def engine() -> str:
        import numpy as np

        from mini_vllm.worker.input_batch import flatten_tokens

        flat = flatten_tokens(np.array(scheduled, np.int32), np.array(computed, np.int32))
        return " ".join(map(str, flat.positions.tolist()))

    return Question(
        f"Three rows have {computed} tokens computed and compute {scheduled} more in this step. What"
        " are the positions of the step's tokens, in order?",
        engine,
        lambda: " ".join(str(c + i) for s, c in zip(scheduled, computed, strict=True)
                         for i in range(s)),
        "Each row goes on where it stands: " + "; ".join(
            f"{c} to {c + s - 1}" for s, c in zip(scheduled, computed, strict=True)) + ".",
    )  # fmt: skip


def condensed(rng: Random) -> Question:
    names = list("abcdefg")[: rng.randint(4, 7)]
    gone = rng.sample(names, rng.randint(1, len(names) - 2))

    def engine() -> str:
        from mini_vllm.sampling_params import SamplingParams
        from mini_vllm.worker.input_batch import CachedRequestState, InputBatch

        batch = InputBatch(8, 16, 4)
        for name in names:
            batch.add_request(CachedRequestState(name, [1], SamplingParams(), None), [1], 0)
        for name in gone:
            batch.remove_request(name)
        batch.condense()
        return " ".join(state.req_id for state in batch.rows if state)

    def by_hand() -> str:
        rows: list[str] = ["" if name in gone else name for name in names]
        while "" in rows:
            last = rows.pop()
            if last:
                rows[rows.index("")] = last
        return " ".join(rows)

    return Question(
        f"The rows of a batch are {' '.join(names)}. In one step these end: {', '.join(gone)}. What are"
        " the rows after condense(), in order?",
        engine,
        by_hand,
        "Holes are filled from the front with rows from the end; no other row moves.",
    )


def sampled(rng: Random) -> Question:
    rows = []
    for _ in range(4):
        prompt = rng.randint(4, 20)
        computed = rng.randint(0, prompt)
        rows.append(
            (prompt, computed, rng.randint(1, prompt - computed) if computed < prompt else 1)
        )

    def engine() -> int:
        import numpy as np

        from mini_vllm.worker.input_batch import flatten_tokens, rows_to_sample

        scheduled = np.array([s for _, _, s in rows], np.int32)
        computed = np.array([c for _, c, _ in rows], np.int32)
        known = np.array([max(p, c + 1) for p, c, _ in rows], np.int32)
        flat = flatten_tokens(scheduled, computed)
        return len(rows_to_sample(flat, computed + scheduled, known)[0])

    return Question(
        "Rows of a step as (prompt, computed before, computed in this step): "
        + ", ".join(map(str, rows)) + ". How many of them get a new token?",
        engine,
        lambda: sum(c + s >= p for p, c, s in rows),
        "A row that has computed all known tokens after the step is sampled; a chunk that ends inside the"
        " prompt is not.",
    )  # fmt: skip


def order(rng: Random) -> Question:
    counts = [rng.choice((1, 1, rng.randint(2, 9))) for _ in range(5)]

    def engine() -> str:
        from mini_vllm.worker.input_batch import decodes_first

        return " ".join(map(str, decodes_first(counts).tolist()))

    return Question(
        f"Requests 0 to 4 compute {counts} tokens in a step. In which order do they stand in the flat"
        " batch?",
        engine,
        lambda: " ".join(map(str, sorted(range(5), key=lambda i: counts[i] > 1))),
        "Those with one token first; among equals the scheduler's order stays.",
    )


def starts(rng: Random) -> Question:
    counts = [rng.randint(1, 9) for _ in range(3)]

    def engine() -> str:
        import numpy as np

        from mini_vllm.worker.input_batch import flatten_tokens

        flat = flatten_tokens(np.array(counts, np.int32), np.zeros(3, np.int32))
        return " ".join(map(str, flat.query_start_loc.tolist()))

    return Question(
        f"Three requests compute {counts} tokens. What is query_start_loc?",
        engine,
        lambda: " ".join(str(sum(counts[:i])) for i in range(4)),
        "Where each request begins in the flat batch, and behind the last where the batch ends.",
    )


KINDS = {
    "positions": positions,
    "condensed": condensed,
    "sampled": sampled,
    "order": order,
    "starts": starts,
}
