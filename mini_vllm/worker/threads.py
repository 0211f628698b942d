"""How many CPU threads a step is worth.

Threads wait for each other after every product. A small product is over before another thread has
woken up, so a decode step of a narrow model runs on one. From some hundred tokens on, its products
are worth splitting.

How threads wait matters as much. OpenMP lets them spin, for the next product is near; but where
another program holds one of the cores, the others then spin until it lets go, after every product:
one busy neighbour makes a step twenty times slower, not twice. So `mini_vllm` asks for a short spin
(GOMP_SPINCOUNT, see its `__init__`), after which a thread sleeps.

Our own kernels do not need it: none waits for one of its threads that has no core (see `Helpers` in
`kernels/cpu.cpp`).

An engine in a process of its own has such a neighbour: the front end, which sends every token to
a client. Where steps are short and requests many, that is much work. There torch leaves a core to
it, and our kernels take what is left of that core.
"""

from __future__ import annotations

import torch

from mini_vllm.kernels import native

SMALL_HIDDEN_SIZE = 512
"""Models at least this wide use all threads in every step."""
WORTH_SPLITTING = 1 << 15
"""Numbers in the hidden states of a step, from which narrower models do, too."""
MANY_REQUESTS = 16
"""Requests of a step from which a front end is left a core. A large step of fewer is one of long
prompts, after which there is little to send."""

_at_start = torch.get_num_threads()
_set_here: int | None = None


class StepThreads:
    """Sets torch's number of threads before a step, in the whole process.

    Args:
        wanted: a fixed number; None: by the size of the step.
        hidden_size: of the model.
        most: threads at most; None: as many as torch was started with, or as the user has set.
    """

    def __init__(self, wanted: int | None, hidden_size: int, most: int | None = None) -> None:
        now = torch.get_num_threads()
        own = _at_start if now == _set_here else now  # a number that the user has set is kept
        self.wanted, self.hidden_size, self.most = wanted, hidden_size, most or own
        self.leaves_a_core = False
        """Whether steps of many requests leave one core to a front end in another process."""
        self.prepare(0, 0)

    def prepare(self, num_tokens: int, num_requests: int) -> None:
        """Use as many threads as a step of ``num_tokens`` for ``num_requests`` is worth."""
        global _set_here
        count = self.wanted or self.count_for(num_tokens)
        left = count > 1 and self.leaves_a_core and self.wanted is None
        left = left and self.hidden_size < SMALL_HIDDEN_SIZE and num_requests >= MANY_REQUESTS
        native.use_more_threads(left)
        if count - left != torch.get_num_threads():
            torch.set_num_threads(count - left)
            _set_here = count - left

    def count_for(self, num_tokens: int) -> int:
        is_large = num_tokens * self.hidden_size >= WORTH_SPLITTING
        return self.most if is_large or self.hidden_size >= SMALL_HIDDEN_SIZE else 1
