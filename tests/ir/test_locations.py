"""Location texts -> frames."""

from leadline.ir.locations import Locations, line_in, same_file

TABLE = Locations.of_text(
    """#loc1 = loc(unknown)
#loc2 = loc("/u/k.py":12:25)
#loc3 = loc("offs"(#loc2))
#loc4 = loc("/lib/standard.py":50:30)
#loc5 = loc("/u/k.py":7:26)
#loc6 = loc(callsite(#loc4 at #loc7))
#loc7 = loc(callsite(#loc5 at #loc3))
#loc8 = loc(fused<"x">[#loc1, #loc2])
#loc9 = loc(callsite(#loc1 at #loc2))
"""
)


def test_chains_are_innermost_first() -> None:
    assert [(f.file, f.line) for f in TABLE.frames("#loc6")] == [("/lib/standard.py", 50), ("/u/k.py", 7), ("/u/k.py", 12)]
    assert TABLE.frames("loc(callsite(#loc4 at #loc2))")[1].line == 12


def test_the_line_is_that_of_the_nearest_caller_in_the_file() -> None:
    assert TABLE.line_in("#loc6", "/u/k.py") == 7
    assert TABLE.line_in("#loc9", "/u/k.py") == 12
    assert TABLE.line_in("#loc4", "/u/k.py") == 0
    assert line_in((), "/u/k.py") == 0


def test_names_fused_and_unknown() -> None:
    assert TABLE.frames("#loc3")[0].column == 25
    assert TABLE.frames('"x"("/u/k.py":3:1)')[0].line == 3
    assert TABLE.line_in("#loc8", "/u/k.py") == 12
    assert TABLE.frames("#loc1") == ()
    assert TABLE.frames("#loc99") == ()


def test_files_are_compared_by_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert same_file("k.py", str(tmp_path / "k.py"))
    assert not same_file("/a/k.py", "/b/k.py")
