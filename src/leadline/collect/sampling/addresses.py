"""Figures of address arrays: sectors, runs, alignment, distinct elements. Plain numpy; knows no Triton.

An address is a number of 63 bits: argument (11), storage (10), byte offset in the storage plus a guard (42). So two arguments that
share a storage share the lower 52 bits, and the argument that an address came from can still be told.
"""

import numpy as np

OFFSET_BITS, STORAGE_BITS = 42, 10
GUARD = 1 << 40  # room for negative offsets; a multiple of every alignment that matters
SECTOR = 32  # bytes: the unit of traffic between L2, L1 and DRAM
GROUP = 32  # lanes whose accesses are issued together
_SHARED_BITS = OFFSET_BITS + STORAGE_BITS
_MOST_GROUPS = 64  # of one execution that are looked at: a tile is regular, and a figure must be cheap


def base_address(argument: int, storage: int, offset: int) -> int:
    """The made-up address of a pointer argument: its position, its storage's number and its byte offset in the storage."""
    return (argument + 1) << _SHARED_BITS | storage << OFFSET_BITS | (GUARD + offset)


def argument_of(address: int) -> int:
    """The argument's position an address was derived from; -1 when it was not derived from any."""
    return (address >> _SHARED_BITS) - 1


def shared_part(addresses: np.ndarray) -> np.ndarray:
    """The addresses (uint64) without the argument: int64, equal exactly where memory is."""
    return (addresses & np.uint64((1 << _SHARED_BITS) - 1)).view(np.int64)


def offset_of(address: int) -> int:
    """Byte offset in the storage (may be negative)."""
    return (address & ((1 << OFFSET_BITS) - 1)) - GUARD


def distinct(values: np.ndarray) -> np.ndarray:
    """Sorted distinct values of a 1-D array."""
    if values.size < 2 or bool(np.all(values[1:] > values[:-1])):
        return values
    return np.unique(values)


def share_within(values: np.ndarray, reference: np.ndarray) -> float:
    """Share of sorted distinct `values` that also occur in sorted distinct `reference`; 0 when either is empty."""
    if not values.size or not reference.size:
        return 0.0
    place = np.minimum(np.searchsorted(reference, values), reference.size - 1)
    return float(np.count_nonzero(reference[place] == values)) / values.size


def _lane_order(addresses: np.ndarray, itemsize: int) -> int:
    """The axis along which the most neighbours are consecutive; among equals the last one longer than 1."""
    best, best_score = addresses.ndim - 1, -1.0
    for axis in reversed(range(addresses.ndim)):
        if addresses.shape[axis] < 2:
            continue
        lead = np.moveaxis(addresses, axis, -1).reshape(-1, addresses.shape[axis])[:_MOST_GROUPS]
        steps = np.diff(lead, axis=1)
        score = float(np.mean(steps == itemsize)) + 0.25 * float(np.mean(steps == 0))
        if score > best_score + 1e-9:
            best, best_score = axis, score
    return best


def _in_lane_order(array: np.ndarray, axis: int) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, axis, -1)).reshape(-1)


def _some_groups(flat: np.ndarray) -> np.ndarray:
    """Rows of GROUP lanes: all, or a regular choice of `_MOST_GROUPS`; a last group that is not full is dropped when others exist."""
    count = flat.size // GROUP
    rows = flat[: count * GROUP].reshape(count, GROUP)
    return rows if count <= _MOST_GROUPS else rows[np.linspace(0, count - 1, _MOST_GROUPS).astype(np.int64)]


def _distinct_per_row(rows: np.ndarray, masks: np.ndarray | None) -> np.ndarray:
    """How many distinct values the rows have, each row by itself, counting unmasked entries only."""
    if masks is not None:
        rows = np.where(masks, rows, np.int64(-1))
    rows = np.sort(rows, axis=1)
    fresh = np.ones(rows.shape, bool)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.count_nonzero(fresh & (rows >= 0), axis=1)


def coalescing(addresses: np.ndarray, active: np.ndarray | None, itemsize: int) -> tuple[float, int, int]:
    """(sector efficiency, longest contiguous run in elements, alignment in bytes) of one execution.

    `addresses` has the tile's shape, `active` the same shape or None (all). Efficiency is distinct useful bytes over bytes of the
    sectors touched, per group of 32 lanes along the best axis. A group that touches one sector has efficiency 1: it cannot touch fewer.
    """
    if addresses.size < 2:
        address = int(addresses.reshape(-1)[0]) if addresses.size else 0
        return 1.0, 1, _alignment(np.array([address]))
    axis = _lane_order(addresses, itemsize)
    flat = _in_lane_order(addresses, axis)
    lanes = None if active is None else _in_lane_order(active, axis)
    if flat.size < GROUP:
        groups, masks = flat[None, :], None if lanes is None else lanes[None, :]
    else:
        groups, masks = _some_groups(flat), None if lanes is None else _some_groups(lanes)
    useful = _distinct_per_row(groups, masks) * itemsize
    first, last = groups // SECTOR, (groups + (itemsize - 1)) // SECTOR
    if bool(np.any(first != last)):
        first = np.concatenate([first, last], axis=1)
        masks = None if masks is None else np.concatenate([masks, masks], axis=1)
    sectors = _distinct_per_row(first, masks)
    # A group that needs one sector only (lanes that share an address, a short tile) could not do better.
    useful = np.where(sectors == 1, SECTOR, useful)
    touched = int(sectors.sum()) * SECTOR
    efficiency = min(1.0, float(useful.sum()) / touched) if touched else 1.0
    lead = np.moveaxis(addresses, axis, -1).reshape(-1, addresses.shape[axis])
    if len(lead) > _MOST_GROUPS:
        lead = lead[np.linspace(0, len(lead) - 1, _MOST_GROUPS).astype(np.int64)]
    breaks = np.diff(lead, axis=1) != itemsize
    starts = np.concatenate([np.ones((len(lead), 1), bool), breaks], axis=1)
    place = np.flatnonzero(starts.reshape(-1))
    lengths = np.diff(np.append(place, starts.size))
    return efficiency, int(lengths.max()), _alignment(lead.reshape(-1)[place])


def _alignment(addresses: np.ndarray) -> int:
    low = int(np.bitwise_or.reduce(addresses)) & 15
    return 16 if low == 0 else low & -low
