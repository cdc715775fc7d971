"""Instruction texts -> counts: widths, lines through inlining, loops."""

from leadline.backends.nvidia.machine import (
    Instruction,
    access,
    attribute_to_kernel,
    count,
    is_atomic,
    machine_lines,
    read_gcn,
    read_ptx,
    read_sass,
    resources,
)  # fmt: skip

PTX = """
\t.loc\t1 12 25                         // k.py:12:25
\t@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
\t.loc\t2 263 15                        // standard.py:263:15 @[ standard.py:293:36 @[ k.py:15:18 ] ]
\tshfl.sync.bfly.b32 %r5, %r6, 16, 31, -1;
\t.loc\t1 16 4                          // k.py:16:4
\tcp.async.cg.shared.global [ %r7 + 0 ], [ %rd2 + 0 ], 0x10, %r8;
\tst.global.b16 [ %rd3 + 0 ], { %rs1 };
\tatom.global.gpu.relaxed.add.noftz.v2.f16 { %r1, %r2 }, [ %rd1 + 0 ], { %r1, %r2 };
\t.file\t1 "/home/u/k.py"
\t.file\t2 "/lib/standard.py"
"""

SASS = """
.text.k:
\t//## File "/home/u/k.py", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
\t//## File "/home/u/k.py", line 5
        /*0010*/              @!P0 LDG.E.U16 R11, desc[UR6][R2.64+0x2] ;
        /*0020*/                   LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR6][R2.64] ;
        /*0030*/               @P1 BRA `(.L_x_1) ;
\t//## File "/lib/standard.py", line 263
        /*0040*/                   STG.E.64 desc[UR6][R2.64], R4 ;
        /*0050*/                   STL [R1], R2 ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
        /*0070*/                   NOP;
"""


def test_ptx_lines_go_to_the_caller_in_the_kernel_file() -> None:
    text = attribute_to_kernel(PTX, "/home/u/k.py")
    assert "\t.loc\t1 15 18" in text
    found = read_ptx(text, "/home/u/k.py")
    assert [(i.mnemonic.split(".")[0], i.line) for i in found] == [("ld", 12), ("shfl", 15), ("cp", 16), ("st", 16), ("atom", 16)]
    assert attribute_to_kernel(PTX, "/home/u/other.py") == PTX


def test_counts_of_ptx() -> None:
    found = read_ptx(attribute_to_kernel(PTX, "/home/u/k.py"), "/home/u/k.py")
    total, lines = count("ptx", found, set(), {12, 16})
    assert (total["global.load.bits"], total["global.store.bits"], total["async_copy.bits"]) == (128, 16, 128)
    assert total["global.load.count"] == 2
    assert total["ptx.ld.global.v4.b32"] == 1
    assert (total["atomic.instructions"], total["atomic.vector"]) == (1, 1)
    assert lines[15]["shfl"] == 1
    scalar, _ = count("ptx", found, {16}, {12})
    assert "global.store.bits" not in scalar


def test_sass_loops_widths_and_lines() -> None:
    found = read_sass(SASS, "/home/u/k.py")
    assert [i.in_loop for i in found] == [False, True, True, True, False, False, False]
    total, lines = count("sass", found, set(), {5})
    assert (total["instructions"], total["loop.instructions"], total["spill"]) == (7, 3, 1)
    assert (total["global.load.bits"], total["async_copy.bits"], total["global.store.bits"]) == (16, 128, 64)
    assert lines[5]["sass.LDG.E.U16"] == 1
    rows = machine_lines(found, "/home/u/k.py", "k.py")
    assert [(r.file, r.line) for r in rows] == [("/lib/standard.py", 263), ("k.py", 3), ("k.py", 5)]
    assert rows[0].counts == {"STG.E.64": 1, "STL": 1, "BRA": 1}


def test_access_widths() -> None:
    def of(mnemonic: str, operands: str = "") -> tuple[str, int]:
        return access(Instruction(mnemonic=mnemonic, operands=operands))

    assert of("LDG.E.128.CONSTANT") == ("load", 128)
    assert of("LDG.E.LTC128B") == ("load", 32)
    assert of("LDG.E.S8") == ("load", 8)
    assert of("LDGSTS.E.LTC128B") == ("copy", 32)
    assert of("ld.global.L1::evict_first.v2.b64") == ("load", 128)
    assert of("cp.async.ca.shared.global", "[ %r1 + 0 ], [ %rd1 + 0 ], 0x4") == ("copy", 32)
    assert of("cp.async.wait_group", "0x2") == ("", 0)
    assert of("global_load_dwordx4") == ("load", 128)
    assert of("buffer_store_short") == ("store", 16)
    assert of("LDS.128") == ("", 0)


def test_atomics() -> None:
    assert is_atomic(Instruction(mnemonic="REDG.E.ADD.F32.FTZ.RN.STRONG.GPU"))
    assert is_atomic(Instruction(mnemonic="red.global.add.f32"))
    assert not is_atomic(Instruction(mnemonic="REDUX.SUM"))


def test_amd_assembly() -> None:
    text = '\t.file\t1 "/home/u/k.py"\n\t.loc\t1 9 3 ; k.py:9:3\n\tglobal_load_dwordx4 v[0:3], v[4:5], off\n\ts_barrier\n'
    total, lines = count("amdgcn", read_gcn(text, "/home/u/k.py"), set(), {9})
    assert (total["global.load.bits"], total["barrier"], lines[9]["amdgcn.global_load_dwordx4"]) == (128, 1, 1)


def test_ptxas_log() -> None:
    log = "    40 bytes stack frame, 36 bytes spill stores, 32 bytes spill loads\nptxas info : Used 255 registers, used 2 barriers"
    found = resources(log, 4096)
    assert (found.registers, found.spill_store_bytes, found.spill_load_bytes) == (255, 36, 32)
    assert (found.stack_bytes, found.barriers, found.smem, found.static_smem) == (40, 2, 4096, 0)
