"""Compiler IR text turned into structure: operations, layouts, source locations. Knows MLIR, not Triton's Python."""
