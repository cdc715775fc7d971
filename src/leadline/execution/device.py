"""Whether a device is there, and one user of it at a time: two timings side by side would both be wrong."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def device_present() -> bool:
    """True when an NVIDIA driver is loaded here. Cheap: no driver call, so it may still turn out unusable."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None


@contextlib.contextmanager
def exclusive_device(home: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the device against other Leadline processes with the same home; waits its turn. Freed when the process dies."""
    Path(home).mkdir(parents=True, exist_ok=True)
    with open(Path(home) / "device.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
