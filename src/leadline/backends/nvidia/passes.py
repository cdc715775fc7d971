"""Which pass did what to a launch, and what the passes say about their decisions. Runs in the compile worker."""

import os
import time
from collections import Counter

from leadline.backends.base import ExplainRequest, Explanation
from leadline.backends.nvidia.call_lines import messages_at_call_starts
from leadline.backends.nvidia.compile import definition_line, describe_error
from leadline.backends.nvidia.lowering import STEPPED, CapturedDescriptor, Lowering, Pass, listening, run_passes
from leadline.backends.nvidia.messages import DEBUG_TYPES, LAYOUT_TYPE, Found, OperationLines, considered_dots, read_debug, read_diagnostics
from leadline.backends.nvidia.source import Source, describe, text_of
from leadline.errors import KernelError
from leadline.model import CompilerMessage, PassStep
from leadline.model.base import content_hash

WATCHED = {
    "load": ("tt.load",), "store": ("tt.store",), "convert_layout": ("ttg.convert_layout",),
    "async_copy": ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local"),
    "dot": ("tt.dot",), "warp_group_dot": ("ttng.warp_group_dot",), "tcgen05_mma": ("ttng.tc_gen5_mma",),
    "local_alloc": ("ttg.local_alloc",), "local_load": ("ttg.local_load",), "local_store": ("ttg.local_store",),
    "for": ("scf.for",), "while": ("scf.while",), "if": ("scf.if",), "reduce": ("tt.reduce",), "reshape": ("tt.reshape",),
    "atomic": ("tt.atomic_rmw", "tt.atomic_cas"), "warp_specialize": ("ttg.warp_specialize",), "trans": ("tt.trans", "ttg.memdesc_trans"),
    "int_div": ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui"), "barrier": ("gpu.barrier", "ttg.barrier"),
}  # fmt: skip
_COUNTER_OF = {name: counter for counter, names in WATCHED.items() for name in names}


def explain(request: ExplainRequest) -> Explanation:
    """Step the whole IR pipeline of `request.launch`. A kernel that does not compile gives an Explanation with `error`.

    Raises `UsageError` for an unknown target or a grant about an argument that does not exist.
    """
    started = time.perf_counter()
    source = describe(request.launch, request.grants)
    run = _Run(request, source)
    try:
        run.listen()
    except KernelError as error:
        run.error = str(error)
    except Exception as error:  # whatever a compiler raises about the user's kernel is the answer, never our crash
        line = definition_line(source, request.launch)
        text, at = describe_error(error, "", source.file, line)
        run.error = f"{text} (line {at})" if at else text
    return Explanation(
        steps=tuple(run.steps),
        messages=messages_at_call_starts(run.messages(), text_of(source), source.file),
        debug_channel=run.debug_channel,
        passes=run.passes,
        seconds=time.perf_counter() - started,
        error=run.error,
    )


class _Run:
    def __init__(self, request: ExplainRequest, source: Source) -> None:
        self.request, self.source = request, source
        self.steps: list[PassStep] = []
        self.found: list[tuple[str, Found, int]] = []
        self.debug_channel, self.passes, self.error = False, 0, ""
        self._printed: tuple[str, str] = ("", "")

    def listen(self) -> None:
        """Walk through the pipeline once, with the debug channel on for the passes that are worth hearing."""
        with listening(()), CapturedDescriptor():
            lowering = Lowering(self.source, self.request.target)
        counts = _count(lowering.module)

        def before(stage: str, name: str, last: bool) -> None:
            # The layout pass prints 0.4 MB for a matrix product, and only what its last run keeps is of interest.
            noisy = last and name.replace("_", "-") in LAYOUT_TYPE and counts["convert_layout"] > 0
            os.environ["TRITON_LLVM_DEBUG_ONLY"] = ",".join((*DEBUG_TYPES, LAYOUT_TYPE) if noisy else DEBUG_TYPES)
            self._print(lowering, stage)

        with listening(DEBUG_TYPES):
            for step in run_passes(lowering, STEPPED, before):
                after = _count(lowering.module) if step.stage != STEPPED[2] else counts
                self.passes += 1
                if after != counts:
                    self.steps.append(self._step(step, counts, after))
                self._read(step, lowering)
                counts = after
                if step.stage == STEPPED[2] and "llvmir" in step.name:
                    break  # what follows is LLVM's own: it neither prints nor knows source operations

    def _print(self, lowering: Lowering, stage: str) -> None:
        self._printed = (lowering.module.str_nodebug(), str(lowering.module)) if stage == STEPPED[1] else ("", "")

    def _read(self, step: Pass, lowering: Lowering) -> None:
        if not step.log:
            return
        file = lowering.file
        for found in read_diagnostics(step.log, file):
            self.found.append((step.name, found, found.line))
        said = read_debug(step.log)
        self.debug_channel = self.debug_channel or bool(said)
        if not said:
            return
        before = OperationLines(*self._printed, file)
        later = OperationLines(lowering.module.str_nodebug(), str(lowering.module), file)
        for found in said:
            op = found.operation
            kept = (before.converted(op) or later.converted(op)) if found.kind.startswith("remat") else 0
            if found.position >= 0:  # the dots were renumbered inside the pass, but not reordered
                kept = before.at("ttng.warp_group_dot", found.position, len(considered_dots(step.log)))
            line = kept or before.exact(op) or later.exact(op) or before.by_name(op) or later.by_name(op)
            self.found.append((step.name, found, line))

    def _step(self, step: Pass, before: Counter[str], after: Counter[str]) -> PassStep:
        changed = sorted(name for name in {*before, *after} if before[name] != after[name])
        launch = self.request.launch.index
        return PassStep(
            id=f"step:{launch}:{len(self.steps)}:{step.name}",
            pass_name=step.name,
            stage=step.stage,
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
            seconds=step.seconds,
            launch=launch,
        )

    def messages(self) -> list[CompilerMessage]:
        """Deduplicated by kind, line and text, in order. Refused rematerialisations of unknown origin help nobody and are dropped."""
        out: dict[tuple[str, int, str], CompilerMessage] = {}
        superseded = {line for _, found, line in self.found if found.kind == "load_too_narrow_to_pipeline"}
        for name, found, line in self.found:
            text = found.text
            if (found.kind == "load_considered" and line in superseded) or (found.kind.startswith("remat") and not line):
                continue
            key = (found.kind or text, line, "" if found.kind.startswith("remat") else text)
            if key in out:
                continue
            launch = self.request.launch.index
            out[key] = CompilerMessage(
                id=f"message:{launch}:{content_hash(list(key), 10)}",
                channel=found.channel,
                text=text,
                kind=found.kind,
                pass_name=name,
                file=self.source.file if line else "",
                line=line,
                launch=launch,
            )
        return list(out.values())


def _count(module: object) -> Counter[str]:
    counts: Counter[str] = Counter()

    def visit(operation: object) -> None:
        counter = _COUNTER_OF.get(operation.get_name())  # pyright: ignore[reportAttributeAccessIssue]
        if counter:
            counts[counter] += 1

    module.walk(visit)  # pyright: ignore[reportAttributeAccessIssue]
    return counts
