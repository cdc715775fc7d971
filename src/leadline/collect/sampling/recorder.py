"""What one sampled program did: accesses, loops, arithmetic. Long loops run only some iterations, each standing for several."""

import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from leadline.collect.sampling import addresses as figures

_HERE = str(Path(__file__).parent)
_POINTS = (8, 5, 3)  # iterations that run of a long loop, by nesting depth
_UNROLLED = 16  # a static_range up to this long runs whole
_WHILE_MOST = 64
_TOUCHED_MOST = 1 << 22  # distinct addresses kept per access; beyond, new ones count as never seen


class Cut(BaseException):
    """The program ran out of its time. Not an `Exception`: the interpreter wraps those."""


class Site:
    """One source access (file, line, kind, argument) within one program."""

    def __init__(self) -> None:
        self.executions = self.lanes = self.active = self.dead = self.elements = self.unique = 0.0
        self.itemsize, self.width = 4, 0
        self.touched: np.ndarray = np.empty(0, np.int64)
        self.efficiency: list[tuple[float, float]] = []  # (value, weight)
        self.contiguous, self.alignment = 1, 16
        self.low, self.high = 1 << 62, -1
        self.marks: list[int] = []  # a checksum per execution: what two runs compare
        self._last_new = 1.0


class _Running:
    """A loop being run: which index, which comes next, and how its carried integers move."""

    def __init__(self) -> None:
        self.index = -1
        self.next: int | None = None
        self.weight = 1.0
        self.jumped = False
        self.saved: tuple[Any, ...] | None = None
        self.saved_index = -2
        self.deltas: list[Any] | None = None


def planned(trips: int, most: int) -> list[tuple[int, float]]:
    """(index, weight) of the iterations to run, `most` (at least 3) at most; weights sum to `trips`.

    The first and the last stand for themselves (a masked tail is not typical). The second runs to show how one iteration follows
    another; it and points further on each stand for an equal share of what lies between.
    """
    if trips <= most:
        return [(i, 1.0) for i in range(trips)]
    share = (trips - 2) / (most - 2)
    between = [1, *(1 + int(share * (cell + 0.5)) for cell in range(1, most - 2))]
    return [(0, 1.0), *((index, share) for index in between), (trips - 1, 1.0)]


class Recorder:
    """Collects one program. `deadline` is a value of `time.monotonic`; `triton_folder` is not user code."""

    def __init__(self, deadline: float, triton_folder: str) -> None:
        self.deadline, self._triton = deadline, triton_folder
        self.sites: dict[tuple[str, int, str, int], Site] = {}
        self.loops: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self.dot_flops: dict[str, float] = {}
        self.other_flops = 0.0
        self.weight = 1.0
        self.capped: set[int] = set()
        self.cut = False
        self._stack: list[_Running] = []
        self._tick = 0

    def check_time(self) -> None:
        """Raise `Cut` past the deadline; looks at the clock every 16th call."""
        self._tick += 1
        if self._tick & 15 == 0 and time.monotonic() > self.deadline:
            self.cut = True
            raise Cut

    # loops, called from the rewritten kernel

    def iterate(self, file: str, line: int, kind: str, wrap: Any, *bounds: int) -> Iterator[Any]:
        """Yield the loop variable for the planned iterations; `wrap` makes it what the kernel expects."""
        values = range(*bounds)
        trips = len(values)
        self.loops.setdefault((file, line), []).append((trips, self.weight))
        whole = kind == "static_range" and trips <= _UNROLLED
        plan = planned(trips, trips if whole else _POINTS[min(len(self._stack), len(_POINTS) - 1)])
        running, outer = _Running(), self.weight
        self._stack.append(running)
        try:
            for position, (index, weight) in enumerate(plan):
                running.jumped = position > 0 and index != running.index + 1
                running.index, running.weight = index, weight
                running.next = plan[position + 1][0] if position + 1 < len(plan) else None
                self.weight = outer * weight
                if time.monotonic() > self.deadline:
                    self.cut = True
                    raise Cut
                yield wrap(values[index])
        finally:
            if running in self._stack:
                del self._stack[self._stack.index(running) :]
            self.weight = outer

    def endless(self, file: str, line: int) -> Iterator[int]:
        """Drive a `while` loop: at most `_WHILE_MOST` turns. The turn that finds the condition false is not a trip."""
        running, outer, turns = _Running(), self.weight, 0
        self._stack.append(running)
        try:
            while turns < _WHILE_MOST:
                running.index = turns
                yield turns
                turns += 1
            self.capped.add(line)
        finally:
            if running in self._stack:
                del self._stack[self._stack.index(running) :]
            self.loops.setdefault((file, line), []).append((turns, outer))

    def advance(self, values: tuple[Any, ...], difference: Any, shift: Any) -> tuple[Any, ...]:
        """Called at the end of an iteration with the names the loop body assigns: move carried integers over skipped iterations.

        A pointer bumped once per iteration must arrive where it would be had all iterations run. Its step is what the first two
        iterations moved it by.
        """
        running = self._stack[-1]
        skipped = 0 if running.next is None else running.next - running.index - 1
        if skipped <= 0:
            running.saved, running.saved_index = values, running.index
            return values
        if running.deltas is None and running.saved is not None and running.saved_index == running.index - 1:
            running.deltas = [difference(new, old) for new, old in zip(values, running.saved, strict=True)]
        if running.deltas is None:
            return values
        return tuple(shift(v, d, skipped) for v, d in zip(values, running.deltas, strict=True))

    # what the builder reports

    def origin(self) -> tuple[str, int]:
        """File and line of the innermost frame that is neither Triton's nor ours."""
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(_HERE):
                if frame.f_code.co_name == "run_program":
                    return "", 0
            elif not name.startswith(self._triton):
                return name, frame.f_lineno
            frame = frame.f_back
        return "", 0

    def access(self, kind: str, pointers: np.ndarray, active: np.ndarray | None, itemsize: int) -> None:
        """One execution of a load, store or atomic: `pointers` uint64 of the tile's shape, `active` bool of that shape or None."""
        self.check_time()
        file, line = self.origin()
        if active is not None and bool(active.all()):
            active = None
        first = int(pointers.reshape(-1)[0]) if pointers.size else 0
        site = self.sites.setdefault((file, line, kind, figures.argument_of(first)), Site())
        where = figures.shared_part(np.ascontiguousarray(pointers))
        count = where.size if active is None else int(np.count_nonzero(active))
        weight = self.weight
        site.itemsize, site.width = itemsize, max(site.width, where.size)
        site.executions += weight
        site.lanes += weight * where.size
        site.active += weight * count
        site.elements += weight * count
        site.dead += weight * (count == 0)
        if len(site.marks) < 64:
            site.marks.append(zlib.crc32(where.tobytes()))
        if not count:
            return
        if len(site.efficiency) < 6:
            efficiency, contiguous, alignment = figures.coalescing(where, active, itemsize)
            site.efficiency.append((efficiency, weight * count))
            site.contiguous, site.alignment = max(site.contiguous, contiguous), min(site.alignment, alignment)
        self._touch(site, figures.distinct(where.reshape(-1) if active is None else where[active]))

    def _touch(self, site: Site, elements: np.ndarray) -> None:
        site.low, site.high = min(site.low, int(elements[0])), max(site.high, int(elements[-1]))
        fresh = 1.0 - figures.share_within(elements, site.touched)
        if any(r.jumped for r in self._stack):
            # Over a gap an overlap with the iteration before cannot be seen; the neighbours that did run tell it.
            fresh = min(fresh, site._last_new)
        elif site.touched.size:
            site._last_new = fresh
        site.unique += self.weight * fresh * elements.size
        if fresh and site.touched.size + elements.size <= _TOUCHED_MOST:
            site.touched = np.union1d(site.touched, elements) if site.touched.size else elements

    def where(self, condition: np.ndarray) -> None:
        """One `tl.where` over a tile."""
        self.check_time()
        file, line = self.origin()
        site = self.sites.setdefault((file, line, "where", -1), Site())
        true = int(np.count_nonzero(condition))
        site.width = max(site.width, condition.size)
        site.executions += self.weight
        site.lanes += self.weight * condition.size
        site.active += self.weight * true
        site.dead += self.weight * (true == 0)
        if len(site.marks) < 64:
            site.marks.append(zlib.crc32(np.ascontiguousarray(condition).tobytes()))

    def dot(self, flops: float, dtype: str) -> None:
        """One matrix product of `flops` operations with operands of `dtype`."""
        self.check_time()
        self.dot_flops[dtype] = self.dot_flops.get(dtype, 0.0) + self.weight * flops

    def arithmetic(self, elements: int) -> None:
        """Floating-point operations on `elements` lanes."""
        self.check_time()
        self.other_flops += self.weight * elements
