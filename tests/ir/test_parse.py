"""MLIR text -> operations."""

import time

from leadline.ir.parse import parse

TEXT = """#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
#loc = loc("/u/k.py":3:0)
#loc1 = loc("acc"(#loc2))
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32} {
  tt.func public @f(%a: !tt.ptr<f16> {tt.divisibility = 16 : i32} loc("a"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32 loc(#loc)
    %p = tt.splat %a : !tt.ptr<f16> -> tensor<64x!tt.ptr<f16>, #blocked> loc(#loc2)
    %x:2 = scf.for %i = %c0 to %n step %c0 iter_args(%q = %p, %r = %c0) -> (tensor<64x!tt.ptr<f16>, #blocked>, i32)  : i32 {
      %t = ttg.async_copy_global_to_local %q, %s mask %m other %o {contiguity = 8 : i32} : POINTERS -> <64xf16, #shared, #smem> loc(#loc2)
      %v = tt.load %q : tensor<64x!tt.ptr<f16>, #blocked> loc(#loc2)
      scf.if %b {
        tt.store %q, %v : tensor<64x!tt.ptr<f16>, #blocked> loc(#loc3)
      } loc(#loc3)
      scf.yield %q, %r : tensor<64x!tt.ptr<f16>, #blocked>, i32 loc(#loc1)
    } {tt.num_stages = 3 : i32} loc(#loc1)
    %s2 = "tt.reduce"(%w) <{axis = 1 : i32}> ({
    ^bb0(%a1: f32 loc(unknown), %b1: f32 loc(unknown)):
      tt.reduce.return %a1 : f32 loc(#loc4)
    }) : (tensor<64x8xf32, #blocked>) -> tensor<64xf32, #ttg.slice<{dim = 1, parent = #blocked}>> loc(#loc4)
    %h = arith.extf %v : tensor<64xf16, #blocked> to tensor<64xf32, #blocked> loc(#loc4)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc2 = loc("/u/k.py":5:8)
#loc3 = loc("/u/k.py":7:8)
#loc4 = loc(callsite(#loc5 at #loc3))
#loc5 = loc("/lib/standard.py":290:3)
""".replace("POINTERS", "tensor<64x!tt.ptr<f16>, #blocked>")


def test_operations_types_and_nesting() -> None:
    module = parse(TEXT)
    assert module.unread == ()
    assert [op.name for op in module.ops] == [
        "module", "tt.func", "arith.constant", "tt.splat", "scf.for", "ttg.async_copy_global_to_local", "tt.load", "scf.if", "tt.store",
        "scf.yield", "tt.reduce", "tt.reduce.return", "arith.extf", "tt.return",
    ]  # fmt: skip
    loop, copy, load, store = (module.named(n)[0] for n in ("scf.for", "ttg.async_copy_global_to_local", "tt.load", "tt.store"))
    assert loop.results == ("%x",)
    assert loop.attributes == {"tt.num_stages": "3 : i32"}
    assert (loop.loop_depth, load.loop_depth, store.loop_depth, store.depth) == (0, 1, 1, 4)
    assert module.ops[store.parent].name == "scf.if"
    assert copy.operands == ("%q", "%s", "%m", "%o")
    assert copy.attributes == {"contiguity": "8 : i32"}
    assert load.types == ("tensor<64x!tt.ptr<f16>, #blocked>",)
    assert load.short_name == "load"
    assert load.row == 10


def test_result_types_of_each_form() -> None:
    module = parse(TEXT)
    assert module.named("tt.splat")[0].result_types == ("tensor<64x!tt.ptr<f16>, #blocked>",)
    assert module.named("arith.extf")[0].result_types == ("tensor<64xf32, #blocked>",)
    reduce = module.named("tt.reduce")[0]
    assert reduce.result_types == ("tensor<64xf32, #ttg.slice<{dim = 1, parent = #blocked}>>",)
    assert reduce.attributes == {"axis": "1 : i32"}
    assert module.ops[0].attributes["ttg.num-warps"] == "4 : i32"


def test_lines_definitions_and_aliases() -> None:
    module = parse(TEXT)
    lines = {op.name: module.line(op, "/u/k.py") for op in module.ops}
    assert (lines["tt.load"], lines["tt.store"], lines["tt.reduce"], lines["scf.for"]) == (5, 7, 7, 5)
    assert module.line(module.named("tt.load")[0], "/u/other.py") == 0
    assert module.definition("%x#1") is module.named("scf.for")[0]
    assert module.definition("%q") is None
    assert module.aliases["#blocked"].startswith("#ttg.blocked<{sizePerThread")


def test_unreadable_lines_are_named() -> None:
    broken = TEXT.replace("    %h = arith.extf %v :", "    %h = %%% ]] arith.extf %v :")
    row = next(i for i, line in enumerate(broken.splitlines(), 1) if "%%%" in line)
    module = parse(broken)
    assert any(abs(line - row) <= 1 for line in module.unread)
    assert module.named("tt.load")


def test_a_long_module_is_read_quickly() -> None:
    body = "      %v = tt.load %q : tensor<64x!tt.ptr<f16>, #blocked> loc(#loc2)\n"
    text = TEXT.replace(body, "".join(body.replace("%v =", f"%v{i} =") for i in range(200)))
    started = time.process_time()
    assert len(parse(text).named("tt.load")) == 200
    assert time.process_time() - started < 0.5
