"""Facts of kernels: accesses, dependences, ranks, loops, branches, operations."""

import ast
import textwrap

import pytest

from leadline.collect.source import read
from leadline.model import KernelCase, KernelFacts, SourceFacts

HEAD = "import torch, triton\nimport triton.language as tl\n\n"


def facts(body: str, **kwargs: str) -> SourceFacts:
    source = HEAD + textwrap.dedent(body)
    return read(KernelCase(path="k.py", source=source, kernels=()), kwargs)


def kernel(body: str) -> KernelFacts:
    return facts(body).kernels[-1]


MATMUL = """
@triton.autotune(configs=[triton.Config({"BM": 64}, num_warps=4)], key=["M", "N"])
@triton.jit
def mm(a_ptr, b_ptr, c_ptr, M, N, K, stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 32):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    pa = a_ptr + rm[:, None] * stride + rk[None, :]
    pb = b_ptr + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(pa, mask=(rm < M)[:, None], other=0.0)
        b = tl.load(pb).to(tl.float16)
        acc += tl.dot(a, b, input_precision="ieee")
        pa += BK
        pb += BK * N
    # write back
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None])
"""


def test_matmul_accesses() -> None:
    k = kernel(MATMUL)
    a, b, c = k.accesses
    assert (a.kind, a.base, a.target, a.rank, a.loop, a.loops, a.axes) == ("load", "a_ptr", "a", 2, 0, (0,), (0,))
    assert a.expanded == ("a_ptr + (tl.program_id(0) * BM + tl.arange(0, BM))[:, None] * stride + tl.arange(0, BK)[None, :]")
    assert (a.mask, a.other) == ("(rm < M)[:, None]", "0.0")
    assert a.mask_expanded == "(tl.program_id(0) * BM + tl.arange(0, BM) < M)[:, None]"
    assert (b.base, b.target, b.mask, b.axes) == ("b_ptr", "b", None, (1,))
    assert (c.kind, c.value, c.loop, c.axes, c.loops) == ("store", "acc", -1, (0, 1), ())
    assert len(a.ranges) == 2
    assert (a.indirect, a.divmod, c.result_used) == (False, False, False)


def test_matmul_loop_parameters_and_decorators() -> None:
    k = kernel(MATMUL)
    (loop,) = k.loops
    assert (loop.kind, loop.target, loop.start, loop.stop, loop.step, loop.parent) == ("range", "k", "0", "K", "BK", -1)
    assert loop.carried == ("acc", "pa", "pb")
    assert loop.bound_params == ("BK", "K")
    assert k.decorators[1] == "triton.jit"
    assert k.decorators[0].startswith("triton.autotune(configs=")
    last = k.parameters[-1]
    assert (last.name, last.constexpr, last.default, last.annotation, last.uses) == ("BK", True, "32", "tl.constexpr", 4)
    assert k.symbol("acc").rank == 2
    assert k.symbol("acc").loaded


def test_operations_of_matmul() -> None:
    k = kernel(MATMUL)
    (dot,) = k.of_kind("dot")
    assert dot.operands == ("a", "b")
    assert dot.detail["input_precision"] == '"ieee"'
    assert dot.detail["a"] == "a"
    assert dot.loop == 0
    (cast,) = k.of_kind("cast")
    assert (cast.detail["dtype"], cast.operands, cast.target, cast.tile) == ("tl.float16", ("tl.load(pb)",), "b", True)
    assert [o.tile for o in k.of_kind("arange")] == [True] * 3


@pytest.mark.parametrize(
    ("decorator", "imports"),
    [
        ("@triton.jit", ""), ("@triton.jit()", ""), ("@jit", "from triton import jit\n"),
        ("@triton.jit(do_not_specialize=['n'])", ""), ("@triton.heuristics({'B': lambda a: 1})\n@triton.jit", ""),
    ],
)  # fmt: skip
def test_kernels_are_found_under_any_decorator(decorator: str, imports: str) -> None:
    k = kernel(f"{imports}{decorator}\ndef k(x, n):\n    tl.store(x + n, 1.0)\n")
    assert (k.name, k.accesses[0].base) == ("k", "x")


def test_kernel_made_by_a_call_and_plain_functions_left_out() -> None:
    f = facts("def body(x):\n    tl.store(x, 1)\nmade = triton.jit(body)\ndef launch(x):\n    made[(1,)](x)\n")
    assert [k.name for k in f.kernels] == ["body"]
    assert f.wrapper.launches[0].kernel == "body"


def test_kernels_of_other_files() -> None:
    other = HEAD + "@triton.jit\ndef far(x, n, B: tl.constexpr):\n    tl.store(x + tl.arange(0, B), n)\n"
    f = facts("from lib import far\ndef launch(x):\n    far[(4,)](x, 3, B=16, num_warps=2)\n", **{"lib.py": other})
    assert (f.kernels[0].name, f.kernels[0].file) == ("far", "lib.py")
    assert f.wrapper.launches[0].arguments == {"x": "x", "n": "3", "B": "16"}
    assert f.wrapper.launches[0].options == {"num_warps": "2"}
    assert set(f.texts) == {"k.py", "lib.py"}


def test_indirect_and_divmod() -> None:
    k = kernel("""
        @triton.jit
        def k(x, idx, y, H, n, B: tl.constexpr):
            pid = tl.program_id(axis=0)
            offs = pid * B + tl.arange(0, B)
            row = offs // H
            i = tl.load(idx + row)
            v = tl.load(x + i * H + offs % H, offs < n, 0.0, eviction_policy="evict_first")
            tl.store(y + offs, v / pid)
            s = tl.load(x + pid // H)
    """)
    first, second, store, scalar = k.accesses
    assert (first.divmod, first.indirect) == (True, False)
    assert (second.divmod, second.indirect, second.other) == (True, True, "0.0")
    assert second.keywords == {"eviction_policy": '"evict_first"'}
    assert not store.divmod
    assert (scalar.divmod, scalar.rank) == (False, 0)  # a scalar division is not a tile's
    division, scalar_division = k.of_kind("floordiv")
    assert (division.tile, division.detail["right_constexpr"], division.text) == (True, "false", "offs // H")
    assert not scalar_division.tile
    assert k.of_kind("mod")[0].operands == ("offs", "H")
    assert k.of_kind("truediv")[0].tile


def test_load_address_division_does_not_taint_the_loaded_value() -> None:
    k = kernel(
        "@triton.jit\ndef k(x, y, H, B: tl.constexpr):\n    o = tl.arange(0, B)\n    i = tl.load(x + o // H)\n    tl.store(y + i, 1)\n"
    )
    assert (k.accesses[1].divmod, k.accesses[1].indirect) == (False, True)


def test_ranks() -> None:
    k = kernel("""
        @triton.jit
        def k(x, y, B: tl.constexpr, C: tl.constexpr):
            r = tl.arange(0, B)
            c = tl.arange(0, C)
            t = tl.load(x + r[:, None] * C + c[None, :])
            s = tl.sum(t, axis=1)
            m = t.max(0)
            total = tl.sum(s)
            all_of = tl.sum(t)
            e = tl.expand_dims(s, 1)
            z = tl.full([B, C, 2], 0.0, tl.float64)
            w = tl.where(r < B, s, 0.0)
            b = tl.broadcast_to(total, (B, C))
            keep = tl.max(t, 1, keep_dims=True)
            u, i = tl.max(t, 1, return_indices=True)
            p, q = tl.split(tl.reshape(t, (B, C // 2, 2)))
            h = t.to(tl.float16).T
    """)
    ranks = {s.name: s.rank for s in k.symbols}
    assert ranks == {"r": 1, "c": 1, "t": 2, "s": 1, "m": 1, "total": 0, "all_of": 0, "e": 2, "z": 3, "w": 1, "b": 2, "keep": 2,
                     "u": 1, "i": 1, "p": 2, "q": 2, "h": 2}  # fmt: skip
    assert k.of_kind("constant")[0].detail["dtype"] == "tl.float64"
    assert {o.detail["op"]: o.detail["axis"] for o in k.of_kind("sum", "max")} == {"sum": "None", "max": "1"}


def test_branches_joining_and_invariance() -> None:
    k = kernel("""
        @triton.jit
        def k(A, B, C, flag, n, BN: tl.constexpr):
            o = tl.arange(0, BN)
            for i in range(n):
                if flag == 3:
                    p = A
                elif i > 2:
                    p = B
                else:
                    p = B + 1
                v = tl.load(p + o)
                if tl.load(C + i) > 0:
                    tl.store(C + o, v)
            q = A
            w = tl.load(q + o)
    """)
    first, second, third = k.branches
    assert (first.test, first.invariant, first.has_else, first.loop, first.parent) == ("flag == 3", True, True, 0, -1)
    assert (second.test, second.invariant, second.parent) == ("i > 2", False, 0)
    assert (third.loaded, third.invariant) == (True, False)
    load = k.accesses[0]
    assert (load.base, load.expanded, load.loops) == (None, "p + tl.arange(0, BN)", (0,))
    store = next(a for a in k.accesses if a.kind == "store")
    assert (store.branch, store.base) == (2, "C")
    assert k.accesses[-1].base == "A"


def test_loops_of_every_kind() -> None:
    k = kernel("""
        @triton.jit
        def k(x, n, cu, B: tl.constexpr):
            end = tl.load(cu + tl.program_id(0))
            for t in tl.range(tl.program_id(1), end, B, num_stages=3, flatten=True):
                for j in tl.static_range(4):
                    tl.store(x + t + j, 0)
            i = 0
            while i < n:
                tl.store(x + i, 0)
                i += 1
    """)
    outer, inner, loop = k.loops
    assert (outer.kind, outer.start, outer.stop, outer.step) == ("tl.range", "tl.program_id(1)", "end", "B")
    assert outer.options == {"num_stages": "3", "flatten": "True"}
    assert (outer.bound_axes, outer.bound_loaded) == ((0, 1), True)
    assert (inner.kind, inner.parent, inner.stop, inner.carried) == ("static_range", 0, "4", ())
    assert (loop.kind, loop.stop, loop.carried, loop.bound_params) == ("while", "i < n", ("i",), ("n",))
    assert k.accesses[1].loops == (0, 1)
    assert k.accesses[1].axes == (1,)  # where the loop starts, not where it ends
    assert k.accesses[2].loops == (2,)


def test_chains_of_carried_names_settle() -> None:
    k = kernel("""
        @triton.jit
        def k(x, n):
            a = 0
            b = 0
            c = 0
            for i in range(n):
                tl.store(x + c, 0)
                c = b
                b = a
                a = tl.load(x + i)
    """)
    assert k.accesses[0].indirect


def test_atomics() -> None:
    k = kernel("""
        @triton.jit
        def k(x, lock, v, m):
            tl.atomic_add(x + tl.program_id(0), v, mask=m, sem="relaxed")
            old = tl.atomic_add(x, 1)
            while tl.atomic_cas(lock, 0, 1) == 1:
                pass
            seen = tl.atomic_max(x, v)
            tl.store(x + seen, 0)
    """)
    add, unused, cas, maximum, store = k.accesses
    assert (add.kind, add.value, add.mask, add.keywords, add.result_used) == ("atomic_add", "v", "m", {"sem": '"relaxed"'}, False)
    assert not unused.result_used
    assert (cas.kind, cas.value, cas.keywords["cmp"], cas.result_used) == ("atomic_cas", "1", "0", True)
    assert (maximum.result_used, maximum.target) == (True, "seen")
    assert store.indirect


def test_called_kernels_are_seen_through() -> None:
    f = facts("""
        @triton.jit
        def offset(pid, B: tl.constexpr):
            return pid * B + tl.arange(0, B)

        @triton.jit
        def put(ptr, tile, o):
            tl.store(ptr + o, tl.sum(tile, 1) // 3)

        @triton.jit
        def k(x, y, B: tl.constexpr):
            o = offset(tl.program_id(1), B)
            t = tl.load(x + o[:, None] + o[None, :])
            put(y, t, o)
    """)
    k = f.kernel("k")
    assert k.calls == ("offset", "put")
    assert (k.accesses[0].axes, k.accesses[0].rank, k.accesses[0].base) == ((1,), 2, "x")
    assert k.accesses[0].expanded == "x + offset(tl.program_id(1), B)[:, None] + offset(tl.program_id(1), B)[None, :]"
    put = f.kernel("put")
    assert (put.accesses[0].rank, put.accesses[0].base) == (1, "ptr")  # ranks come from the call
    assert put.of_kind("floordiv")[0].tile


def test_block_pointers_and_descriptors() -> None:
    k = kernel("""
        @triton.jit
        def k(x, y, M, N, B: tl.constexpr):
            p = tl.make_block_ptr(base=x, shape=(M, N), strides=(N, 1), offsets=(0, 0), block_shape=(B, B), order=(1, 0))
            d = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B, B])
            for i in range(4):
                a = tl.load(p, boundary_check=(0, 1))
                d.store([i * B, tl.program_id(0)], a)
                b = d.load([0, i])
                p = tl.advance(p, (0, B))
    """)
    load, store, get = k.accesses
    assert (load.base, load.rank, load.loops, load.keywords) == ("x", 2, (0,), {"boundary_check": "(0, 1)"})
    assert (store.kind, store.base, store.value, store.axes, store.loops) == ("descriptor_store", "y", "a", (0,), (0,))
    assert (get.kind, get.rank, get.pointer, get.expanded) == ("descriptor_load", 2, "d", "d[0, i]")


def test_math_hints_and_barriers() -> None:
    k = kernel("""
        from triton.language.extra import libdevice
        @triton.jit
        def k(x, n, B: tl.constexpr):
            o = tl.max_contiguous(tl.multiple_of(tl.arange(0, B), B), B)
            v = tl.math.exp2(tl.load(x + o))
            v = libdevice.tanh(v) + tl.math.rsqrt(v) + tl.erf(v) + tl.cos(v)
            tl.debug_barrier()
            tl.assume(n > 0)
            v = tl.cumsum(v, 0) + tl.cdiv(n, 4)
            tl.store(x + o, v)
    """)
    assert k.accesses[0].base == "x"
    assert [o.kind for o in k.operations if o.kind not in ("arange", "math")] == [
        "hint", "hint", "exp", "tanh", "sqrt", "erf", "sin", "barrier", "assume", "scan", "floordiv",
    ]  # fmt: skip
    assert k.of_kind("exp")[0].detail["function"] == "exp2"
    assert k.of_kind("floordiv")[0].detail == {
        "function": "cdiv", "right_constexpr": "true", "left_tile": "false", "right_tile": "false",
    }  # fmt: skip


def test_base_among_integer_parameters() -> None:
    k = kernel("""
        @triton.jit
        def k(X, first, n, Y, B: tl.constexpr):
            o = tl.arange(0, B)
            tl.store(Y + first + o, tl.load(first + X + o + 1, mask=o + first < n).to(Y.dtype.element_ty))
            tl.store(tl.where(n > 0, X, Y) + o, 0)
    """)
    store, load, either = k.accesses
    assert (store.base, either.base) == ("Y", None)
    assert load.base == "first"  # no evidence that X, not first, is the pointer


def test_expansions_stay_short_and_parse() -> None:
    lines = "\n".join(f"    o{i + 1} = o{i} + o{i} * {i}" for i in range(30))
    k = kernel(f"@triton.jit\ndef k(x, B: tl.constexpr):\n    o0 = tl.arange(0, B)\n{lines}\n    tl.store(x + o30, 0)\n")
    text = k.accesses[0].expanded
    assert len(text) <= 2000
    assert isinstance(ast.parse(text, mode="eval"), ast.Expression)
    assert k.accesses[0].ranges == (6,)


def test_columns_are_characters() -> None:
    k = kernel('@triton.jit\ndef k(x):\n    tl.static_print("é"); tl.store(x, 1)\n')
    store = k.accesses[0]
    assert (store.column, store.text) == (26, "tl.store(x, 1)")


@pytest.mark.parametrize(
    "body",
    [
        "def (:", "@triton.jit\ndef k(*args, **kw):\n    x = [i for i in args]\n    tl.load(args[0], *x)\n",
        "@triton.jit\ndef k(x):\n    a, (b, c) = x\n    a.b.c[0] = tl.load()\n    del a\n    return lambda: 1\n",
        "@triton.jit\ndef k(x):\n    return k(x)\n", "@triton.jit\ndef k(x):\n    for a in x:\n        for b in a():\n            b += a\n",
        "@triton.jit\ndef k(x):\n    try:\n        y = f'{x}'\n    finally:\n        tl.store(x, (yield))\n",
        "launch = 3\n", "def launch(*a, **k):\n    a[0][1](2)\n    (lambda: 3)()\n    x[y](**z)\n",
    ],
)  # fmt: skip
def test_odd_code_never_raises(body: str) -> None:
    assert facts(body).path == "k.py"


def test_suppressions() -> None:
    f = facts("""
        x = 1  # leadline: ignore[MEM101] measured
        # leadline: ignore[GRD101, tail-wave] small by design

        # another comment
        y = 2
    """)
    lines = f.texts["k.py"].split("\n")
    y = lines.index("y = 2") + 1
    assert f.suppressions[y] == ("GRD101", "tail-wave")
    assert f.suppressions[lines.index("x = 1  # leadline: ignore[MEM101] measured") + 1] == ("MEM101",)
