"""What a replay has exercised: the features below, found in the trace and its step lines."""

from __future__ import annotations

from labkit.trace.format import Abort, Add, Drain, Step, Trace
from labkit.trace.generate import prompt_length
from labkit.trace.runner import Line

FEATURES: dict[str, str] = {
    "chunked": "a prompt computed in several steps",
    "mixed-batch": "a prompt chunk and a decode in one step",
    "prefix-hit": "a new request found blocks in the cache",
    "same-step-hit": "... that were first scheduled in the same step",
    "output-hit": "... that hold another request's output",
    "full-hit": "... for its whole prompt, of whole blocks: the last block is computed again",
    "preemption": "a running request lost its blocks",
    "storm": "three or more preemptions in one step",
    "self-victim": "the victim was the request that needed the blocks",
    "scheduled-victim": "the victim was not the last one running (priority only)",
    "refunded-victim": "the victim had been scheduled in this very step (priority only)",
    "resumed": "a preempted request ran again",
    "resumed-hit": "... and found some of its own blocks",
    "late-admission": "a request waited for blocks although a row was free",
    "seats-full": "max_num_seqs kept a request waiting",
    "budget-full": "the whole token budget was used",
    "skipped-running": "a running request got no tokens",
    "abort-waiting": "a request aborted before it ran",
    "abort-running": "... while it ran",
    "abort-prefill": "... while its prompt was half computed",
    "abort-preempted": "... while it was preempted",
    "abort-finished": "... after it had finished: nothing happens",
    "eos": "stopped by EOS",
    "stop-token": "stopped by a stop token",
    "min-tokens": "min_tokens was set on a request that ended by itself",
    "ignore-eos": "ignore_eos was set",
    "max-tokens": "ended by max_tokens",
    "max-model-len": "ended by max_model_len",
    "empty-step": "nothing was scheduled",
    "late-arrival": "arrivals out of order",
    "equal-priority": "two requests of one priority and arrival",
    "midway": "a request was added while others ran",
    "fcfs": "policy fcfs", "priority": "policy priority",
    "threshold": "long_prefill_token_threshold is set",
    "chunking-off": "chunked prefill is off",
    "reserve-on": "scheduler_reserve_full_isl is on", "reserve-off": "... is off",
    "caching-off": "prefix caching is off",
    "block-1": "block_size 1", "block-2": "block_size 2", "block-4": "block_size 4",
    "block-16": "block_size 16", "block-odd": "another block_size",
}  # fmt: skip


def features(trace: Trace, lines: list[Line]) -> set[str]:
    """The features that one replay shows."""
    found = _config_features(trace) | _request_features(trace)
    walk = _Walk(trace)
    for event, line in _with_events(trace, lines):
        found |= walk.event(event) if line is None else walk.step(line)
    return found


def _config_features(trace: Trace) -> set[str]:
    config = trace.config
    small = config.block_size in (1, 2, 4, 16)
    found = {config.policy, f"block-{config.block_size}" if small else "block-odd"}
    found.add("reserve-on" if config.scheduler_reserve_full_isl else "reserve-off")
    found |= {"threshold"} if config.long_prefill_token_threshold else set()
    found |= set() if config.enable_chunked_prefill else {"chunking-off"}
    return found | (set() if config.enable_prefix_caching else {"caching-off"})


def _request_features(trace: Trace) -> set[str]:
    adds = [event for event in trace.events if isinstance(event, Add)]
    found = {"ignore-eos"} if any(event.ignore_eos for event in adds) else set()
    arrivals = [event.arrival for event in adds]
    if arrivals != sorted(arrivals):
        found.add("late-arrival")
    if len({(event.priority, event.arrival) for event in adds}) < len(adds):
        found.add("equal-priority")
    return found


def _with_events(trace: Trace, lines: list[Line]):
    """Events and step lines in the order in which they happened: (event, None) or (None, line)."""
    rest = iter(lines)
    for event in trace.events:
        yield event, None
        if isinstance(event, Step):
            for _ in range(event.n):
                line = next(rest, None)
                if line is not None:
                    yield None, line
        if isinstance(event, Drain):
            for line in rest:
                yield None, line


class _Walk:
    """Follows the requests of one replay from step to step."""

    def __init__(self, trace: Trace) -> None:
        self.config = trace.config
        self.adds = {e.id: e for e in trace.events if isinstance(e, Add)}
        self.length = {i: prompt_length(e) for i, e in self.adds.items()}
        self.live: dict[str, int] = {}  # tokens of prompt + output
        self.running: list[str] = []
        self.computed: dict[str, int] = {}
        self.preempted: set[str] = set()
        self.owner: dict[int, str] = {}  # whose tokens a block holds

    def event(self, event: object) -> set[str]:
        found: set[str] = set()
        if isinstance(event, Add):
            self.live[event.id] = self.length[event.id]
            found = {"midway"} if self.running else set()
        if isinstance(event, Abort):
            found = {self._abort_feature(event.id)}
            self.live.pop(event.id, None)
        return found

    def _abort_feature(self, request_id: str) -> str:
        if request_id not in self.live:
            return "abort-finished"
        if request_id in self.preempted:
            return "abort-preempted"
        if request_id not in self.running:
            return "abort-waiting"
        partial = self.computed.get(request_id, 0) < self.length[request_id]
        return "abort-prefill" if partial else "abort-running"

    def step(self, line: Line) -> set[str]:
        found = self._batch_features(line) | self._preemption_features(line)
        fresh: set[int] = set()
        for request_id in line["scheduled"]:
            hit_blocks = 0
            if request_id not in self.running or request_id in self.preempted:
                hit_blocks = self._hit_tokens(request_id, line) // self.config.block_size
                found |= self._admission_features(request_id, hit_blocks, fresh, line)
            new = line["new_block_ids"].get(request_id, [])[hit_blocks:]
            self.owner.update(dict.fromkeys(new, request_id))
            fresh.update(new)
        found |= self._finish_features(line)
        self._advance(line)
        return found

    def _batch_features(self, line: Line) -> set[str]:
        scheduled, config = line["scheduled"], self.config
        found = set() if scheduled else {"empty-step"}
        if sum(scheduled.values()) == config.max_num_batched_tokens:
            found.add("budget-full")
        decodes = [i for i in scheduled if self.computed.get(i, 0) >= self.length[i]]
        if decodes and len(decodes) < len(scheduled):
            found.add("mixed-batch")
        unfinished = line["computed"]
        if any(unfinished.get(i, self.length[i]) < self.length[i] for i in scheduled):
            found.add("chunked")
        if set(line["running"]) - set(scheduled):
            found.add("skipped-running")
        if line["waiting"] and not line["preempted"]:
            full = len(line["running"]) + len(line["finished"]) >= config.max_num_seqs
            budget_left = sum(scheduled.values()) < config.max_num_batched_tokens
            found |= {"seats-full"} if full else {"late-admission"} if budget_left else set()
        return found

    def _preemption_features(self, line: Line) -> set[str]:
        victims = line["preempted"]
        if not victims:
            return set()
        found = {"preemption"} | ({"storm"} if len(victims) >= 3 else set())
        order = [i for i in self.running if i not in line["aborted"]]
        if len(victims) == 1 and self._was_scheduled(victims[0], order, line):
            found.add("refunded-victim")
        for victim in victims:
            if victim != order[-1]:
                found.add("scheduled-victim")
            order.remove(victim)
        if not any(line["new_block_ids"].get(i) for i in order):  # no other request wanted blocks
            found.add("self-victim")
        return found

    def _was_scheduled(self, victim: str, order: list[str], line: Line) -> bool:
        """Certain if no request before the victim wanted blocks and one after it ran."""
        place = order.index(victim)
        wanted = any(line["new_block_ids"].get(i) for i in order[:place])
        return not wanted and any(i in line["scheduled"] for i in order[place + 1 :])

    def _hit_tokens(self, request_id: str, line: Line) -> int:
        """Tokens that an admitted request took from the cache."""
        scheduled = line["scheduled"][request_id]
        if request_id not in line["computed"]:  # it has finished in this very step
            return self.live[request_id] - scheduled
        return line["computed"][request_id] - scheduled

    def _admission_features(
        self, request_id: str, hit_blocks: int, fresh: set[int], line: Line
    ) -> set[str]:
        size = self.config.block_size
        resumed = request_id in self.preempted
        found = {"resumed"} if resumed else set()
        if not hit_blocks:
            return found
        found.add("resumed-hit" if resumed else "prefix-hit")
        shared = line["new_block_ids"][request_id][:hit_blocks]
        if fresh & set(shared):
            found.add("same-step-hit")
        owners = [(index, self.owner.get(block)) for index, block in enumerate(shared)]
        if any(o and o != request_id and (i + 1) * size > self.length[o] for i, o in owners):
            found.add("output-hit")
        last_block = (hit_blocks + 1) * size == self.live[request_id]
        if last_block and line["scheduled"][request_id] == size:
            found.add("full-hit")
        return found

    def _finish_features(self, line: Line) -> set[str]:
        found = set()
        for request_id, status, reason in line["finished"]:
            event = self.adds[request_id]
            found |= {"min-tokens"} if event.min_tokens else set()
            if status == "FINISHED_STOPPED":
                found.add("eos" if reason == "stop" else "stop-token")
            else:
                full = self.live[request_id] + 1 >= self.config.max_model_len
                found.add("max-model-len" if full else "max-tokens")
        return found

    def _advance(self, line: Line) -> None:
        """Take the state of this step over for the next."""
        for request_id, done in line["computed"].items():
            if request_id in line["scheduled"] and done >= self.live[request_id]:
                self.live[request_id] += 1
        for request_id, _, _ in line["finished"]:
            self.live.pop(request_id, None)
        self.preempted = (self.preempted | set(line["preempted"])) - set(line["running"])
        self.preempted &= set(self.live)
        self.running = line["running"]
        self.computed = line["computed"]
