"""What a compiler back-end offers, and which one serves a target. Imports neither torch nor triton.

The main process selects a back-end here and calls its functions by name in a compile worker
(`Worker.call(backend.functions["compile"], CompileRequest(...), Compiled)`).
"""

import fnmatch
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from leadline.errors import UsageError
from leadline.model import CompilerMessage, Fact, Launch, PassStep, Probe
from leadline.model.base import Record

GROUP = "leadline.backends"


class CompileRequest(Record, frozen=True):
    """Compile `launch` for `target` up to `stage`, with `grants` given to the compiler as if they were known.

    `store`: folder that receives each stage's text as `<sha[:2]>/<sha>`; "" keeps none. `fresh` forbids any reuse of earlier work.
    """

    launch: Launch
    target: str = "cuda:90"
    stage: str = "sass"  # ttgir | ptx | sass
    grants: tuple[Fact, ...] = ()
    store: str = ""
    fresh: bool = False


class ExplainRequest(Record, frozen=True):
    """Run the compiler's passes one at a time and listen to what they say about `launch`."""

    launch: Launch
    target: str = "cuda:90"
    grants: tuple[Fact, ...] = ()


class Explanation(Record, frozen=True):
    """Passes that changed a watched counter, and the passes' own messages. `debug_channel`: the build prints its decisions.

    `passes` is how many passes ran; `seconds` is wall time. `error` is one line when the kernel does not compile.
    """

    steps: tuple[PassStep, ...] = ()
    messages: tuple[CompilerMessage, ...] = ()
    debug_channel: bool = False
    passes: int = 0
    seconds: float = 0.0
    error: str = ""


class ProbeRequest(Record, frozen=True):
    """Test `probe` on `launch` (the launch whose index the probe names).

    `edited` is the launch that the edited wrapper makes, for a probe that grants a `SourceEdit`: an edit may change a tile's size at
    the launch too. Without it the edited kernel gets the arguments of `launch`, by name.
    """

    probe: Probe
    launch: Launch
    edited: Launch | None = None
    target: str = "cuda:90"


class Backend(Protocol):
    """A compiler back-end: plain strings, so that it can be described without importing its compiler.

    `targets` are shell patterns ("cuda:90", "replay:*"). `functions` names (`module:function`) what runs in the worker, under three
    keys: "compile" (CompileRequest -> Compiled), "explain" (ExplainRequest -> Explanation), "probe" (ProbeRequest -> ProbeOutcome).
    """

    name: str
    targets: tuple[str, ...]
    functions: dict[str, str]


def backends() -> dict[str, EntryPoint]:
    """Installed back-ends by name (entry-point group `leadline.backends`)."""
    return {point.name: point for point in entry_points(group=GROUP)}


def select(target: str) -> Backend:
    """The back-end for `target` ("cuda:90", "hip:gfx942", "replay:DIR"). Raises `UsageError` when none serves it."""
    patterns: list[str] = []
    for point in backends().values():
        try:
            backend = cast(Backend, point.load()())
        except ImportError:
            continue  # a plug-in that cannot be imported must not take the others with it
        if any(fnmatch.fnmatchcase(target, pattern) for pattern in backend.targets):
            return backend
        patterns += backend.targets
    raise UsageError(f"unknown target {target!r}", remedy=f"use one of {', '.join(sorted(patterns))}")
