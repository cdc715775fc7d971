"""The three functions, called by name in a compile worker as the pipeline calls them."""

import pytest
from compiler_launches import copy

from leadline.backends.base import CompileRequest, ExplainRequest, Explanation, ProbeRequest, select
from leadline.errors import UsageError
from leadline.execution.worker import Worker
from leadline.model import Compiled, Divisible, Probe, ProbeOutcome

pytestmark = pytest.mark.triton


def test_compile_explain_and_probe_in_a_worker() -> None:
    pytest.importorskip("triton")
    functions = select("cuda:90").functions
    probe = Probe(claim="", grants=(Divisible(argument="n"),), signature="global.load.bits", expect="increase")
    with Worker("compile") as worker:
        compiled = worker.call(functions["compile"], CompileRequest(launch=copy("x_ptr o_ptr"), stage="ptx"), Compiled)
        assert compiled.counters["global.load.bits"] == 16
        explained = worker.call(functions["explain"], ExplainRequest(launch=copy("x_ptr o_ptr")), Explanation)
        assert explained.passes > 40
        outcome = worker.call(functions["probe"], ProbeRequest(launch=copy("x_ptr o_ptr"), probe=probe), ProbeOutcome)
        assert (outcome.before, outcome.after, outcome.minimal) == (16, 128, ("n % 16 == 0",))
        with pytest.raises(UsageError) as error:
            worker.call(functions["compile"], CompileRequest(launch=copy(), target="cuda:1"), Compiled)
        assert error.value.what == "unknown target 'cuda:1'"
