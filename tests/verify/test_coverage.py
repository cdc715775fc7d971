"""What is stored of each output: shares from samples, and when a shortfall is no reason to reject."""

from typing import Any

import pytest

from leadline.errors import KernelError, WorkerDied
from leadline.model import AccessSample, Argument, HostOp, KernelCase, Launch, LaunchSample, TensorSpec, Trace
from leadline.verify.coverage import Side, Unseen, coverage, look, outputs, share

WHOLE = "where the original writes all of it (sampled)"
CASE = KernelCase(path="/k.py", source="", kernels=("k",))


def spec(storage: int = 1, origin: str = "empty", elements: int = 100) -> TensorSpec:
    return TensorSpec(dtype="fp32", shape=(elements,), strides=(1,), storage=storage, storage_bytes=4 * elements, origin=origin)


def side(
    unique: float, *, origin: str = "empty", access: dict[str, Any] | None = None, sample: dict[str, Any] | None = None, repeats: int = 1,
    **trace: Any,
) -> Side:  # fmt: skip
    """One launch that stores `unique` bytes of an output of 400."""
    output = spec(origin=origin)
    launch = Launch(
        index=0, kernel="k", kernel_file="/k.py", kernel_line=1, kernel_module="", call_file="/k.py", call_line=9, grid=(1, 1, 1),
        arguments=(Argument(name="y", type="*fp32", tensor=output),), repeats=repeats,
    )  # fmt: skip
    given = {"line": 3, "kind": "store", "pointer": "y", "unique": unique, "executions": 1.0} | (access or {})
    samples = (LaunchSample(**({"launch": 0, "programs": 1, "sampled": 1, "accesses": (AccessSample(**given),)} | (sample or {}))),)
    known: dict[str, Any] = {"case": "big", "launches": (launch,), "outputs": (output,)}
    return Side(Trace(**(known | trace)), (launch,), samples)


@pytest.mark.parametrize(
    ("candidate", "passed", "detail"),
    [
        (side(400), True, "1 outputs stored as wholly as the original stores them (sampled)"),
        (side(364), True, "1 outputs stored as wholly as the original stores them (sampled)"),
        (side(200, repeats=2), True, "1 outputs stored as wholly as the original stores them (sampled)"),
        (side(204), False, f"writes only 51 % of output 0 in case big, {WHOLE}"),
        (side(0), False, f"writes nothing of output 0 in case big, {WHOLE}"),
        (side(204, access={"kind": "load"}), False, f"writes nothing of output 0 in case big, {WHOLE}"),
        (side(204, access={"indirect": True}), None, "output 0: where line 3 of k stores depends on data"),
        (side(204, access={"executions": 0.5}), None, "output 0: not every program stores at line 3 of k"),
        (side(204, access={"dead": 0.4}), None, "output 0: not every program stores at line 3 of k"),
        (side(204, access={"pointer": ""}), None, "output 0: line 3 of k stores to memory that is not known"),
        (side(204, sample={"note": "out of time"}), None, "output 0: k was sampled in part: out of time"),
        (side(204, assumptions=("n = 4",)), None, "output 0: values that the wrapper reads were assumed"),
        (side(204, origin="input:x"), None, "output 0: it is an input, which holds values already"),
        (side(204, host_ops=(HostOp(name="zeros", line=7, writes=(1,)),)), None, "output 0: zeros (line 7) writes it as well"),
        (side(204, host_ops=(HostOp(name="empty", line=7, writes=(1,)),)), False,
         f"writes only 51 % of output 0 in case big, {WHOLE}"),
        (side(400, outputs=()), True, "1 outputs stored as wholly as the original stores them (sampled)"),
        (side(400, outputs=(spec(), spec(2))), None, "2 outputs where the original has 1"),
    ],
)  # fmt: skip
def test_a_candidate_against_an_original_that_stores_all(candidate: Side, passed: bool | None, detail: str) -> None:
    if not candidate.trace.outputs:
        candidate = side(400, outputs=(), inputs={"y": spec()})
    check = coverage(side(400), candidate, "big")
    assert (check.name, check.case, check.passed, check.detail) == ("coverage", "big", passed, detail)


def test_an_original_that_does_not_store_all_is_no_yardstick() -> None:
    assert coverage(side(200), side(100), "big").detail == "the original stores 50 % of output 0"
    assert coverage(side(400, access={"indirect": True}), side(100), "big").detail == "where line 3 of k stores depends on data"
    assert coverage(side(400, outputs=()), side(100), "big").detail == "no output that the original's kernels store was found"


def test_outputs_of_a_wrapper_that_returns_nothing() -> None:
    found = side(400, outputs=(), inputs={"a": spec(5), "y": spec(1)})
    assert outputs(found) == (spec(1),)
    assert share(found, spec(1)) == (1.0, "")
    assert share(found, spec(5)) == (0.0, "")
    assert share(found, spec(1, elements=0)) == (1.0, "")


class Answers:
    """A worker that answers what it is told, an exception by raising it."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, []

    def call(self, function: str, request: Any, result: Any, *, timeout: float = 120) -> Any:
        self.asked.append((function, request))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_looking_at_one_side() -> None:
    known = side(400)
    compiler, interpreter = Answers(known.trace), Answers(known.samples)
    assert look(CASE, "text", "big", "cuda:90", compiler, interpreter, 5) == known
    assert [name for name, _ in compiler.asked + interpreter.asked] == ["leadline.ingest.dry:trace", "leadline.collect.sampling:sample"]
    assert (compiler.asked[0][1].text, interpreter.asked[0][1].text) == ("text", "text")


@pytest.mark.parametrize(
    ("traced", "sampled", "reason", "full_size"),
    [
        (side(400, fallback="small case tiny stands in").trace, (), "small case tiny stands in", False),
        (KernelError("no", where="/k.py:3"), (), "/k.py:3: no", True),
        (side(400).trace, WorkerDied("worker interpret died"), "worker interpret died", True),
    ],
)
def test_a_side_that_cannot_be_looked_at(traced: Any, sampled: Any, reason: str, full_size: bool) -> None:
    with pytest.raises(Unseen) as caught:
        look(CASE, "text", "big", "cuda:90", Answers(traced), Answers(sampled), 5)
    assert (str(caught.value), caught.value.full_size) == (reason, full_size)
