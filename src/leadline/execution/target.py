"""Target strings: "cuda:90" and the like. Imports no compiler."""

from leadline.errors import UsageError
from leadline.model import Record

_CUDA = ("70", "75", "80", "86", "87", "89", "90", "100", "103", "110", "120", "121")
_HIP = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1102", "gfx1151", "gfx1200", "gfx1201", "gfx1250")
_ASCEND = ("910B3", "950PR_9589")

KNOWN_TARGETS = tuple([f"cuda:{a}" for a in _CUDA] + [f"hip:{a}" for a in _HIP] + [f"ascend:{a}" for a in _ASCEND])


class Target(Record, frozen=True):
    """A compile target: `backend` cuda, hip or ascend, `arch` as Triton's GPUTarget wants it (90 or "gfx942"), lanes of a warp."""

    name: str
    backend: str
    arch: int | str
    warp_size: int


def parse_target(target: str) -> Target:
    """Read a target string. Raises UsageError listing the known ones."""
    if target not in KNOWN_TARGETS:
        raise UsageError(f"unknown target {target!r}", where="--target", remedy=f"choose one of {', '.join(KNOWN_TARGETS)}")
    backend, _, arch = target.partition(":")
    if backend == "cuda":
        return Target(name=target, backend=backend, arch=int(arch), warp_size=32)
    wide = arch.startswith("gfx9")
    return Target(name=target, backend=backend, arch=arch, warp_size=64 if wide else 32 if backend == "hip" else 1)
