"""Every bug is real, and its tests tell right from wrong: red on the pin, green with our fix, red
with each wrong fix, and decisions as recorded where nothing else is said."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.maintain import bugs, copy
from labkit.maintain.bugs import Bug
from labkit.maintain.judge import LIMIT, VARIANTS, Bench, failed, lockstep_failures


def faults(bench: Bench, bug: Bug, *, lockstep: bool = True) -> Iterator[str]:
    """What does not hold of one bug."""
    seeds, sealed = range(VARIANTS), bug.sealed()
    on_pin = bench.tests(bug, {}, seeds)
    neighbours = on_pin[VARIANTS:]
    if len(on_pin) < VARIANTS + 2:
        yield f"{bug.id}: {len(on_pin)} tests; it needs {VARIANTS} variants and two neighbours"
    for outcome in on_pin[:VARIANTS]:
        if outcome.passed:
            yield f"{bug.id}: {outcome.name} passes on the pin"
        elif "Error: No module" in outcome.said:
            yield f"{bug.id}: {outcome.said}"
    if not any(outcome.passed for outcome in neighbours):
        yield f"{bug.id}: no neighbour passes on the pin: {[o.said for o in neighbours]}"
    fix = bugs.edits(bench.tree, sealed.fix)
    for outcome in failed(bench.tests(bug, fix, seeds)):
        yield f"{bug.id}: with our fix {outcome.name} fails: {outcome.said}"
    if copy.size(bench.tree, fix) > LIMIT:
        yield f"{bug.id}: our fix changes {copy.size(bench.tree, fix)} lines; the limit is {LIMIT}"
    for number, wrong in enumerate(sealed.wrong, 1):
        if not failed(bench.tests(bug, bugs.edits(bench.tree, wrong.fix), seeds)):
            yield f"{bug.id}: wrong fix {number} passes: {wrong.why}"
    if lockstep:
        for outcome in lockstep_failures(bench, bug, fix):
            yield f"{bug.id}: with our fix {outcome.name} is decided otherwise: {outcome.said}"
    yield from faults_of_sibling(bench, bug)


def faults_of_sibling(bench: Bench, bug: Bug) -> Iterator[str]:
    """A sibling is red where it is planted, with our fix of the bug too, and green without it; it
    hides neither the bug nor its fix."""
    seeds, sibling = range(VARIANTS), bug.sealed().sibling
    if sibling is None:
        if bug.sealed().exam:
            yield f"{bug.id}: it is an exam's, and has no sibling"
        return
    planted = bugs.edits(bench.tree, sibling.plant)
    both = bugs.edits(bench.tree, (*sibling.plant, *bug.sealed().fix))
    for outcome in failed(bench.sibling(bug, {}, seeds)):
        yield f"{bug.id}: the sibling's test fails on the pin: {outcome.said}"
    for name, edits in (("planted", planted), ("planted, with our fix", both)):
        for outcome in bench.sibling(bug, edits, seeds):
            if outcome.passed:
                yield f"{bug.id}: the sibling is {name}, and its test passes"
            elif "Error: No module" in outcome.said:
                yield f"{bug.id}: {outcome.said}"
    if all(outcome.passed for outcome in bench.tests(bug, planted, seeds)[:VARIANTS]):
        yield f"{bug.id}: the bug's test passes where the sibling is planted"
    for outcome in failed(bench.tests(bug, sibling.undone(both), seeds)):
        yield f"{bug.id}: with our fix, beside the sibling, {outcome.name} fails: {outcome.said}"
