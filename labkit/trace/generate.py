"""Random traces, a profile for each thing that a scheduler can get wrong.

The same profile, seed and size always give the same trace. No trace holds what mini_vllm does
differently from vLLM on purpose (`deliberate_difference`): those have trace files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from labkit.trace.format import (
    Abort,
    Add,
    Drain,
    Event,
    External,
    Image,
    Prompt,
    Step,
    Trace,
    TraceConfig,
    prompt_tokens,
    sample_token,
)


def deliberate_difference(trace: Trace) -> str | None:
    """Why mini_vllm may rightly differ from vLLM on this trace; None if it may not."""
    if trace.config.uncache_refunded_blocks:
        return "unwritten_blocks: vLLM has no such switch"
    if trace.config.encoder_cache_size and trace.config.disable_chunked_mm_input:
        return "chunked_image: vLLM splits images although it is told not to"
    if trace.config.connector == "sync" and _shares_lost_blocks(trace):
        return "remote-holders: two requests hold a block that did not arrive"
    for event in trace.events:
        if isinstance(event, Add):
            reason = _difference(event, trace.config)
            if reason:
                return f"{event.id}: {reason}"
    return None


def _difference(event: Add, config: TraceConfig) -> str | None:
    length = prompt_length(event)
    total = min(length + event.max_tokens, config.max_model_len)
    slots = (config.num_gpu_blocks - 1) * config.block_size
    # The last token is sampled and never computed, so it needs no slot. Drafts may lie beyond it.
    if min(total - 1 + _draft_slots(config), config.max_model_len) > slots:
        return "kv_capacity: it outgrows the whole pool"
    if event.min_tokens > total - length:
        return "min_tokens: there is no room for so many"
    if length >= config.max_model_len:
        return "prompt_length: the prompt leaves no room for an output token"
    if event.images and config.policy == "priority" and _may_preempt(config):
        return "encoder_refund: a victim's image counts as encoded"
    chunk = config.long_prefill_token_threshold or total
    if not config.enable_chunked_prefill and min(total - 1, chunk) > config.max_num_batched_tokens:
        return "no_progress: it never fits the budget in one piece"
    return None


def _shares_lost_blocks(trace: Trace) -> bool:
    adds = [event for event in trace.events if isinstance(event, Add)]
    is_lossy = any(event.external is not None and event.external.invalid for event in adds)
    return is_lossy and len({event.prompt for event in adds}) < len(adds)


def _draft_slots(config: TraceConfig) -> int:
    """Most slots that drafts take: those to verify, and with a draft model the next ones too."""
    return config.num_speculative_tokens * (1 if config.spec_method == "ngram" else 2)


def _may_preempt(config: TraceConfig) -> bool:
    """Whether there are fewer blocks than all rows could fill."""
    blocks = -(-config.max_model_len // config.block_size)
    return config.num_gpu_blocks - 1 < config.max_num_seqs * blocks


def prompt_length(event: Add) -> int:
    """Tokens of a request's prompt."""
    return event.prompt.len if isinstance(event.prompt, Prompt) else len(event.prompt)


@dataclass(frozen=True)
class Shape:
    """What a profile draws its requests from; ranges are inclusive."""

    config: TraceConfig
    prompt: tuple[int, int] = (1, 40)
    max_tokens: tuple[int, int] = (1, 24)
    share: float = 0.3  # chance that a prompt begins with the trace's shared tokens
    reuse: float = 0.0  # chance that a prompt continues an earlier prompt and its output
    priorities: int = 1
    late: float = 0.0  # chance that the arrival time is not the order of arrival
    stops: float = 0.0  # chance of each of: stop tokens, min_tokens, ignore_eos
    aborts: float = 0.05  # aborts per event
    adapters: int = 0  # different adapters that requests choose from, the base beside them
    images: int = 0  # different images that prompts may hold
    alike: bool = True  # whether two prompts may be equal
    external: float = 0.0  # chance that a connector has a part of a prompt
    lost: float = 0.0  # chance that some of that does not arrive
    kept: float = 0.0  # chance that blocks outlive their request
    drain: int = 10000  # most steps after the last event
    burst: int = 3  # most requests that arrive between two steps
    pause: int = 4  # most steps between two arrivals


def generate(profile: str, seed: int, steps: int = 100) -> Trace:
    """Make a trace of about `steps` steps.

    Raises:
        ValueError: there is no such profile.
    """
    if profile not in ALL_PROFILES:
        raise ValueError(f"no profile {profile!r}; it must be one of {', '.join(ALL_PROFILES)}")
    rng = Random(f"{profile}/{seed}/{steps}")
    shape = ALL_PROFILES[profile](rng)
    builder = _Builder(rng, shape)
    while builder.steps < steps:
        builder.advance()
    trace = Trace(shape.config, (*builder.events, Drain(shape.drain)))
    reason = deliberate_difference(trace)
    if reason:
        raise AssertionError(f"generator: profile {profile}, seed {seed}: {reason}")
    return trace


class _Builder:
    """Appends events until the trace is long enough."""

    def __init__(self, rng: Random, shape: Shape) -> None:
        self.rng = rng
        self.shape = shape
        self.events: list[Event] = []
        self.adds: list[Add] = []
        self.steps = 0
        self.work = 0.0  # steps that the requests so far take, roughly

    def advance(self) -> None:
        """A burst of arrivals, perhaps an abort, and some steps."""
        for _ in range(self.rng.randint(0, self.shape.burst)):
            if self.work < 1.5 * self.steps + 40:  # else the queue would only grow
                self._arrive()
        self._maybe_abort()
        count = self.rng.randint(1, self.shape.pause)
        self.events.append(Step(count))
        self.steps += count
        self._maybe_abort()

    def _arrive(self) -> None:
        config = self.shape.config
        event = self._request()
        self.adds.append(event)
        self.events.append(event)
        tokens = prompt_length(event) + event.max_tokens
        blocks = 1 + tokens // config.block_size
        together = min(config.max_num_seqs, max(1, config.num_gpu_blocks // blocks))
        self.work += event.max_tokens / together + tokens / config.max_num_batched_tokens

    def _maybe_abort(self) -> None:
        if self.adds and self.rng.random() < self.shape.aborts:
            recent = self.adds[-8:]
            self.events.append(Abort(self.rng.choice(recent).id))

    def _request(self) -> Add:
        """A request that fits: its prompt leaves room for output, and the pool can hold both."""
        rng, shape, config = self.rng, self.shape, self.shape.config
        number = len(self.adds)
        slots = (config.num_gpu_blocks - 1) * config.block_size
        most = min(slots, config.max_model_len - 1)
        if config.num_speculative_tokens:  # drafts lie behind the text, in slots too
            most = max(1, min(most, slots - _draft_slots(config)))
        if not config.enable_chunked_prefill and config.long_prefill_token_threshold == 0:
            most = min(most, config.max_num_batched_tokens)
        prompt = self._prompt(most)
        length = len(prompt) if isinstance(prompt, tuple) else prompt.len
        max_tokens = rng.randint(*shape.max_tokens)
        if most < config.max_model_len - 1:  # the pool or the budget is what ends it first
            max_tokens = min(max_tokens, most + 1 - length)
        arrival = rng.randrange(number + 2) if rng.random() < shape.late else number
        priority = rng.randrange(shape.priorities)
        event = Add(f"r{number}", prompt, max_tokens, priority, float(arrival))
        if shape.adapters:
            choice = rng.randrange(shape.adapters + 1)
            event = replace(event, lora=f"a{choice}" if choice else None)
        if shape.images:
            event = self._with_images(event)
        if config.connector:
            event = replace(event, external=self._external(length))
        return self._stops(event, min(max_tokens, config.max_model_len - length))

    def _with_images(self, event: Add) -> Add:
        """Up to three images side by side or apart; now and then an earlier prompt with its own."""
        rng, shape = self.rng, self.shape
        earlier = [add for add in self.adds if add.images]
        if earlier and rng.random() < 0.35:
            other = rng.choice(earlier)
            room = shape.config.max_model_len - prompt_length(other)
            return replace(
                event,
                prompt=other.prompt,
                images=other.images,
                max_tokens=min(event.max_tokens, other.max_tokens, room),
            )
        images: list[Image] = []
        end = 0
        for _ in range(rng.randint(0, 3)):
            offset = end + rng.choice((0, 1, rng.randint(0, 12)))
            number = rng.randrange(shape.images)
            image = image_of(number)
            if offset + image[0] > prompt_length(event):
                continue
            images.append((offset, image[0], f"i{number}", *image[1:]))
            end = offset + image[0]
        return replace(event, images=tuple(images))

    def _stops(self, event: Add, room: int) -> Add:
        """Add stop rules; `room` is the most output the request can reach."""
        rng, shape, vocab_size = self.rng, self.shape, self.shape.config.vocab_size
        if rng.random() < shape.stops:
            stop = tuple(rng.randrange(vocab_size) for _ in range(rng.randint(1, 3)))
            event = replace(event, stop_token_ids=stop)
        if rng.random() < shape.stops:
            event = replace(event, min_tokens=rng.randint(0, room))
        return replace(event, ignore_eos=rng.random() < shape.stops)

    def _external(self, length: int) -> External | None:
        """What a connector has of a prompt of `length` tokens, and what becomes of it."""
        rng, shape, size = self.rng, self.shape, self.shape.config.block_size
        keep = rng.randint(1, 6) if rng.random() < shape.kept else 0
        if rng.random() >= shape.external:
            return External(keep=keep) if keep else None
        held = rng.choice((length, rng.randint(1, length), max(length // size, 1) * size))
        answers: list[int | None] = [None] * rng.choice((0, 0, 0, 1, 3))
        answers += [held] * rng.choice((1, 1, 2))
        blocks = range(-(-held // size))
        lost: tuple[int, ...] = ()
        if blocks and rng.random() < shape.lost:
            lost = tuple(sorted(rng.sample(blocks, rng.randint(1, min(2, len(blocks))))))
        return External(tuple(answers), rng.choice((0, 0, 1, 2, 5)), lost, keep)

    def _prompt(self, most: int) -> tuple[int, ...] | Prompt:
        """A prompt of at most `most` tokens: fresh, with a shared head, or out of earlier ones."""
        rng, shape = self.rng, self.shape
        if self.adds and rng.random() < shape.reuse:
            return tuple(self._continued()[: rng.randint(1, most)])
        length = min(rng.randint(*shape.prompt), most)
        block_size = shape.config.block_size
        if rng.random() < 0.3:  # whole blocks: the edge where a full hit would leave nothing
            length = max(length // block_size, 1) * block_size
        length = max(1, min(length, most))
        shared = rng.random() < shape.share
        share = rng.choice((length, rng.randint(0, length), block_size)) if shared else 0
        number = len(self.adds)
        seed = rng.randrange(4 + number) if shape.alike else number
        return Prompt(length, seed=seed, share=min(share, length))

    def _continued(self) -> list[int]:
        """An earlier prompt, the output it will have had, and some tokens of its own."""
        rng, vocab_size = self.rng, self.shape.config.vocab_size
        earlier = rng.choice(self.adds)
        tokens = prompt_tokens(earlier.prompt, vocab_size)
        for _ in range(rng.randint(0, earlier.max_tokens)):
            tokens.append(sample_token(earlier.id, len(tokens), vocab_size))
        return tokens + [rng.randrange(vocab_size) for _ in range(rng.choice((0, 0, 1, 5)))]


def image_of(number: int) -> tuple[int] | tuple[int, int]:
    """Length of an image, always the same; of every third, only some positions are embeddings."""
    length = 1 + number * 7 % 19
    return (length, max(1, length - number % 4)) if number % 3 == 2 else (length,)


# ------------------------------------------------------------------ profiles


def _block_size(rng: Random) -> int:
    return rng.choice((1, 2, 3, 4, 4, 8, 16))


def _config(rng: Random, blocks: tuple[int, int], **given: object) -> TraceConfig:
    """A small configuration; `blocks` is the range of blocks that requests can use."""
    values: dict[str, object] = {
        "max_num_batched_tokens": rng.choice((4, 8, 16, 17, 32, 64, 256)),
        "max_num_seqs": rng.choice((1, 2, 3, 4, 8, 16)),
        "block_size": _block_size(rng),
        "num_gpu_blocks": 1 + rng.randint(*blocks),
        "max_model_len": rng.choice((16, 33, 64, 128, 256)),
        "enable_prefix_caching": rng.random() < 0.8,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "vocab_size": 1000,
    }
    return TraceConfig(**(values | given))  # type: ignore[arg-type]


def _mixed(rng: Random) -> Shape:
    """A little of everything."""
    if rng.random() < 0.1:
        return _large(rng)
    config = _config(
        rng,
        (6, 60),
        policy=rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 3, 8)),
        vocab_size=rng.choice((20, 1000)),
        eos_token_id=rng.choice((None, 7)),
    )
    return Shape(config, priorities=3, late=0.3, stops=0.3, reuse=0.2)


def _large(rng: Random) -> Shape:
    """Limits as a server has them: many rows, long prompts, a wide budget."""
    config = TraceConfig(
        max_num_batched_tokens=rng.choice((512, 2048)),
        num_gpu_blocks=rng.choice((60, 200, 1024)),
        policy=rng.choice(("fcfs", "priority")),
        scheduler_reserve_full_isl=rng.random() < 0.7,
        max_model_len=1024,
    )
    return Shape(
        config, prompt=(1, 700), max_tokens=(1, 200), priorities=3, reuse=0.2, burst=12, pause=6
    )


def _pressure(rng: Random) -> Shape:
    """Too few blocks for all who want to run: preemption, resumption, waiting."""
    if rng.random() < 0.3:
        return _storm(rng)
    config = _config(
        rng,
        (3, 16),
        max_num_seqs=rng.choice((2, 4, 8, 32)),
        max_num_batched_tokens=rng.choice((8, 16, 64, 256)),
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )
    slots = (config.num_gpu_blocks - 1) * config.block_size
    return Shape(config, prompt=(1, max(2, slots // 2)), max_tokens=(1, max(2, slots)), burst=4)


def _storm(rng: Random) -> Shape:
    """Long prompts in small chunks, admitted without reserve: a chunk evicts several others."""
    config = _config(
        rng,
        (10, 24),
        block_size=1,
        max_num_seqs=16,
        max_num_batched_tokens=rng.choice((12, 16, 24)),
        long_prefill_token_threshold=rng.choice((4, 6)),
        scheduler_reserve_full_isl=False,
        policy=rng.choice(("fcfs", "priority")),
    )
    return Shape(config, prompt=(1, 20), max_tokens=(1, 6), priorities=3, burst=5, pause=2)


def _prefix(rng: Random) -> Shape:
    """Prompts that share heads, repeat each other, or continue earlier conversations."""
    config = _config(
        rng, (8, 80), enable_prefix_caching=True, max_model_len=rng.choice((64, 128, 256))
    )
    return Shape(config, prompt=(1, 48), max_tokens=(1, 12), share=0.7, reuse=0.4, burst=4)


def _priority(rng: Random) -> Shape:
    """Priorities under pressure: victims that were scheduled already, victims of themselves."""
    config = _config(
        rng,
        (4, 24),
        policy="priority",
        max_num_seqs=rng.choice((2, 4, 8, 16)),
        scheduler_reserve_full_isl=rng.random() < 0.5,
    )
    return Shape(config, prompt=(1, 24), max_tokens=(1, 24), priorities=4, late=0.5, burst=4)


def _stop(rng: Random) -> Shape:
    """A small vocabulary, so that EOS and stop tokens come up; min_tokens; short models."""
    config = _config(
        rng,
        (12, 60),
        vocab_size=rng.choice((3, 6, 12)),
        eos_token_id=rng.choice((None, 0, 1)),
        max_model_len=rng.choice((8, 16, 33, 64)),
    )
    return Shape(config, prompt=(1, 20), max_tokens=(1, 40), stops=0.5)


def _abort(rng: Random) -> Shape:
    """Requests that leave in every state: waiting, half computed, decoding, preempted."""
    config = _config(
        rng,
        (4, 30),
        policy=rng.choice(("fcfs", "priority")),
        max_num_batched_tokens=rng.choice((4, 8, 16, 64)),
    )
    return Shape(config, max_tokens=(4, 40), aborts=0.6, priorities=2, burst=3)


def _threshold(rng: Random) -> Shape:
    """Long prompts, a cap on what one of them may take of a step."""
    config = _config(
        rng,
        (12, 100),
        long_prefill_token_threshold=rng.choice((1, 2, 5, 8, 16)),
        max_model_len=rng.choice((64, 128, 256)),
        enable_chunked_prefill=rng.random() < 0.8,
    )
    budget = max(config.max_num_batched_tokens, config.long_prefill_token_threshold)
    return Shape(replace(config, max_num_batched_tokens=budget), prompt=(1, 100), reuse=0.1)


def _chunking_off(rng: Random) -> Shape:
    """A prompt runs whole or waits."""
    budget = rng.choice((8, 16, 32, 64))
    config = _config(rng, (6, 60), enable_chunked_prefill=False, max_num_batched_tokens=budget)
    return Shape(config, prompt=(1, budget), reuse=0.1)


def _lora(rng: Random) -> Shape:
    """More adapters than slots, under pressure, with priorities and in chunks."""
    config = _config(
        rng,
        (6, 40),
        max_loras=rng.choice((1, 1, 2, 3)),
        max_num_seqs=rng.choice((2, 4, 8, 16)),
        policy=rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
    )
    return Shape(
        config, prompt=(1, 30), share=0.6, priorities=3, late=0.3, aborts=0.2, adapters=5, burst=4
    )


PROFILES: dict[str, Callable[[Random], Shape]] = {
    "mixed": _mixed,
    "pressure": _pressure,
    "prefix": _prefix,
    "priority": _priority,
    "stop": _stop,
    "abort": _abort,
    "threshold": _threshold,
    "chunking-off": _chunking_off,
}
"""What every scheduler must get right: the phases of the scheduler are judged by them."""


def _edge(rng: Random) -> Shape:
    """Prompts that end just below the model's length, where drafts find no room."""
    length = rng.randint(5, 48)
    config = _config(rng, (60, 90), max_model_len=length)
    return Shape(config, prompt=(max(1, length - 9), length - 1), max_tokens=(1, 20))


def _drafts(rng: Random) -> Shape:
    """One of the profiles above, or the edge of the model's length, with drafts to verify."""
    shape = rng.choice((_mixed, _pressure, _priority, _prefix, _stop, _edge))(rng)
    drafted = replace(
        shape.config,
        num_speculative_tokens=rng.choice((1, 2, 3, 4, 7)),
        spec_method=rng.choice(("ngram", "draft_model", "eagle")),
        spec_accept=rng.choice((0, 300, 700, 900, 1000)),
        spec_ragged=rng.random() < 0.5,
    )
    blocks = drafted.num_gpu_blocks + -(-2 * drafted.num_speculative_tokens // drafted.block_size)
    return replace(shape, config=replace(drafted, num_gpu_blocks=blocks))


def _images(rng: Random) -> Shape:
    """Images that share a small cache and a small budget, under pressure and with aborts."""
    count = rng.choice((3, 6, 12))
    largest = max(image_of(number)[0] for number in range(count))
    config = _config(
        rng,
        (8, 40),
        max_num_batched_tokens=rng.choice((4, 8, 16, 32, 64)),
        max_num_seqs=rng.choice((1, 2, 4, 8)),
        max_model_len=rng.choice((64, 128)),
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
        encoder_cache_size=largest + rng.choice((0, 1, 7, 20, 60)),
        max_num_encoder_input_tokens=largest + rng.choice((0, 0, 5, 30)),
    )
    if rng.random() < 0.25:  # with room for all: see `deliberate_difference`
        blocks = config.max_num_seqs * -(-config.max_model_len // config.block_size)
        config = replace(config, policy="priority", num_gpu_blocks=1 + blocks)
    return Shape(
        config, prompt=(1, 60), max_tokens=(1, 12), priorities=3, aborts=0.15, images=count, burst=4
    )


def _external(rng: Random) -> Shape:
    """A connector has parts of prompts: at once or later, whole or not, kept after the end or not.

    What does not arrive of a synchronous load stays in vLLM's prefix cache (DIFFERENCES.md), so
    there no two prompts are alike.
    """
    lost = rng.choice((0.0, 0.4))
    connector = rng.choice(("sync", "async"))
    alone = connector == "sync" and lost > 0
    config = _config(
        rng,
        (60, 90) if alone else rng.choice(((12, 30), (30, 80))),
        connector=connector,
        kv_load_failure_policy=rng.choice(("recompute", "fail")),
        policy=rng.choice(("fcfs", "priority")),
        enable_prefix_caching=True,
        long_prefill_token_threshold=rng.choice((0, 0, 5)),
        max_model_len=rng.choice((33, 64, 128)),
    )
    return Shape(
        config,
        prompt=(1, 40),
        max_tokens=(1, 12),
        share=0.0 if alone else 0.5,
        reuse=0.0 if alone else 0.2,
        alike=not alone,
        priorities=2,
        aborts=0.3,
        external=0.7,
        lost=lost,
        kept=0.3,
        drain=300,
    )


FEATURE_PROFILES: dict[str, Callable[[Random], Shape]] = {
    "drafts": _drafts,
    "lora": _lora,
    "images": _images,
    "external": _external,
}
"""Those of features that a scheduler may lack."""

ALL_PROFILES = PROFILES | FEATURE_PROFILES
