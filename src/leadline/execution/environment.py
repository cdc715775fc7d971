"""What the machine offers: versions, compiler, debug channel, device, cache. `inspect` runs in a worker; the rest does not."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from leadline.model import Record


class EnvironmentRequest(Record, frozen=True):
    """`target` is the compile target whose assembler is asked for."""

    target: str = "cuda:90"


class Environment(Record, frozen=True):
    """Facts of one interpreter. Versions are "" when the package is missing; `*_problem` says why a thing cannot be used."""

    python: str = ""
    executable: str = ""
    triton: str = ""
    triton_problem: str = ""
    torch: str = ""
    torch_problem: str = ""
    numpy: str = ""
    ptxas: str = ""  # version
    ptxas_path: str = ""
    ptxas_problem: str = ""
    debug_channel: bool | None = None  # None: no triton to ask
    device: str | None = None  # its name
    capability: str = ""  # compute capability, "9.0"
    device_problem: str = ""

    @property
    def versions(self) -> dict[str, str]:
        """What decides the outcome of a compile or a check, by name; missing things left out."""
        found = {"python": self.python, "triton": self.triton, "torch": self.torch, "numpy": self.numpy, "ptxas": self.ptxas}
        return {name: version for name, version in found.items() if version}


class Item(Record, frozen=True):
    """One line of the doctor's answer. `state`: ok | warning | missing."""

    name: str
    state: str
    detail: str
    remedy: str = ""


def inspect(request: EnvironmentRequest) -> Environment:
    """Import triton and torch and look. Never raises for something that is missing or broken: that is the answer."""
    facts: dict[str, object] = {"python": platform.python_version(), "executable": sys.executable}
    facts |= _triton(request)
    facts |= _torch()
    try:
        import numpy

        facts["numpy"] = str(numpy.__version__)
    except Exception:  # broken binary builds raise more than ImportError
        facts["numpy"] = ""
    return Environment(**facts)  # pyright: ignore[reportArgumentType]


def _triton(request: EnvironmentRequest) -> dict[str, object]:
    try:
        import triton
        import triton._C.libtriton as library
    except Exception as error:
        return {"triton_problem": _line(error)}
    facts: dict[str, object] = {"triton": str(triton.__version__)}
    try:
        # Wheels built with LLVM_DEBUG contain the passes' messages; level 4 reads them.
        facts["debug_channel"] = b"Considering op: " in Path(str(library.__file__)).read_bytes()
    except OSError:
        facts["debug_channel"] = False
    if request.target.startswith("cuda:"):
        facts |= _ptxas(request.target)
    return facts


def _ptxas(target: str) -> dict[str, object]:
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        tool = get_ptxas(int(target.split(":")[1]))
        said = subprocess.run([tool.path, "--version"], capture_output=True, text=True, timeout=20)
    except Exception as error:
        return {"ptxas_problem": _line(error)}
    found = re.search(r"V(\d+(\.\d+)+)", said.stdout)
    if not found:
        return {"ptxas_path": tool.path, "ptxas_problem": f"{tool.path} does not tell its version"}
    return {"ptxas": found[1], "ptxas_path": tool.path}


def _torch() -> dict[str, object]:
    try:
        import torch
    except Exception as error:
        return {"torch_problem": _line(error), "device_problem": "torch is needed to reach a device"}
    facts: dict[str, object] = {"torch": str(torch.__version__)}  # a subclass of str
    try:
        if torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability(0)
            facts |= {"device": torch.cuda.get_device_name(0), "capability": f"{major}.{minor}"}
        elif torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
            facts["device_problem"] = "this torch is a CPU build"
        elif not Path("/dev/nvidiactl").exists() and torch.version.cuda is not None:
            facts["device_problem"] = "no NVIDIA driver is loaded"
        else:
            facts["device_problem"] = "torch sees no device"
    except Exception as error:
        facts["device_problem"] = _line(error)
    return facts


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def triage(found: Environment, home: Path) -> tuple[Item, ...]:
    """The facts with a judgement and a remedy each, and the state of the cache folder `home`."""
    items = [Item(name="python", state="ok", detail=f"{found.python} ({found.executable})")]
    install = "install it into the interpreter that runs leadline"
    if found.triton:
        items.append(Item(name="triton", state="ok", detail=found.triton))
    else:
        items.append(Item(name="triton", state="missing", detail=found.triton_problem, remedy=install))
    if found.torch:
        items.append(Item(name="torch", state="ok", detail=found.torch))
    else:
        items.append(Item(name="torch", state="missing", detail=found.torch_problem, remedy=install))
    items.append(_numpy(found))
    if found.ptxas:
        items.append(Item(name="ptxas", state="ok", detail=f"{found.ptxas} ({found.ptxas_path})"))
    else:
        remedy = "set TRITON_PTXAS_PATH to a ptxas that knows the target"
        items.append(Item(name="ptxas", state="missing", detail=found.ptxas_problem or "needs triton", remedy=remedy))
    if found.debug_channel:
        items.append(Item(name="debug channel", state="ok", detail="the passes' own messages can be read"))
    else:
        detail = "needs triton" if found.debug_channel is None else "this triton was built without it"
        remedy = "use a wheel from the package index; level 4 then works from pass steps and probes alone"
        items.append(Item(name="debug channel", state="warning", detail=detail, remedy=remedy))
    if found.device:
        capability = f" (compute capability {found.capability})" if found.capability else ""
        items.append(Item(name="device", state="ok", detail=found.device + capability))
    else:
        remedy = "nothing is timed here; run on a machine with a device"
        items.append(Item(name="device", state="warning", detail=found.device_problem or "none", remedy=remedy))
    items.append(cache_item(home))
    return tuple(items)


def _numpy(found: Environment) -> Item:
    if not found.numpy:
        return Item(name="numpy", state="missing", detail="cannot be imported", remedy="install numpy")
    # The interpreter of triton 3.6 fails on numpy 2.4 (2.2 is known to work, 2.3 is untested): semantics could not be checked.
    if _pair(found.numpy) >= (2, 3) and (0, 0) < _pair(found.triton) <= (3, 6):
        detail = f"{found.numpy}; the interpreter of triton {found.triton} is known to work up to numpy 2.2"
        return Item(name="numpy", state="warning", detail=detail, remedy="install 'numpy<2.3'")
    return Item(name="numpy", state="ok", detail=found.numpy)


def _pair(version: str) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def cache_item(home: Path) -> Item:
    """Size of the cache folder, and whether runs can be written to it (or to the folder it would be made in)."""
    size = 0
    for folder, _, names in os.walk(home):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    nearest = home
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        remedy = "make it writable or set LEADLINE_HOME to a folder that is"
        return Item(name="cache", state="missing", detail=f"{home} is not writable", remedy=remedy)
    return Item(name="cache", state="ok", detail=f"{home} ({size / 1e6:.1f} MB)")
