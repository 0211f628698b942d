"""How long a step takes: a sum of what it does, at prices fitted to the real engine.

A step's *load* counts what is in its plan. The model is linear in these counts, and no price is
negative, so more work never costs less::

    seconds = base + p1 * prefill_tokens + p2 * prefill_pairs + p3 * decodes + ...

`measure` takes the times; this module fits the prices and predicts with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.json_files import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT = ROOT / "benchmarks/results/arena/cost_model.json"
MAX_SWEEPS = 50_000
SMALLEST_CHANGE = 1e-10


class StepLoad(NamedTuple):
    """What one step asks of the machine."""

    step: int = 1
    """Always 1: what every step costs, however little it does."""
    prefills: int = 0
    """Requests that compute more than one token."""
    prefill_tokens: int = 0
    """Their tokens in this step."""
    prefill_pairs: int = 0
    """Each of these tokens times the length of its sequence so far: attention's products."""
    decodes: int = 0
    """Requests that compute one token."""
    decode_context: int = 0
    """The lengths of their sequences, summed: the keys and values that attention reads."""
    swapped_blocks: int = 0
    """Blocks copied between device and host, in either direction."""
    copied_blocks: int = 0
    """Blocks copied on the device."""


def step_load(plan: SchedulerOutput) -> StepLoad:
    """Count what is in a plan. It trusts what the worker is told, and nothing else."""
    tokens = plan.num_scheduled_tokens
    prefills = prefill_tokens = pairs = decodes = context = 0
    cached = plan.scheduled_cached_reqs
    starts = list(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    starts += [(new.req_id, new.num_computed_tokens) for new in plan.scheduled_new_reqs]
    for request_id, computed in starts:
        count = tokens[request_id]
        if count == 1:
            decodes += 1
            context += computed + 1
        else:
            prefills += 1
            prefill_tokens += count
            pairs += count * (computed + count)
    swapped = len(plan.blocks_to_swap_out) + len(plan.blocks_to_swap_in)
    copied = len(plan.blocks_to_copy)
    return StepLoad(1, prefills, prefill_tokens, pairs, decodes, context, swapped, copied)


@dataclass(frozen=True)
class CostModel:
    """Prices in seconds, one for each field of :class:`StepLoad`.

    Attributes:
        prices: in the order of the fields.
        facts: where they come from: machine, engine, and the error on steps not fitted.
    """

    prices: tuple[float, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def seconds(self, load: StepLoad) -> float:
        """How long a step with this load takes."""
        return sum(map(mul, self.prices, load))

    def alone(self, prompt_len: int, output_len: int) -> float:
        """How long a request takes that has the machine to itself: its whole prompt in one step,
        then a step for each further token."""
        prefill = StepLoad(1, 1, prompt_len, prompt_len * prompt_len)
        later = output_len - 1
        context = later * prompt_len + later * (later + 1) // 2
        decodes = StepLoad(step=later, decodes=later, decode_context=context)
        return self.seconds(prefill) + self.seconds(decodes)

    @property
    def name(self) -> str:
        """A name of these very prices, so that results under others are told apart."""
        digest = hashlib.sha256(repr(self.prices).encode()).hexdigest()[:6]
        return f"{self.facts.get('name', 'unnamed')}@{digest}"

    def save(self, path: Path) -> None:
        """Write the model as JSON, prices by name."""
        data = {"seconds_per": dict(zip(StepLoad._fields, self.prices, strict=True)), **self.facts}
        write_text(path, json.dumps(data, indent=1) + "\n")


def load_model(path: Path = DEFAULT) -> CostModel:
    """Read what :meth:`CostModel.save` wrote.

    Raises:
        ValueError: the file is missing or is no cost model; the message says what is wrong.
    """
    try:
        data = parse_json(path.read_bytes())
        table = data.pop("seconds_per")
        if set(table) != set(StepLoad._fields):
            raise ValueError(
                f"its prices are {', '.join(table)}, not {', '.join(StepLoad._fields)}"
            )
        prices = tuple(float(table[name]) for name in StepLoad._fields)
        if min(prices) < 0 or not prices[0] > 0:
            raise ValueError("a price is negative, or a step costs nothing")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; measure: labkit arena fit") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path}: this is no cost model: {error}") from None
    return CostModel(prices, data)


# ------------------------------------------------------------------ fitting


def fit(loads: Sequence[StepLoad], seconds: Sequence[float]) -> CostModel:
    """The prices, none below 0, with the least squared relative error.

    Relative: a millisecond matters more in a step of two than in one of fifty.
    """
    import numpy as np

    times = np.asarray(seconds, dtype=float)
    shares = np.asarray(loads, dtype=float) / times[:, None]
    prices = nonnegative_least_squares(shares, np.ones(len(times)))
    return CostModel(tuple(float(f"{price:.4g}") for price in prices))


def nonnegative_least_squares(
    matrix: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The ``x >= 0`` for which ``matrix @ x`` is nearest to ``target``.

    One coordinate after the other goes to its best value, or to 0 if that is negative. The sum
    of squares is convex, so this ends where no coordinate can improve it any more.

    Args:
        matrix: ``[n, k]``.
        target: ``[n]``.

    Returns:
        ``[k]``; 0 where a column is empty.
    """
    import numpy as np

    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    columns = matrix / scale
    gram, moment = columns.T @ columns, columns.T @ target
    x = np.zeros(len(scale))
    for _ in range(MAX_SWEEPS):
        before = x.copy()
        for j in np.flatnonzero(gram.diagonal()):
            x[j] = max(0.0, x[j] + (moment[j] - gram[j] @ x) / gram[j, j])
        if np.abs(x - before).max() <= SMALLEST_CHANGE * np.abs(x).max():
            break
    return x / scale


def relative_errors(
    model: CostModel, loads: Sequence[StepLoad], seconds: Sequence[float]
) -> NDArray[np.float64]:
    """``|predicted - measured| / measured`` of each step, as a share."""
    import numpy as np

    predicted = np.array([model.seconds(load) for load in loads])
    measured = np.asarray(seconds, dtype=float)
    return np.abs(predicted - measured) / measured
