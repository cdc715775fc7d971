"""HST101 host-sync."""

import ast
from collections.abc import Iterable

from leadline.model import HostCall, Hypothesis
from leadline.rules.base import Example, Rule, View, seen
from leadline.rules.host.call_time import SYNC_US, UPLOAD_US, call_us

UPLOADS = ("torch.tensor(", "torch.as_tensor(", "torch.from_numpy(", "torch.IntTensor(", "torch.LongTensor(")
FACTORIES = ("empty", "zeros", "ones", "full", "new_empty", "new_zeros", "new_full", "new_ones")
READS = (".item()", ".tolist()", ".cpu()", ".numpy()", "synchronize()")


class HostSync(Rule):
    """The launch path reads device data on the host, or builds device tensors from Python lists on every call.

    What it finds
        `.item()`, `.tolist()`, `.cpu()`, `bool(tensor)` and their kin anywhere between the wrapper's entry and its return: in the
        wrapper, in a grid function, in a helper of the same file; lists turned into tensors per call.
    Why it is slow
        The host waits until the device has drained, copies, and only then prepares the launch: 15 us and more per read, with the
        device idle. Python loops over the values add to it.
    How it is proved
        The wrapper is run without a device; every operation that needs a value of a device tensor is recorded with its line.
    Rewrite and its safety
        None is generated: where the value goes must be re-derived (compute tile maps on the device, launch an upper bound of programs
        that return early, pass sizes the caller already has on the host). An output whose size depends on data needs its one read.
    References
        PyTorch tuning guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    code, slug, cause, family = "HST101", "host-sync", "host_sync", "host"
    targets = ("cuda", "hip", "ascend")

    def suspect(self, view: View) -> Iterable[Hypothesis]:
        reads = view.trace.values_read if view.trace else ()
        calls = view.source.wrapper.calls if view.source.wrapper else ()
        waits = [c for c in calls if c.kind == "sync" or any(c.text.endswith(r) for r in READS)]
        uploads = [c for c in calls if any(u in c.text for u in UPLOADS) and _to_device(c)]
        if not reads and not waits:
            if uploads and view.trace:
                yield self._uploads(view, uploads)
            return
        first = reads[0].line if reads else waits[0].line
        count = max(len(reads), len(waits), 1)
        work = max(call_us(view), 3.0)
        loops = any(c.loop for c in waits)
        low = (work + SYNC_US[0] * min(count, 20) + UPLOAD_US[0] * len(uploads)) / work
        high = (work + SYNC_US[1] * min(count, 20) + UPLOAD_US[1] * len(uploads)) / work
        where = ", ".join(sorted({f"{r.name} in line {r.line}" for r in reads}) or sorted({f"line {c.line}" for c in waits}))
        facts = [seen(f"the launch path reads device data on the host: {r.name}", view.source.path, r.line) for r in reads[:4]]
        facts += [seen(f"`{c.text}` waits for the device", view.source.path, c.line) for c in waits[:4]]
        facts += [seen(f"`{c.text}` uploads a host list on every call", view.source.path, c.line) for c in uploads[:2]]
        yield self.hypothesis(
            view,
            None,
            line=waits[0].line if waits and not reads else first,
            key="host-sync",
            claim=f"each call reads device data on the host ({where}): the device drains and idles while Python prepares the launch"
            + (", once per iteration of a Python loop" if loops else ""),
            low=low if reads else 1 + (low - 1) / 2,
            high=high,
            facts=facts,
            grade="observed" if reads else "suspected",
            sufficient_level=2,
            prediction=f"without the {count} host read(s) a call costs its device time, about {work:.0f} us",
            notes=("an output whose size depends on data needs one read",) if _sizes_an_output(view, first) else (),
        )

    def _uploads(self, view: View, uploads: list[HostCall]) -> Hypothesis:
        work = max(call_us(view), 3.0)
        low, high = ((work + us * len(uploads)) / work for us in UPLOAD_US)
        return self.hypothesis(
            view,
            None,
            line=uploads[0].line,
            key="upload",
            low=1 + (low - 1) / 2,
            high=high,
            sufficient_level=2,
            claim=f"each call makes {len(uploads)} device tensor(s) from host lists: a blocking copy before the launch",
            facts=[seen(f"`{c.text}` uploads a host list on every call", view.source.path, c.line) for c in uploads[:4]],
        )


def _sizes_an_output(view: View, line: int) -> bool:
    """Whether a name assigned at `line` sizes a tensor that the wrapper makes and returns (as far as its source shows)."""
    try:
        tree = ast.parse(view.text(view.source.path))
    except SyntaxError:
        return False
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.lineno <= line <= (n.end_lineno or 0)):
        sizes: set[str] = set()
        made: set[str] = set()
        for node in sorted((n for n in ast.walk(function) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
            names = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            read = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            factory = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).rsplit(".", 1)[-1] in FACTORIES
            if factory and read & sizes:
                made |= names
            elif not factory and (node.lineno <= line <= (node.end_lineno or 0) or read & sizes):
                sizes |= names
        returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        if made & {n.id for value in returned for n in ast.walk(value) if isinstance(n, ast.Name)}:
            return True
    return False


def _to_device(call: HostCall) -> bool:
    return "device" in call.text or ".cuda" in call.text or call.kind == "copy"


# -- examples ---------------------------------------------------------------------------------------------------------

BEFORE = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    factor = 1.0 / x.abs().max().item()  # waits for the device
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), factor, BLOCK=1024)
    return y


def reference(x):
    return x / x.abs().max()


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

CLEAN = """\
import torch
import triton
import triton.language as tl

CASES = {"n4m": dict(n=1 << 22)}
SMALL = {"tiny": dict(n=64), "odd": dict(n=77)}


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * factor, mask=i < n)


def launch(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 0.5, BLOCK=1024)
    return y


def reference(x):
    return x * 0.5


def make_inputs(*, device, seed, n):
    torch.manual_seed(seed)
    return dict(x=torch.randn(n, device=device))
"""

HostSync.examples = (
    Example(title="the largest value is read on the host", before=BEFORE, line=18, grade="observed"),
    Example(title="the factor comes from the caller", before=CLEAN),
)
