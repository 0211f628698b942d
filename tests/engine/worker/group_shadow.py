"""Shadow memory: what the layers of every group would read, checked against which request wrote it.

Random traces of several groups (profile "hybrid") run through the scheduler, and each plan through
the worker's own tables. In place of numbers a slot of a block holds *whose* they are: the group,
and a digest of the text up to that token. A state holds the same for the token behind which it was
taken::

    block 7   group 1   "the dog"  "the dog ran"   .   .

A step does what the worker does, in its order: tables, copies of states, zeros in blocks that were
handed out, then for each group all writes, then all reads. A token that a layer needs and does not
find, or finds under another text, stops the run.

    python -m tests.engine.worker.group_shadow 100000        so many steps, counted aloud
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch

from labkit.trace.format import Trace
from labkit.trace.generate import generate
from labkit.trace.runner import ReferenceSubject, replay, sample_tokens
from mini_vllm.attention import AttentionMetadata, StateMetadata
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.model.interface import KVCacheSpec, LayerSpec, StateTensor
from mini_vllm.worker.cache_layout import CacheLayout
from mini_vllm.worker.group_tables import GroupTables
from mini_vllm.worker.input_batch import decodes_first
from mini_vllm.worker.step_inputs import StepInputs

STATE = -1
"""The place in a block where the digest of a state is kept."""


class ShadowError(AssertionError):
    """A layer would have read what is not its request's."""


def layout_of(groups: Sequence[GroupSpec]) -> CacheLayout:
    """One layer a group."""
    states = (StateTensor((1,), torch.float32),)
    layers = tuple(
        LayerSpec(group.kind, group.window, states if group.kind == "mamba" else ())
        for group in groups
    )
    spec = KVCacheSpec(len(groups), 1, 1, torch.float32, layers=layers)
    return CacheLayout(spec, tuple(groups), tuple((i,) for i in range(len(groups))), 4)


class ShadowMemory:
    """Executes plans on blocks that remember whose they are.

    Attributes:
        blocks: block id -> place in it -> (group, digest of the text up to there).
        reads: slots and states that were looked at and found right.
    """

    def __init__(self, trace: Trace) -> None:
        config = trace.config
        self.groups, self.vocab_size = config.groups, config.vocab_size
        layout = layout_of(config.groups)
        self.tables = GroupTables(
            layout, config.max_num_seqs, config.max_model_len, torch.from_numpy
        )
        self.blocks: dict[int, dict[int, Any]] = {}
        self.digests: dict[str, list[int]] = {}
        self.reads = 0

    def execute(self, plan: SchedulerOutput) -> None:
        for new in plan.scheduled_new_reqs:
            self.digests[new.req_id] = digests(new.prompt_token_ids)
        handed_out = self.tables.update(plan)
        copied = [(to, dict(self.blocks.get(source, {}))) for source, to in plan.blocks_to_copy]
        self.blocks.update(copied)
        for block_id in handed_out:
            self.blocks[block_id] = {}
        if not plan.num_scheduled_tokens:
            return
        names = list(plan.num_scheduled_tokens)
        names = [names[i] for i in decodes_first(plan.num_scheduled_tokens.values())]
        new = [plan.num_scheduled_tokens[name] for name in names]
        ends = [plan.num_computed_tokens(name) + n for name, n in zip(names, new, strict=True)]
        for name, end in zip(names, ends, strict=True):
            self._know(name, end)
        nothing = torch.empty(0)
        whole = AttentionMetadata.from_lists(new, ends, [[0] * end for end in ends], 1)
        inputs = StepInputs(names, nothing, nothing, whole, np.zeros(0, np.int64), nothing)
        self.tables.apply(inputs)
        for index, seen in enumerate(whole.groups):
            if isinstance(seen, StateMetadata):
                self._states(index, names, seen, new, ends)
            else:
                self._write(index, names, seen, new, ends)
                self._read(index, names, seen, new, ends)

    def _know(self, name: str, num_tokens: int) -> None:
        """Digests of a text's first so many tokens; what follows a prompt is known beforehand."""
        known = self.digests[name]
        while len(known) < num_tokens:
            token = sample_tokens(name, len(known), (), self.vocab_size)[0]
            known.append(hash((known[-1], token)))

    def _write(
        self, group: int, names: Sequence[str], seen: AttentionMetadata, new: list[int],
        ends: list[int],
    ) -> None:  # fmt: skip
        size = self.groups[group].block_size
        slots = iter(seen.slot_mapping.tolist())
        for name, num_tokens, end in zip(names, new, ends, strict=True):
            for position in range(end - num_tokens, end):
                slot = next(slots)
                if slot < size:
                    raise ShadowError(f"{name}: token {position} of group {group} has no block")
                place = self.blocks.setdefault(slot // size, {})
                place[slot % size] = (group, self.digests[name][position])

    def _read(
        self, group: int, names: Sequence[str], seen: AttentionMetadata, new: list[int],
        ends: list[int],
    ) -> None:  # fmt: skip
        spec = self.groups[group]
        tables = seen.block_table.tolist()
        for row, (name, num_tokens, end) in enumerate(zip(names, new, ends, strict=True)):
            first = first_needed(spec, end - num_tokens)
            hidden = end - seen.seq_lens_cpu[row]  # tokens before those that the layer sees
            for position in range(first, end):
                place, offset = divmod(position - hidden, spec.block_size)
                block_id = tables[row][place] if place >= 0 else 0
                found = self.blocks.get(block_id, {}).get(offset)
                if not block_id or found != (group, self.digests[name][position]):
                    raise ShadowError(
                        f"{name}: group {group} ({spec}) needs token {position} and reads {found} "
                        f"in block {block_id}"
                    )
                self.reads += 1

    def _states(
        self, group: int, names: Sequence[str], seen: StateMetadata, new: list[int], ends: list[int]
    ) -> None:
        places = zip(names, seen.block_ids.tolist(), seen.is_new.tolist(), new, ends, strict=True)
        for name, block_id, is_new, num_tokens, end in places:
            start = end - num_tokens
            if not block_id or is_new != (start == 0):
                raise ShadowError(f"{name}: its state after {start} tokens is in block {block_id}")
            if start:
                found = self.blocks.get(block_id, {}).get(STATE)
                if found != (group, self.digests[name][start - 1]):
                    raise ShadowError(
                        f"{name}: group {group} needs the state behind {start} tokens and reads "
                        f"{found} in block {block_id}"
                    )
                self.reads += 1
            self.blocks[block_id] = {STATE: (group, self.digests[name][end - 1])}


def digests(token_ids: Sequence[int]) -> list[int]:
    """Of each token, the digest of the text up to it."""
    found: list[int] = []
    for token_id in token_ids:
        found.append(hash((found[-1] if found else 0, token_id)))
    return found


def first_needed(spec: GroupSpec, position: int) -> int:
    """The first token that the one at ``position`` reads."""
    if spec.kind == "sliding_window":
        return max(0, position - spec.window + 1)
    return position // spec.chunk * spec.chunk if spec.kind == "chunked_local" else 0


def run(trace: Trace) -> tuple[int, int]:
    """Steps and reads of a trace in which every read was right.

    Raises:
        ShadowError: at the first that was not.
    """
    subject, memory = ReferenceSubject(trace.config), ShadowMemory(trace)
    plan_next = subject.scheduler.schedule

    def schedule() -> SchedulerOutput:
        plan = plan_next()
        memory.execute(plan)
        return plan

    subject.scheduler.schedule = schedule  # type: ignore[method-assign]
    return sum(1 for _ in replay(trace, subject)), memory.reads


def traces(first_seed: int = 0) -> Iterator[Trace]:
    """Those whose states the worker keeps: none at the end of every block (mode "all"). Every other
    one plans a step before the one before is taken in."""
    for seed in count(first_seed):
        trace = generate("hybrid", seed, 120)
        if any(group.mode == "all" for group in trace.config.groups):
            continue
        config = replace(trace.config, async_scheduling=bool(seed % 2))
        yield replace(trace, config=config)


def main(num_steps: int) -> None:
    done: list[tuple[int, int]] = []
    for trace in traces():
        done.append(run(trace))
        if sum(steps for steps, _ in done) >= num_steps:
            break
    steps, reads = map(sum, zip(*done, strict=True))
    print(f"{len(done)} traces, {steps:,} steps, {reads:,} reads, 0 wrong")


if __name__ == "__main__":
    main(int(sys.argv[1]))
