"""What a monitored run saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from labkit.kernels.watch.findings import Finding


@dataclass
class Traffic:
    """How much the launches of one problem moved and computed.

    A load or store counts each element once, however many of its lanes name it: lanes of a warp
    share a transaction. So `bytes_read` is what the kernel asks of the memory system, and
    `unique_read` what it would ask if each launch read each element once.

    Attributes:
        bytes_read, bytes_written: requested.
        unique_read, unique_written: bytes of the different elements, summed over launches.
        read_by_tensor, written_by_tensor: requested bytes by the problem's name of a tensor.
        by_line: requested bytes, read and written, by line of the learner's file.
        dot_flops: 2 M N K of each `tl.dot`, masked or not.
        lanes, masked_lanes: of all loads and stores.
        programs, launches: how many ran.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    unique_read: int = 0
    unique_written: int = 0
    read_by_tensor: dict[str, int] = field(default_factory=dict)
    written_by_tensor: dict[str, int] = field(default_factory=dict)
    by_line: dict[int, int] = field(default_factory=dict)
    dot_flops: int = 0
    lanes: int = 0
    masked_lanes: int = 0
    programs: int = 0
    launches: int = 0

    @property
    def num_bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self) | {"by_line": {str(line): n for line, n in self.by_line.items()}}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Traffic:
        """The traffic that `plain` wrote."""
        return cls(**{**data, "by_line": {int(line): n for line, n in data["by_line"].items()}})


@dataclass(frozen=True)
class Observation:
    """One problem, run under the monitor.

    Attributes:
        findings: alike ones as one, with a count; in the order in which they were met.
        outputs: the tensors named in the spec's `outputs` and `updates`. Of one with more than
            2^24 elements only the required ones, in order, with one axis.
    """

    findings: tuple[Finding, ...]
    traffic: Traffic
    outputs: dict[str, Tensor]
