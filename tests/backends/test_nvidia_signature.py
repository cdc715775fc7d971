"""Counters of IR text, and reading counters by name."""

from leadline.backends.nvidia.signature import IrCounts, read, stage_of
from leadline.ir.parse import parse
from leadline.model import Compiled

TEXT = """#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#m = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 8]}>
module attributes {"ttg.num-warps" = 4 : i32, "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @f(%a: !tt.ptr<f32> loc("a"(#loc1)), %n: i32 loc("n"(#loc1))) attributes {noinline = false} {
    %c8 = arith.constant 8 : i32 loc(#loc1)
    %c8_t = tt.splat %c8 : i32 -> tensor<64xi32, #b> loc(#loc1)
    %n_t = tt.splat %n : i32 -> tensor<64xi32, #b> loc(#loc1)
    %p = tt.splat %a : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>, #b> loc(#loc1)
    scf.for %i = %c8 to %n step %c8  : i32 {
      %s = tt.load %a : !tt.ptr<f32> loc(#loc2)
      %t = tt.load %p : tensor<64x!tt.ptr<f32>, #b> loc(#loc3)
      %q = tt.addptr %p, %n_t : tensor<64x!tt.ptr<f32>, #b>, tensor<64xi32, #b> loc(#loc3)
      %u = tt.load %q : tensor<64x!tt.ptr<f32>, #b> loc(#loc3)
      %d = arith.divsi %n_t, %c8_t : tensor<64xi32, #b> loc(#loc3)
      %e = arith.remsi %d, %n_t : tensor<64xi32, #b> loc(#loc3)
      %w = arith.extf %t : tensor<64xf32, #b> to tensor<64xf64, #b> loc(#loc3)
      %v = ttg.convert_layout %t : tensor<64xf32, #b> -> tensor<64xf32, #b> loc(#loc2)
      %o = tt.dot %x, %y, %z, inputPrecision = tf32 : tensor<16x16xf16, #b> * tensor<16x8xf16, #b> -> tensor<16x8xf32, #m> loc(#loc2)
      tt.atomic_rmw fadd, relaxed, gpu, %p, %t : (tensor<64x!tt.ptr<f32>, #b>, tensor<64xf32, #b>) -> tensor<64xf32, #b> loc(#loc3)
    } loc(#loc1)
    tt.return loc(#loc1)
  } loc(#loc1)
} loc(#loc1)
#loc1 = loc("/u/k.py":1:0)
#loc2 = loc("/u/k.py":2:0)
#loc3 = loc("/u/k.py":3:0)
"""


def test_counters_of_one_module() -> None:
    counts = IrCounts("ttgir", parse(TEXT), "/u/k.py")
    total, at2, at3 = counts.total, counts.lines[2], counts.lines[3]
    assert (total["ttgir.load"], total["loop.load"], total["global.load.scalar"]) == (3, 3, 1)
    assert total["loop.load.invariant"] == 2  # %u's pointer is computed in the loop
    assert (total["int_div"], at3["loop.int_div"]) == (1, 1)  # division by a constant is cheap and not counted
    assert (total["fp64"], total["atomic"], at3["loop.atomic"]) == (1, 1, 1)
    assert (total["convert_layout"], total["loop.convert_layout"], at2["convert_layout.bytes"]) == (1, 1, 256)
    assert (total["mma.version"], total["dot"], total["loop.dot"]) == (2, 1, 1)
    assert at3["threads.replicated"] == 2
    assert (counts.scalar_lines, counts.tile_lines) == ({2}, {3})


def test_operations_say_what_their_types_say() -> None:
    operations = IrCounts("ttgir", parse(TEXT), "/u/k.py", "k.py").operations()
    load = next(op for op in operations if op.name == "tt.load" and op.line == 3)
    assert (load.file, load.loop_depth) == ("k.py", 1)
    assert load.detail == {
        "type": "tensor<64x!tt.ptr<f32>, #b>", "shape": "64", "dtype": "f32", "layout": "blocked", "size_per_thread": "1", "order": "0",
        "warps": "4", "in_loop": "1", "masked": "false",
    }  # fmt: skip
    assert next(op for op in operations if op.name == "tt.dot").detail["version"] == "2"
    assert not any(op.name == "tt.splat" for op in operations)


def test_reading_by_name_prefix_and_dialect() -> None:
    counters = {"sass.LDG.E.128": 2, "sass.LDG.E.U16": 3, "ttgir.load": 4, "loop.load": 1}
    compiled = Compiled(launch=0, target="cuda:90", triton="", kernel="k", counters=counters, line_counters={7: {"ttgir.load": 1}})
    assert read(compiled, "sass.LDG*") == 5
    assert read(compiled, "ttgir.tt.load") == read(compiled, "ttgir.tt_load") == 4
    assert read(compiled, "loop.tt.load") == 1
    assert read(compiled, "ttgir.load", 7) == 1
    assert read(compiled, "ttgir.load", 8) == 0
    assert read(compiled, "spill_bytes") == 0


def test_a_probe_compiles_as_far_as_its_signature_needs() -> None:
    assert stage_of("async_copy", "ttgir") == "ttgir"
    assert stage_of("global.load.bits", "ttgir") == "ptx"
    assert stage_of("spill_bytes", "ttgir") == "sass"
    assert stage_of("loop.instructions", "ptx") == "sass"
    assert stage_of("async_copy", "sass") == "sass"
    assert stage_of("atomic", "ttgir") == "ttgir"
    assert stage_of("global.load.scalar", "ttgir") == "ttgir"
    assert stage_of("mma.version", "") == "ttgir"
