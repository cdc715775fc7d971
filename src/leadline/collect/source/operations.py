"""The vocabulary of `triton.language`: which function is which kind of operation, and its parameters in order."""

KINDS: dict[str, str] = {
    "dot": "dot", "dot_scaled": "dot",
    "sum": "sum", "max": "max", "min": "min", "argmax": "argmax", "argmin": "argmax", "reduce": "reduce", "xor_sum": "reduce",
    "reduce_or": "reduce", "softmax": "reduce",
    "cumsum": "scan", "cumprod": "scan", "associative_scan": "scan",
    "cast": "cast", "to": "cast", "arange": "arange", "program_id": "program_id", "num_programs": "num_programs",
    "cdiv": "floordiv", "fdiv": "truediv", "div_rn": "truediv",
    "exp": "exp", "exp2": "exp", "sigmoid": "exp", "expm1": "exp", "fast_expf": "exp",
    "log": "log", "log2": "log", "log1p": "log", "log10": "log",
    "sqrt": "sqrt", "rsqrt": "sqrt", "sqrt_rn": "sqrt",
    "sin": "sin", "cos": "sin", "tan": "sin", "sincos": "sin", "tanh": "tanh", "fast_tanhf": "tanh", "erf": "erf", "pow": "pow",
    "where": "where", "trans": "trans", "permute": "trans",
    "reshape": "reshape", "view": "reshape", "ravel": "reshape", "expand_dims": "reshape",
    "cat": "cat", "join": "cat", "interleave": "cat", "split": "split",
    "broadcast_to": "broadcast", "broadcast": "broadcast",
    "debug_barrier": "barrier", "inline_asm_elementwise": "inline_asm", "assume": "assume",
    "multiple_of": "hint", "max_contiguous": "hint", "max_constancy": "hint",
    "full": "constant", "zeros": "constant", "zeros_like": "constant", "full_like": "constant",
    "sort": "sort", "topk": "sort", "histogram": "histogram", "gather": "gather",
    "device_print": "debug", "device_assert": "debug", "make_block_ptr": "block_pointer", "advance": "block_pointer",
    "make_tensor_descriptor": "descriptor",
    "abs": "math", "floor": "math", "ceil": "math", "round": "math", "rint": "math", "nearbyint": "math", "trunc": "math", "fma": "math",
    "maximum": "math", "minimum": "math", "clamp": "math", "umulhi": "math", "isnan": "math", "isinf": "math",
}  # fmt: skip

# Positional parameters, to tell `tl.sum(x, 0)` from `tl.sum(x, axis=0)`.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "load": ("pointer", "mask", "other", "boundary_check", "padding_option", "cache_modifier", "eviction_policy", "volatile"),
    "store": ("pointer", "value", "mask", "boundary_check", "cache_modifier", "eviction_policy"),
    "atomic_cas": ("pointer", "cmp", "value", "sem", "scope"),
    "dot": ("a", "b", "acc", "input_precision", "allow_tf32", "max_num_imprecise_acc", "out_dtype"),
    "dot_scaled": ("a", "a_scale", "a_format", "b", "b_scale", "b_format", "acc"),
    "sum": ("x", "axis", "keep_dims", "dtype"),
    "max": ("x", "axis", "return_indices", "return_indices_tie_break_left", "keep_dims"),
    "min": ("x", "axis", "return_indices", "return_indices_tie_break_left", "keep_dims"),
    "argmax": ("x", "axis", "tie_break_left", "keep_dims"),
    "argmin": ("x", "axis", "tie_break_left", "keep_dims"),
    "reduce": ("x", "axis", "combine_fn", "keep_dims"),
    "xor_sum": ("x", "axis", "keep_dims"),
    "reduce_or": ("x", "axis", "keep_dims"),
    "softmax": ("x", "axis", "keep_dims", "ieee_rounding"),
    "cumsum": ("x", "axis", "reverse", "dtype"),
    "cumprod": ("x", "axis", "reverse"),
    "associative_scan": ("x", "axis", "combine_fn", "reverse"),
    "cast": ("x", "dtype", "fp_downcast_rounding", "bitcast"),
    "arange": ("start", "end"),
    "program_id": ("axis",),
    "num_programs": ("axis",),
    "where": ("condition", "x", "y"),
    "full": ("shape", "value", "dtype"),
    "zeros": ("shape", "dtype"),
    "zeros_like": ("x",),
    "full_like": ("x", "value"),
    "expand_dims": ("x", "axis"),
    "multiple_of": ("x", "values"),
    "max_contiguous": ("x", "values"),
    "max_constancy": ("x", "values"),
    "make_block_ptr": ("base", "shape", "strides", "offsets", "block_shape", "order"),
    "make_tensor_descriptor": ("base", "shape", "strides", "block_shape", "padding_option"),
    "advance": ("x", "offsets"),
    "inline_asm_elementwise": ("asm", "constraints", "args", "dtype", "is_pure", "pack"),
    "clamp": ("x", "min", "max"),
    "sort": ("x", "dim", "descending"),
    "gather": ("x", "index", "axis"),
}  # fmt: skip
PARAMETERS["to"] = PARAMETERS["cast"]
ATOMIC = ("pointer", "value", "mask", "sem", "scope")

# Keywords that call an operand by another name in some versions.
SYNONYMS = {"input": "x", "val": "value", "dim": "axis", "lhs": "a", "rhs": "b", "element_ty": "dtype"}

# The parameters that are operands; the others go to `detail`.
OPERANDS = {"x", "a", "b", "acc", "condition", "y", "value", "pointer", "base", "args", "a_scale", "b_scale", "index"}

REDUCTIONS = {"sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum", "reduce_or"}
METHODS = set(KINDS) - {"where", "zeros", "full", "arange", "program_id", "num_programs", "cdiv", "debug_barrier", "dot", "device_print"}


def parameters(function: str) -> tuple[str, ...]:
    """Names of the positional parameters of a `triton.language` function."""
    return ATOMIC if function.startswith("atomic_") and function != "atomic_cas" else PARAMETERS.get(function, ("x", "y", "z"))
