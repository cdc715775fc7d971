"""One launch compiled ahead of time: stages, counters, resources. Runs in the compile worker."""

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from leadline.backends.base import CompileRequest
from leadline.backends.nvidia import machine
from leadline.backends.nvidia.call_lines import at_call_starts
from leadline.backends.nvidia.lowering import CapturedDescriptor, Lowering, listening
from leadline.backends.nvidia.signature import COPIES, LOADS, STORES, IrCounts
from leadline.backends.nvidia.source import Source, describe, text_of
from leadline.errors import KernelError, LeadlineError
from leadline.ir.parse import parse
from leadline.model import Compiled, IrOp, Launch, MachineLine, Resources


def compile_launch(request: CompileRequest) -> Compiled:
    """Compile `request.launch` up to `request.stage`. A kernel the compiler rejects is a result with `error`, not an exception.

    Raises `UsageError` for an unknown target or a grant about an argument that does not exist.
    """
    import triton

    started = time.perf_counter()
    source = describe(request.launch, request.grants)
    report = _Report(request, source)
    lowering = None
    with listening(()), CapturedDescriptor() as captured, _quiet():
        try:
            lowering = Lowering(source, request.target)
            report.run(lowering)
        except LeadlineError as error:
            if not isinstance(error, KernelError):
                raise
            report.error = str(error)
        except Exception as error:  # whatever a compiler raises about the user's kernel is the answer, never our crash
            report.error, report.error_line = describe_error(error, captured.read(), source.file, definition_line(source, request.launch))
    compiled = Compiled(
        launch=request.launch.index,
        target=request.target,
        triton=triton.__version__,
        kernel=request.launch.kernel,
        options=_options(lowering, source),
        resources=report.resources,
        counters=dict(report.total),
        line_counters={line: dict(counts) for line, counts in sorted(report.lines.items()) if counts},
        operations=tuple(report.with_width(op) for op in report.operations),
        machine=report.machine,
        stages=report.stages,
        seconds=time.perf_counter() - started,
        stopped_at=report.reached,
        error=report.error,
        error_line=report.error_line,
    )
    return at_call_starts(compiled, text_of(source), source.file)


class _Report:
    def __init__(self, request: CompileRequest, source: Source) -> None:
        self.request, self.shown_file = request, source.file
        self.file = source.file  # as debug locations spell it
        self.total: Counter[str] = Counter()
        self.lines: dict[int, Counter[str]] = {}
        self.operations: tuple[IrOp, ...] = ()
        self.machine: tuple[MachineLine, ...] = ()
        self.resources = Resources()
        self.stages: dict[str, str] = {}
        self.reached, self.error, self.error_line = "", "", 0

    def run(self, lowering: Lowering) -> None:
        self.file = lowering.file
        # ttir is printed before the ttgir passes change the module in place.
        ttir = IrCounts("ttir", parse(self.keep("ttir", lowering.run_to("ttir"))), self.file, self.shown_file)
        ttgir = IrCounts("ttgir", parse(self.keep("ttgir", lowering.run_to("ttgir"))), self.file, self.shown_file)
        for counts in (ttir, ttgir):
            self.add(counts.total, counts.lines)
        self.operations = ttir.operations() + ttgir.operations()
        self.reached = "ttgir"
        if self.request.stage == "ttgir":
            return
        stage = lowering.assembly_stage
        self.keep("llir", lowering.run_to("llir"))
        text = self.keep(stage, lowering.run_to(stage))
        smem = int(lowering.metadata.get("shared") or 0)
        self.resources = Resources(smem=smem)
        self.total["res.smem"] = smem
        lines = (ttgir.scalar_lines, ttgir.tile_lines)
        self.reached = "ptx" if stage == "ptx" else "amdgcn"
        if stage != "ptx":
            self.amd(text, smem, lines)
            return
        text = machine.attribute_to_kernel(text, self.file)
        ptx = machine.count("ptx", machine.read_ptx(text, self.file), *lines)
        if self.request.stage == "ptx":
            self.add(*ptx)
            return
        # From here widths and barriers are those of the machine code; of the PTX only mnemonics are kept.
        self.add(*_only(ptx, "ptx."))
        code = lowering.assemble(text)
        self.resources = machine.resources(code.log, smem)
        instructions = machine.read_sass(self.keep("sass", lowering.disassemble(code.cubin)), self.file)
        self.add(*machine.count("sass", instructions, *lines))
        self.machine = machine.machine_lines(instructions, self.file, self.shown_file)
        for name in self.resources.__struct_fields__:
            self.total["res." + name] = getattr(self.resources, name)
        self.total["spill_bytes"] = self.resources.spill_store_bytes + self.resources.spill_load_bytes
        self.reached = "sass"

    def amd(self, text: str, smem: int, lines: tuple[set[int], set[int]]) -> None:
        """AMD assembly ends here: registers and spills are printed in it, there is no ptxas."""
        instructions = machine.read_gcn(text, self.file)
        self.add(*machine.count("amdgcn", instructions, *lines))
        self.machine = machine.machine_lines(instructions, self.file, self.shown_file)
        registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
        self.resources = Resources(smem=smem, registers=int(registers[1]) if registers else 0)
        self.total["res.registers"] = self.resources.registers

    def with_width(self, op: IrOp) -> IrOp:
        """The operation with `vector_bits`: the narrowest access its line was compiled to."""
        kind = "store" if op.name in STORES else "load" if op.name in (*LOADS, *COPIES) else ""
        bits = self.lines.get(op.line, {}).get(f"global.{kind}.bits", 0) if op.stage == "ttgir" and op.file == self.shown_file else 0
        return msgspec.structs.replace(op, detail={**op.detail, "vector_bits": str(bits)}) if kind and bits else op

    def add(self, total: Counter[str], lines: dict[int, Counter[str]]) -> None:
        self.total.update(total)
        for line, counts in lines.items():
            if line:
                self.lines.setdefault(line, Counter()).update(counts)

    def keep(self, stage: str, text: str) -> str:
        data = text.encode()
        digest = self.stages[stage] = hashlib.sha256(data).hexdigest()
        path = Path(self.request.store, digest[:2], digest)
        if self.request.store and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(data)
            os.replace(file.name, path)  # readers never see half a blob
        return text


def describe_error(error: BaseException, log: str, file: str, def_line: int) -> tuple[str, int]:
    """(one line, line of `file`) for what the compiler raised.

    `log` is what it wrote to descriptor 2; `def_line` is the line of the kernel's `def`, from which Triton counts.
    """
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None and chain[-1].__cause__ not in chain:
        chain.append(chain[-1].__cause__)
    # The outermost error that names a node is in the kernel itself; inner ones are in functions it calls.
    node = next((n for e in chain if hasattr(n := getattr(e, "node", None), "lineno")), None)
    line = def_line + node.lineno - 1 if node is not None and def_line else 0
    last = chain[-1]
    text = str(getattr(last, "error_message", None) or last or type(last).__name__)
    if not text.strip() or type(last).__name__ not in ("CompilationError", "RuntimeError", "CompileTimeAssertionFailure"):
        text = f"{type(last).__name__}: {text}"
    found = re.search(r"^(.*?):(\d+):\d+: error: (.*)$", log, re.M)
    if found and node is None:
        text = found[3]
        line = int(found[2]) if os.path.basename(found[1]) == os.path.basename(file) else 0
    return " ".join(text.split())[:400], line


def definition_line(source: Source, launch: Launch) -> int:
    """The line of the kernel's `def`, in the edited text when there is one."""
    if source.text is None:
        return launch.kernel_line
    found = re.search(rf"^[ \t]*def {re.escape(launch.kernel)}\b", source.text, re.M)
    return source.text.count("\n", 0, found.start()) + 1 if found else 0


def _options(lowering: Lowering | None, source: Source) -> dict[str, int | float | bool | str | None]:
    names = ("num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "waves_per_eu")
    if lowering is None:
        return {k: v for k, v in source.options.items() if k in names}
    return {name: getattr(lowering.options, name) for name in names if hasattr(lowering.options, name)}


def _only(counted: tuple[Counter[str], dict[int, Counter[str]]], prefix: str) -> tuple[Counter[str], dict[int, Counter[str]]]:
    def kept(counts: Counter[str]) -> Counter[str]:
        return Counter({name: n for name, n in counts.items() if name.startswith(prefix)})

    return kept(counted[0]), {line: kept(counts) for line, counts in counted[1].items()}


@contextlib.contextmanager
def _quiet():
    # ptxas failures and some warnings are printed by Triton's Python; they are in the error already.
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        yield
