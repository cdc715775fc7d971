"""Texts of the debug channel and diagnostics -> typed messages."""

from leadline.backends.nvidia.messages import OperationLines, considered_dots, operation_key, read_debug, read_diagnostics

BARE = """module {
  tt.func @f() {
    %1 = tt.load %0 : tensor<64x!tt.ptr<f16>>
    tt.store %0, %1 : tensor<64x!tt.ptr<f16>>
    %2 = ttg.convert_layout %1 : tensor<64xf16> -> tensor<64xf16>
    %3 = ttng.warp_group_dot %2, %2, %1 : x
    %4 = ttng.warp_group_dot %2, %3, %1 : x
  }
}
"""
LOCATED = """module {
  tt.func @f() {
    %x = tt.load %p : tensor<64x!tt.ptr<f16>> loc(#loc1)
    tt.store %p, %x : tensor<64x!tt.ptr<f16>> loc(#loc2)
    %y = ttg.convert_layout %x : tensor<64xf16> -> tensor<64xf16> loc(#loc3)
    %d = ttng.warp_group_dot %y, %y, %x : x loc(#loc2)
    %e = ttng.warp_group_dot %y, %d, %x : x loc(#loc3)
  } loc(#loc1)
} loc(#loc1)
#loc1 = loc("/u/k.py":4:8)
#loc2 = loc("/u/k.py":5:8)
#loc3 = loc("x"("/u/k.py":6:8))
"""


def test_operations_are_mapped_to_lines() -> None:
    lines = OperationLines(BARE, LOCATED, "/u/k.py")
    assert lines.exact("%1 = tt.load %0 {loop.stage = 0 : i32} : tensor<64x!tt.ptr<f16>, #ttg.blocked<{}>>") == 4
    assert lines.exact("tt.store %0, %1 : tensor<64x!tt.ptr<f16>>") == 5
    assert lines.exact("%1 = tt.load %7 : tensor<64x!tt.ptr<f16>>") == 0
    assert lines.converted("%1 = tt.load %0") == 6
    assert lines.by_name("%99 = tt.load %98") == 4
    assert lines.by_name("%99 = ttng.warp_group_dot %1, %2") == 0
    assert lines.at("ttng.warp_group_dot", 1, 2) == 6
    assert lines.at("ttng.warp_group_dot", 1, 3) == 0


def test_texts_that_do_not_line_up_map_nothing() -> None:
    lines = OperationLines(BARE.replace("    tt.store %0, %1 : tensor<64x!tt.ptr<f16>>\n", ""), LOCATED, "/u/k.py")
    assert lines.exact("%1 = tt.load %0 : x") == 0


def test_keys_of_both_printed_forms() -> None:
    assert operation_key('%5 = "tt.splat"(%4) : (i32) -> i32') == ("%5", "tt.splat", "%4")
    assert operation_key("%x:2 = scf.for %i = %c0 to %n") == ("%x", "scf.for", "%i")
    assert operation_key("no operation here") is None


def test_debug_text() -> None:
    log = """[tritongpu-coalesce]: Considering op: %1 = tt.load %0 : tensor<64x!tt.ptr<f16>>
[tritongpu-coalesce]: axis info of pointer: contiguity = [1], divisibility = [2], constancy = [1], constant_value = <none>
[tritongpu-coalesce]: order=[0]
[tritongpu-coalesce]: perThread for op: 8
[tritongpu-coalesce]: perThread: 1
[triton-loop-pipeline]: Load %1 = tt.load %0 {a = 1} : tensor<64x!tt.ptr<f16>, #ttg.blocked<{order = [0]}>> is too small for pipelining
[triton-wgmma-pipeline]: Considering whether to make MMAv3 dot properly async: %8 = ttng.warp_group_dot %2, %3, %4 : x
[triton-wgmma-pipeline]: Considering whether to make MMAv3 dot properly async: %9 = ttng.warp_group_dot %2, %3, %4 : x
[triton-wgmma-pipeline]: Can't make dot async because dot is unconditionally used in the loop.
[triton-wgmma-pipeline]: Can't make dot async because of something new
[tritongpu-remove-layout-conversions]: check backward remat with source %1 = tt.load %0 : x
[tritongpu-remove-layout-conversions]:   convert layout cost: 16384
[tritongpu-remove-layout-conversions]:   rematerialisation cost: 99999
[tritongpu-remove-layout-conversions]:   skipped rematerialization due to higher cost
garbage
"""
    found = read_debug(log)
    assert [m.kind for m in found] == [
        "axis_info", "coalesce_choice", "load_too_narrow_to_pipeline", "dot_unconditional", "dot_not_async", "remat_cost",
    ]  # fmt: skip
    assert found[1].text == "order [0], 1 elements per thread"
    assert found[2].operation.startswith("%1 = tt.load %0")
    assert found[2].text == "Load %1 = tt.load %0 : tensor<64x!tt.ptr<f16>> is too small for pipelining"
    assert (found[3].operation[:2], found[3].position) == ("%9", 1)
    assert found[5].text == ("skipped rematerialization due to higher cost (convert layout cost: 16384, rematerialisation cost: 99999)")
    assert len(considered_dots(log)) == 2


def test_diagnostics() -> None:
    log = """/u/k.py:9:4: remark: MMA version 3 acceleration not applied due to unsupported shapes or data types.
/u/k.py:9:4: note: Target compute capability (90) supports MMA v3.
/u/k.py:7:4: remark: Warning: vectorization fails vec = 1 origin vec = 8 elemsPerThread = 8 mask is 1
/u/k.py:8:4: remark: Warning: vectorization fails vec = 1 origin vec = 1 numElems = 1 mask is -1
/lib/standard.py:5:4: warning: something new
/u/k.py:12:4: note: called from
"""
    found = read_diagnostics(log, "/u/k.py")
    assert [(m.kind, m.line, m.channel) for m in found] == [
        ("mma_v3_refused", 9, "remark"), ("vectorization_fails", 7, "remark"), ("", 12, "warning"),
    ]  # fmt: skip
    assert found[1].text.startswith("the mask limits the access to 1 of 8 elements")
