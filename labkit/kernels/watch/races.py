"""Who meets at an element: programs of one launch, and lanes of one program.

Programs of one launch run one after the other here but at the same time on a GPU, in any order. So
two that meet at one element, unless both only read it or both use atomics, are a race, whatever the
result was. So are two lanes of one program without `tl.debug_barrier()` in between: different
threads run them. The lane with the same number in a tile of the same shape is the same thread. A
single number is stored by one thread and loaded by all.
"""

from __future__ import annotations

import numpy as np

from labkit.kernels.watch.memory import SEVERAL, Region
from labkit.kernels.watch.program import RunningProgram

CONCURRENT = "programs of one launch run at the same time"
BARRIER = "different lanes are different threads: put tl.debug_barrier() in between"
ONE_STORES = (
    "one thread stores a number, and all threads load it: put tl.debug_barrier() in between"
)
BY_ATOMIC = -2  # in place of a lane: whichever thread did it, the others do not know when


class Races(RunningProgram):
    """Compares each access with the records of the earlier ones."""

    # ------------------------------------------------------------ programs
    def _check_order(
        self, region: Region, offsets: np.ndarray, records: np.ndarray, line: int, atomic: bool
    ) -> None:
        """A race with a program of this launch that read or wrote these elements before."""
        storage = region.storage
        for earlier, verb in (
            (storage.first_writer, "writes"),
            (storage.last_writer, "writes"),
            (storage.first_reader, "reads"),
            (storage.last_reader, "reads"),
        ):
            others = earlier[records]
            clash = (others >= self.base) & (others != self.number)
            if verb == "writes" and atomic:
                clash &= ~storage.atomic[records]
            if clash.any():
                self._race(region, offsets[clash], others[clash], line, "writes", verb)
                return

    def _race(
        self, region: Region, offsets: np.ndarray, others: np.ndarray, line: int, yours: str,
        theirs: str,
    ) -> None:  # fmt: skip
        first, other = int(offsets[0]), self._program_of(int(others[0]))
        message = f"{yours} {region.place(first)}, which program {other} {theirs}: {CONCURRENT}"
        self.add("race", message, line, region, region.index(first), len(offsets))

    # ------------------------------------------------------------ lanes
    def _read_by_lanes(
        self, region: Region, offsets: np.ndarray, records: np.ndarray, places: np.ndarray,
        line: int,
    ) -> None:  # fmt: skip
        """A race with another lane that has just written; and who reads, for those that write."""
        storage = region.storage
        mine = storage.write_stretch[records] == self.stretch
        clash = mine & (storage.write_place[records] != places)
        if clash.any():
            self._lane_race("race", region, offsets[clash], line, "reads", "has written")
        elif mine.any() and self.is_number:
            message = f"reads {region.place(int(offsets[0]))}, which it has written: {ONE_STORES}"
            self.add("race", message, line, region, region.index(int(offsets[0])))
        known = storage.read_stretch[records] == self.stretch
        other = known & (storage.read_place[records] != places)
        storage.read_place[records] = places
        shared = storage.read_place[records] != places  # by another lane of this very load
        storage.read_place[records[other | shared]] = SEVERAL
        storage.read_stretch[records] = self.stretch

    def _write_by_lanes(
        self, region: Region, offsets: np.ndarray, records: np.ndarray, places: np.ndarray,
        changed: np.ndarray, line: int,
    ) -> None:  # fmt: skip
        """A race with another lane that has just read or written, if it makes a difference."""
        storage = region.storage
        read = (storage.read_stretch[records] == self.stretch) & changed
        clash = read & (storage.read_place[records] != places)
        if clash.any():
            self._lane_race("race", region, offsets[clash], line, "writes", "reads")
        written = (storage.write_stretch[records] == self.stretch) & changed
        clash = written & (storage.write_place[records] != places)
        if clash.any():
            self._lane_race(
                "duplicate_store", region, offsets[clash], line, "writes", "has written"
            )
        storage.write_place[records] = places
        storage.write_stretch[records] = self.stretch

    def _change_by_lanes(
        self, region: Region, offsets: np.ndarray, records: np.ndarray, places: np.ndarray,
        line: int,
    ) -> None:  # fmt: skip
        """A race of an atomic with another lane that has just read or written without one."""
        storage = region.storage
        read = storage.read_stretch[records] == self.stretch
        clash = read & (storage.read_place[records] != places)
        if clash.any():
            self._lane_race("race", region, offsets[clash], line, "changes", "reads")
        before = storage.write_place[records]
        written = (storage.write_stretch[records] == self.stretch) & (before != BY_ATOMIC)
        clash = written & (before != places)
        if clash.any():
            self._lane_race("race", region, offsets[clash], line, "changes", "has written")
        storage.write_place[records] = BY_ATOMIC
        storage.write_stretch[records] = self.stretch

    def _lane_race(
        self, kind: str, region: Region, offsets: np.ndarray, line: int, yours: str, theirs: str
    ) -> None:
        first = int(offsets[0])
        message = f"{yours} {region.place(first)}, which another lane of it {theirs}: {BARRIER}"
        self.add(kind, message, line, region, region.index(first), len(offsets))
