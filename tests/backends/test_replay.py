"""The replay back-end gives what the compiler gave, through the same three functions."""

import importlib
from collections.abc import Callable

import msgspec
import pytest
from compiler_launches import copy

from leadline.backends import replay
from leadline.backends.base import CompileRequest, ExplainRequest, ProbeRequest, select
from leadline.errors import EvidenceError, UsageError
from leadline.model import Compiled, Divisible, Probe


def function(target: str, what: str) -> Callable:
    module, _, name = select(target).functions[what].partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.triton
def test_replay_stands_in_for_the_compiler(tmp_path) -> None:
    pytest.importorskip("triton")
    probe = Probe(claim="", grants=(Divisible(argument="n"),), signature="global.load.bits", expect="increase")
    requests = {
        "compile": CompileRequest(launch=copy("x_ptr o_ptr"), stage="ptx"),
        "explain": ExplainRequest(launch=copy("x_ptr o_ptr")),
        "probe": ProbeRequest(launch=copy("x_ptr o_ptr"), probe=probe),
    }
    recorded, played = f"record:{tmp_path}@cuda:90", f"replay:{tmp_path}"
    for what, request in requests.items():
        answer = function(recorded, what)(msgspec.structs.replace(request, target=recorded))
        assert answer == function(played, what)(msgspec.structs.replace(request, target=played))
    assert len(list(tmp_path.iterdir())) == 3


def test_recordings_do_not_depend_on_where_the_files_are(tmp_path) -> None:
    moved = msgspec.structs.replace(copy(), kernel_file="/elsewhere/lost_optimisations.py", call_file="/elsewhere/lost_optimisations.py")
    answer = Compiled(launch=0, target="cuda:90", triton="3.6.0", kernel="copy", line_counters={3: {"dot": 1}})
    replay.record(str(tmp_path), "compile", CompileRequest(launch=copy()), answer)
    assert replay.compile_launch(CompileRequest(launch=moved, target=f"replay:{tmp_path}", store="/blobs")) == answer


def test_a_missing_recording_is_named(tmp_path) -> None:
    request = ExplainRequest(launch=copy(), target=f"replay:{tmp_path}")
    path = replay.recording(str(tmp_path), "explain", request)
    with pytest.raises(EvidenceError) as error:
        replay.explain(request)
    assert str(error.value) == f"{path}: no recording of explain for copy (launch 0); record it with target record:{tmp_path}@cuda:90"
    assert error.value.status == 4


def test_a_damaged_recording(tmp_path) -> None:
    request = CompileRequest(launch=copy(), target=f"replay:{tmp_path}")
    replay.recording(str(tmp_path), "compile", request).write_text("{}")
    with pytest.raises(EvidenceError) as error:
        replay.compile_launch(request)
    assert "the recording cannot be read" in str(error.value)


def test_another_target_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        replay.run_probe(ProbeRequest(launch=copy(), probe=Probe(claim="", grants=(), signature="dot")))
    assert str(error.value) == "unknown target 'cuda:90'; use replay:DIR or record:DIR@TARGET"
