"""Random traces, drawn from the kinds.

The same kind, seed and size always give the same trace. No trace holds what mini_vllm does
differently from vLLM on purpose (`deliberate_difference`): those have trace files of their own.
"""

from __future__ import annotations

from dataclasses import replace
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
from labkit.trace.kinds import ALL_KINDS, NEWER_KINDS, Shape, held_at_most, image_of
from mini_vllm.config.profiles import PROFILES


def deliberate_difference(trace: Trace) -> str | None:
    """Why mini_vllm may rightly differ from vLLM on this trace; None if it may not."""
    if trace.config.uncache_refunded_blocks:
        return "unwritten_blocks: vLLM has no such switch"
    if trace.config.encoder_cache_size and trace.config.disable_chunked_mm_input:
        return "chunked_image: vLLM splits images although it is told not to"
    if trace.config.connector == "sync" and _shares_lost_blocks(trace):
        return "remote-holders: two requests hold a block that did not arrive"
    if _cuts_padding(trace.config):
        return "cut_padding: vLLM asserts that placeholders of drafts are never cut"
    adds = [event for event in trace.events if isinstance(event, Add)]
    if _orders_lost_blocks(trace.config) and any(a.external and a.external.invalid for a in adds):
        return "remote-holders: blocks that did not arrive are freed as blocks without a hash"
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
    chunk = _always_cut_to(config) or total
    if not config.enable_chunked_prefill and min(total - 1, chunk) > config.max_num_batched_tokens:
        return "no_progress: it never fits the budget in one piece"
    return None


def _always_cut_to(config: TraceConfig) -> int:
    """Tokens of a request that one step computes at most, also beside others; 0: all."""
    uncapped = PROFILES[config.profile].lone_prefill_uncapped
    return 0 if uncapped else config.long_prefill_token_threshold


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


def generate(kind: str, seed: int, steps: int = 100, profile: str = "v0.22") -> Trace:
    """Make a trace of about `steps` steps, to be decided as the release of a profile does.

    Raises:
        ValueError: there is no such kind.
    """
    shapes = ALL_KINDS | NEWER_KINDS
    if kind not in shapes:
        raise ValueError(f"no kind {kind!r}; it must be one of {', '.join(shapes)}")
    rng = Random(f"{kind}/{seed}/{steps}")
    shape = shapes[kind](rng)
    shape = _agreeing(replace(shape, config=replace(shape.config, profile=profile)))
    builder = _Builder(rng, shape)
    while builder.steps < steps:
        builder.advance()
    trace = Trace(shape.config, (*builder.events, Drain(shape.drain)))
    reason = deliberate_difference(trace)
    if reason:
        raise AssertionError(f"generator: kind {kind}, seed {seed}: {reason}")
    return trace


def _agreeing(shape: Shape) -> Shape:
    """The shape without what is a difference under the rules of its profile only."""
    config = shape.config
    if _orders_lost_blocks(config):
        shape = replace(shape, lost=0.0)
    if _cuts_padding(config):
        shape = replace(shape, config=replace(config, long_prefill_token_threshold=0))
    if config.groups and PROFILES[config.profile].windows_outlast_late_tokens:
        shape = replace(shape, config=replace(config, num_gpu_blocks=_room_for_two_plans(config)))
    return shape


def _room_for_two_plans(config: TraceConfig) -> int:
    """Blocks, so that one request fits beside a second plan on its way."""
    budget, length = config.max_num_batched_tokens, config.max_model_len
    one, two = (
        sum(held_at_most(group, tokens, length) for group in config.groups)
        for tokens in (budget, 2 * budget)
    )
    return config.num_gpu_blocks + two - one


def _orders_lost_blocks(config: TraceConfig) -> bool:
    """Whether blocks that did not arrive are freed to another place than in vLLM: there they keep
    their hash until they are computed again."""
    keeps_hash = config.connector == "sync" and config.kv_load_failure_policy == "recompute"
    return keeps_hash and PROFILES[config.profile].unhashed_blocks_first


def _cuts_padding(config: TraceConfig) -> bool:
    """Whether the cap of a prefill cuts placeholders of drafts: an assertion in vLLM."""
    cap, rules = config.long_prefill_token_threshold, PROFILES[config.profile]
    return rules.first_decode_padded and 0 < cap <= config.num_speculative_tokens


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
        if not config.enable_chunked_prefill and _always_cut_to(config) == 0:
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
