"""Where a learner may stop and has finished something: three finish lines of the course."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from labkit.course.manifest import Course, Phase


@dataclass(frozen=True)
class FinishLine:
    """One of them.

    Attributes:
        name: one word, for a page and a receipt.
        last: number of the last phase that belongs to it; "" means all of the course.
        means: what a learner who has it can say.
    """

    name: str
    last: str
    means: str

    def phases(self, course: Course) -> list[Phase]:
        """What belongs to it, as far as it is built."""
        return [p for p in course.ready if not self.last or p.number <= self.last]

    def words(self, course: Course, done: Collection[str]) -> str:
        """ "Core ✓" or "Core 2 of 4"; `done` holds the numbers of the phases that are done."""
        mine = [phase.number for phase in self.phases(course)]
        count = sum(number in done for number in mine)
        return f"{self.name} ✓" if count == len(mine) else f"{self.name} {count} of {len(mine)}"


LINES = (
    FinishLine("Core", "03", "I wrote what decides: requests, the KV cache, the scheduler."),
    FinishLine("Engine", "07", "I wrote what runs: kernels, runner, sampling, graphs."),
    FinishLine("Maintainer", "", "I wrote every part, and a policy of my own."),
)


def reached(course: Course, done: Collection[str]) -> list[str]:
    """Names of the lines whose phases are all done."""
    return [
        line.name for line in LINES if all(phase.number in done for phase in line.phases(course))
    ]
