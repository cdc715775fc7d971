"""Printed types and encodings -> records."""

from leadline.ir.layouts import parse_layout, parse_type, root_layout, split_top

BLOCKED = "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>"
MMA = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [8, 1], instrShape = [16, 256, 16]}>"


def test_blocked() -> None:
    layout = parse_layout("#b", {"#b": BLOCKED})
    assert (layout.kind, layout.size_per_thread, layout.threads_per_warp) == ("blocked", (1, 8), (4, 8))
    assert (layout.warps, layout.order) == ((4, 1), (1, 0))


def test_tensor_core_and_shared() -> None:
    mma = parse_layout(MMA)
    assert (mma.kind, mma.version, mma.instruction) == ("nvidia_mma", 3, (16, 256, 16))
    shared = parse_layout("#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = true, elementBitWidth = 16}>")
    assert (shared.kind, shared.swizzle_bytes, shared.transposed) == ("nvmma_shared", 128, True)
    assert parse_layout("#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>").vector == 8
    assert parse_layout("#new_thing").kind == "unknown"


def test_slices_lead_to_their_root() -> None:
    text = f"#ttg.slice<{{dim = 1, parent = #ttg.dot_op<{{opIdx = 0, parent = {MMA}, kWidth = 2}}>}}>"
    assert parse_layout(text).kind == "slice"
    assert root_layout(text).version == 3
    assert root_layout("#ttg.slice<{dim = 0, parent = #b}>", {"#b": BLOCKED}).size_per_thread == (1, 8)


def test_types() -> None:
    pointers = parse_type("tensor<128x64x!tt.ptr<bf16>, #blocked>")
    assert (pointers.kind, pointers.shape, pointers.element, pointers.pointer) == ("tensor", (128, 64), "bf16", True)
    assert (pointers.numel, pointers.bits, pointers.layout) == (8192, 16, "#blocked")
    memory = parse_type("!ttg.memdesc<3x128x64xf16, #shared, #smem, mutable>")
    assert (memory.kind, memory.shape, memory.layout) == ("memdesc", (3, 128, 64), "#shared")
    assert parse_type("<64x256xf16, #shared, #smem, mutable>").shape == (64, 256)
    scalar = parse_type("i64")
    assert (scalar.kind, scalar.numel, scalar.bits) == ("scalar", 1, 64)
    assert parse_type("!tt.ptr<f32>").pointer
    assert parse_type("tensor<8xf8E4M3FN>").bits == 8


def test_splitting_respects_brackets_arrows_and_strings() -> None:
    assert split_top('a, b<c, d>, (e -> f, g), "h, i"') == ["a", " b<c, d>", " (e -> f, g)", ' "h, i"']
