"""A KV connector that does what a trace says: the same script for our scheduler and for vLLM's.

It holds no KV. It answers, lets steps pass, and reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.trace.format import External


@dataclass
class Report:
    """What the pretended worker tells after a step, in one order for all schedulers."""

    sent: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    invalid: set[int] = field(default_factory=set)


@dataclass
class _Load:
    steps: int
    invalid: list[int]


class Script:
    """Follows the `external` of every request.

    Args:
        is_async: whether loads take steps, or are there at once.
    """

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async
        self.plans: dict[str, External] = {}
        self.next_answer: dict[str, int] = {}
        self.loads: dict[str, _Load] = {}
        self.kept: dict[str, int] = {}
        self.invalid_now: list[int] = []
        """Blocks of this step's synchronous loads that do not arrive."""
        self.received_now: list[str] = []

    def add(self, request_id: str, plan: External | None) -> None:
        self.plans[request_id] = plan or External()
        self.next_answer[request_id] = 0

    def answer(
        self, request_id: str, num_tokens: int, num_computed: int
    ) -> tuple[int | None, bool]:
        """What it offers. None is said once; a number until a load of it has begun."""
        answers = self.plans[request_id].answers
        index = self.next_answer[request_id]
        if index >= len(answers):
            return 0, False
        held = answers[index]
        if held is None:
            self.next_answer[request_id] += 1
            return None, False
        most = num_tokens if self.is_async else num_tokens - 1
        external = max(min(held, most) - num_computed, 0)
        return external, self.is_async and external > 0

    def allocated(
        self, request_id: str, block_ids: list[int], num_external: int, num_computed: int, size: int
    ) -> None:
        """A request has its blocks; a load begins if it is to get tokens."""
        if num_external == 0:
            return
        plan = self.plans[request_id]
        self.next_answer[request_id] += 1
        first, last = num_computed // size, -(-(num_computed + num_external) // size)
        loaded = block_ids[first:last]
        invalid = [loaded[index] for index in plan.invalid if index < len(loaded)]
        if self.next_answer[request_id] > 1 + plan.answers.count(None):
            invalid = []  # what comes later arrives
        if self.is_async:
            self.loads[request_id] = _Load(plan.arrive, invalid)
        elif not self.invalid_now:  # of one request a step: vLLM ends several in no fixed order
            self.invalid_now = invalid

    def finished(self, request_id: str, block_ids: list[int]) -> bool:
        """Whether the request's blocks stay. Not if they are loaded: vLLM cannot do both."""
        keep = self.plans[request_id].keep
        loads = request_id in self.loads or request_id in self.received_now
        if keep == 0 or not block_ids or loads:
            return False
        self.kept[request_id] = keep
        return True

    def report(self) -> Report:
        """A step is over."""
        report = Report(invalid=set(self.invalid_now))
        self.invalid_now = []
        for request_id, load in list(self.loads.items()):
            if load.steps > 0 or (load.invalid and report.invalid):
                load.steps -= 1
                continue
            report.received.append(request_id)
            report.invalid |= set(load.invalid)
            del self.loads[request_id]
        self.received_now = report.received
        for request_id, steps in list(self.kept.items()):
            if steps > 0 or report.sent:  # one a step: vLLM frees several in no fixed order
                self.kept[request_id] = steps - 1
                continue
            report.sent.append(request_id)
            del self.kept[request_id]
        return report
