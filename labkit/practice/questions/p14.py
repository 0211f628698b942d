"""Questions of phase 14: readers, histograms, queues and what was promised."""

from __future__ import annotations

from random import Random

from labkit.practice.question import Question, counted


def outputs(rng: Random) -> Question:
    tokens, wakes = rng.randint(6, 14), sorted(rng.sample(range(1, 15), 4))

    def engine() -> int:
        import asyncio

        from mini_vllm.engine.collector import RequestOutputCollector
        from mini_vllm.outputs import CompletionOutput, RequestOutput
        from mini_vllm.sampling_params import RequestOutputKind

        async def read() -> int:
            collector, found = RequestOutputCollector(RequestOutputKind.DELTA), 0
            for second in range(1, 16):
                if second <= tokens:
                    part = CompletionOutput(0, "x", [second])
                    collector.put(RequestOutput("r", None, [1], outputs=[part]))
                if second in wakes or second == 15:
                    found += collector.get_nowait() is not None
            return found

        return asyncio.run(read())

    def by_hand() -> int:
        last, found = 0, 0
        for wake in [*wakes, 15]:
            found += min(wake, tokens) > last
            last = min(wake, tokens)
        return found

    return Question(
        f"A request makes one token a second, in seconds 1 to {tokens}. Its reader looks at the ends of"
        f" seconds {', '.join(map(str, wakes))} and 15. How many outputs does it get?",
        engine,
        by_hand,
        "One for each look that finds something new, for what is unread has merged: the looks up to"
        f" the first that is not before second {tokens}.",
    )


def percentile(rng: Random) -> Question:
    counts = sorted(rng.sample(range(1, 40), 3))
    counts.append(counts[-1] + rng.randint(0, 5))
    quantile = rng.choice((0.5, 0.9))

    def engine() -> float:
        from mini_vllm.observability.metrics import percentile_from_buckets

        bounds = [0.1, 0.5, 1.0, float("inf")]
        found = percentile_from_buckets(bounds, [float(count) for count in counts], quantile)
        assert found is not None
        return found

    def by_hand() -> float:
        edges, rank = [0.0, 0.1, 0.5, 1.0], quantile * counts[-1]
        below = 0
        for lower, upper, count in zip(edges, edges[1:], counts, strict=False):
            if count >= rank:
                return lower + (upper - lower) * (rank - below) / (count - below)
            below = count
        return 1.0

    shown = ", ".join(
        f"{c} up to {b}" for c, b in zip(counts, ("0.1", "0.5", "1.0", "inf"), strict=True)
    )
    rank = quantile * counts[-1]
    reached = next(count for count in counts if count >= rank)
    return Question(
        f"A histogram's cumulative counts: {shown} seconds. Which value does it give for the quantile"
        f" {quantile}?",
        engine,
        by_hand,
        f"The rank is {quantile} * {counts[-1]} = {rank:g}, and the first count that reaches it is"
        f" {reached}. Inside that bucket it is a line from its lower end to its upper; in the infinite"
        " one only the lower end is known.",
        tolerance=0.01,
    )


def good(rng: Random) -> Question:
    # Tenths of a second over at most nine gaps never make 210 ms: on the very limit the engine's
    # floats and a learner's fractions would disagree.
    seen = [
        (rng.randint(1, 9) / 10, rng.randint(10, 30) / 10, rng.randint(1, 10)) for _ in range(5)
    ]

    def engine() -> float:
        from mini_vllm.entrypoints.load import RequestResult, goodput

        results = [RequestResult(1, ttft=t, latency=e, output_tokens=n) for t, e, n in seen]
        return goodput(results, {"ttft": 500.0, "tpot": 210.0}, 2.0)

    def by_hand() -> float:
        meets = [t <= 0.5 and (n < 2 or round((e - t) * 1000) <= 210 * (n - 1)) for t, e, n in seen]
        return sum(meets) / 2

    shown = "; ".join(f"TTFT {t} s, end {e} s, {counted(n, 'token')}" for t, e, n in seen)
    return Question(
        f"Five requests in 2 seconds: {shown}. Promised are a TTFT of 500 ms and a TPOT of 210 ms."
        " What is the goodput, in requests a second?",
        engine,
        by_hand,
        "Who meets both, divided by 2. TPOT is (end - TTFT) / (tokens - 1), and 0 for one token.",
        tolerance=0.001,
    )


def tag(rng: Random) -> Question:
    name = rng.choice(("<tool_call>", "</tool_call>", "<think>"))
    text = "so " + name[: rng.randint(0, len(name))] + rng.choice(("", "", " x"))

    def engine() -> int:
        from mini_vllm.entrypoints.openai.tool_parser import partial_tag_overlap

        return partial_tag_overlap(text, name)

    return Question(
        f"The tag is {name}, the text so far {text!r}. How many characters at its end may be the"
        " beginning of the tag, but not all of it?",
        engine,
        lambda: max(n for n in range(len(name)) if text.endswith(name[:n])),
        "The longest end of the text that is a beginning of the tag.",
    )


def buckets(rng: Random) -> Question:
    largest = rng.randint(1, 9) * 10 ** rng.randint(0, 4) + rng.randint(0, 3)

    def engine() -> int:
        from mini_vllm.observability.metrics import build_1_2_5_buckets

        return len(build_1_2_5_buckets(largest))

    return Question(
        f"A histogram's upper bounds are 1, 2, 5, 10, 20, 50 and so on, and none exceeds {largest}. How"
        " many are there?",
        engine,
        lambda: sum(d * 10**e <= largest for e in range(6) for d in (1, 2, 5)),
        "Three for each power of ten, as far as they go.",
    )


def kept(rng: Random) -> Question:
    size, tokens = rng.choice((4, 8, 16)), rng.randint(8, 90)
    changed = rng.choice((None, rng.randrange(tokens)))

    def engine() -> int:
        from mini_vllm.engine.chat_turns import shared_blocks

        before, after = list(range(tokens)), list(range(tokens))
        if changed is not None:
            after[changed] = -1
        return shared_blocks(before, after, size)

    where = "the same" if changed is None else f"the same but for token {changed} (the first is 0)"
    return Question(
        f"Blocks of {size} tokens. A prompt of {tokens} tokens is in the prefix cache; another one of"
        f" {tokens} tokens is {where}. How many blocks does it find?",
        engine,
        lambda: min(tokens - 1, tokens if changed is None else changed) // size,
        "Full blocks before the first difference, and never the block of the last token.",
    )


KINDS = {
    "outputs": outputs,
    "percentile": percentile,
    "good": good,
    "tag": tag,
    "buckets": buckets,
    "kept": kept,
}
