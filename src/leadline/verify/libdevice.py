"""Math of the device's library (`libdevice`) for the CPU interpreter, which has none: there its functions are stubs that return None.

Results are rounded once from numpy's, so they are at least as accurate as the device's own. Workers only: imports triton.
"""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

_ROUNDED = ("_rn", "_rz", "_rd", "_ru")  # the direction of rounding is below what a tolerance sees

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "nearbyint": np.rint,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt, "rcbrt": lambda x: 1 / np.cbrt(x), "rcp": lambda x: 1 / x,
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x).astype(x.dtype), "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinpi": lambda x: np.sin(np.pi * x), "cospi": lambda x: np.cos(np.pi * x),
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": special.erf, "erfc": special.erfc, "erfinv": special.erfinv, "erfcx": special.erfcx, "erfcinv": special.erfcinv,
    "normcdf": special.ndtr, "normcdfinv": special.ndtri, "lgamma": special.gammaln, "tgamma": special.gamma,
    "j0": special.j0, "j1": special.j1, "y0": special.y0, "y1": special.y1, "cyl_bessel_i0": special.i0, "cyl_bessel_i1": special.i1,
    "saturatef": lambda x: np.clip(x, 0, 1), "logb": lambda x: np.floor(np.log2(np.abs(x))),
    "pow": np.power, "fmod": np.fmod, "remainder": lambda x, y: x - y * np.rint(x / y), "atan2": np.arctan2, "hypot": np.hypot,
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "copysign": np.copysign, "nextafter": np.nextafter,
    "fdim": lambda x, y: np.maximum(x - y, 0), "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "fma": lambda x, y, z: x * y + z,
}  # fmt: skip
TESTS: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite, "isfinited": np.isfinite, "signbit": np.signbit,
}  # fmt: skip
_FAST = {"fast_dividef": "div", "fast_sinf": "sin", "fast_cosf": "cos", "fast_tanf": "tan", "fast_tanhf": "tanh", "fast_logf": "log",
         "fast_log2f": "log2", "fast_log10f": "log10", "fast_expf": "exp", "fast_exp10f": "exp10", "fast_powf": "pow"}  # fmt: skip


def install() -> None:
    """Put numpy's functions in the place of the stubs, before user code imports them by name."""
    from triton.language.extra import libdevice

    for name, stub in list(vars(libdevice).items()):
        if isinstance(stub, types.FunctionType) and not name.startswith("_"):
            setattr(libdevice, name, _operation(name))


def _operation(name: str) -> Callable[..., Any]:
    """The function for `name` on Triton's tensors and numbers; one that is not known here raises NotImplementedError when called."""
    plain = _FAST.get(name, name)
    if plain not in FUNCTIONS and plain not in TESTS and plain.endswith(_ROUNDED):
        plain = plain[:-3]
    compute, test = FUNCTIONS.get(plain), TESTS.get(plain)

    def operation(*arguments: Any, **_: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        found = compute or test
        if found is None:
            raise NotImplementedError(f"libdevice.{name} is not known in the interpreter")
        given = [a for a in arguments if isinstance(a, tl.tensor)]
        if not given:  # constants: the interpreter knows them as numbers
            return found(*(np.float32(getattr(a, "value", a)) for a in arguments)).item()
        kind = given[0].dtype.scalar
        # As on the device, which has no half-precision versions of most of them; a 16-bit integer would be bfloat16's bits.
        if plain != "abs" and kind not in (tl.float32, tl.float64):
            raise TypeError(f"libdevice.{name} takes fp32 or fp64, not {kind}")
        with np.errstate(all="ignore"):
            data = found(*(a.handle.data if isinstance(a, tl.tensor) else given[0].handle.data.dtype.type(getattr(a, "value", a))
                           for a in arguments))  # fmt: skip
        if test is not None:
            kind, data = tl.int32, data.astype(np.int32)
        else:
            data = np.asarray(data, given[0].handle.data.dtype)
        is_tile = any(a.type != a.dtype for a in given)  # a scalar's type is that of its element
        return tl.tensor(TensorHandle(data, kind), tl.block_type(kind, list(data.shape)) if is_tile else kind)

    operation.__name__ = operation.__qualname__ = name
    operation.__module__ = "triton.language.extra.libdevice"  # the sampler tells the library's functions by it
    return operation
