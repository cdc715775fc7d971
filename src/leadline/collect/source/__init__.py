"""Level 1: facts of kernels and wrapper from the syntax tree alone. Nothing is imported or run."""

import ast
from collections.abc import Mapping

from leadline.collect.source.kernel import kernel_facts
from leadline.collect.source.module import Function, Module, scan
from leadline.collect.source.suppressions import suppressions
from leadline.collect.source.text import Text
from leadline.collect.source.wrapper import wrapper_facts
from leadline.model.case import KernelCase
from leadline.model.source import KernelFacts, SourceFacts

__all__ = ["read"]


def read(case: KernelCase, kernel_files: Mapping[str, str] = {}) -> SourceFacts:
    """Facts of every @triton.jit function of the case's file and of `kernel_files` (path -> text), and of its wrapper.

    Never raises on odd code: what is not understood yields fewer facts; a text that does not parse yields none.
    """
    main = scan(Text(case.path, case.source))
    modules = [main, *(scan(Text(path, text)) for path, text in kernel_files.items() if path != case.path)]
    kernels: dict[str, tuple[Module, Function]] = {}
    for module in reversed(modules):  # the case's own kernels win
        kernels |= {name: (module, function) for name, function in module.kernels.items()}
    ranks: dict[str, dict[str, int]] = {}
    facts: dict[tuple[str, str], KernelFacts] = {}
    pending = [(module, name) for module in modules for name in module.kernels]
    called = {c for module, name in pending for c in _mentioned(module.kernels[name], kernels) if c != name}
    # Callers first: a helper's parameters have the ranks that its callers pass.
    for module, name in sorted(pending, key=lambda p: p[1] in called):
        try:
            facts[module.text.path, name] = kernel_facts(module, kernels, name, ranks)
        except RecursionError:  # machine-made expressions thousands of terms deep
            facts[module.text.path, name] = _bare(module, name)
    order = [(m, n) for m in modules for n in sorted(m.kernels, key=lambda n: m.kernels[n].lineno)]
    return SourceFacts(
        path=case.path,
        kernels=tuple(facts[module.text.path, name] for module, name in order),
        wrapper=wrapper_facts(main, kernels, case.wrapper, case.kind),
        texts={module.text.path: module.text.text for module in modules},
        suppressions=suppressions(main.text.lines),
    )


def _mentioned(function: Function, kernels: Mapping[str, object]) -> set[str]:
    return {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in kernels}


def _bare(module: Module, name: str) -> KernelFacts:
    function = module.kernels[name]
    return KernelFacts(name=name, file=module.text.path, line=function.lineno, end_line=function.end_lineno or function.lineno)
