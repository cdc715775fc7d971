"""Lines of calls that are broken over several lines."""

from leadline.backends.nvidia.call_lines import at_call_starts, call_starts, messages_at_call_starts
from leadline.model import Compiled, CompilerMessage, IrOp

TEXT = """\
def kernel(x, y, n):
    a = tl.load(
        x + n, mask=n < 4,
        other=0.0,
    )
    tl.store(
        y + n,
        tl.where(
            a > 0,
            a,
            n,
        ),
        mask=tl.full((4,), 1, tl.int1),
    )
    b = tl.load(x)
"""


def test_every_line_of_a_call_belongs_to_the_innermost_call() -> None:
    assert call_starts(TEXT) == {3: 2, 4: 2, 5: 2, 7: 6, 9: 8, 10: 8, 11: 8, 12: 8, 14: 6}
    assert call_starts("def (") == {}


def test_counters_operations_and_messages_move_together() -> None:
    compiled = Compiled(
        launch=0, target="cuda:90", triton="3.6.0", kernel="kernel",
        line_counters={2: {"global.load.bits": 128, "tt.load": 1}, 4: {"global.load.bits": 8, "tt.load": 2, "mma.version": 3}, 15: {"x": 1}},  # noqa: E501
        operations=(IrOp(stage="ttgir", name="tt.load", line=4, file="k.py"), IrOp(stage="ttgir", name="tt.load", line=4, file="z.py")),
    )  # fmt: skip
    moved = at_call_starts(compiled, TEXT, "k.py")
    assert moved.line_counters == {2: {"global.load.bits": 8, "tt.load": 3, "mma.version": 3}, 15: {"x": 1}}
    assert [o.line for o in moved.operations] == [2, 4]  # the other file's line stays
    assert at_call_starts(compiled, "x = 1\n", "k.py") is compiled
    messages = (CompilerMessage(id="", channel="debug", text="t", line=4), CompilerMessage(id="", channel="debug", text="t", line=15))
    assert [m.line for m in messages_at_call_starts(messages, TEXT, "k.py")] == [2, 15]
