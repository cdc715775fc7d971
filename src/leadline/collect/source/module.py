"""What a file defines and imports: which names mean triton, which functions are kernels."""

import ast
from dataclasses import dataclass, field

from leadline.collect.source.text import Text

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Used when a file does not say (snippets, star imports).
USUAL = {
    "tl": "triton.language", "triton": "triton", "torch": "torch", "libdevice": "triton.language.extra.libdevice",
    "tldevice": "triton.language.extra.libdevice", "F": "torch.nn.functional", "np": "numpy",
}  # fmt: skip


@dataclass
class Module:
    """Names of one file. `kernels` and `functions` map a name to its definition, the last one winning."""

    text: Text
    imports: dict[str, str] = field(default_factory=lambda: dict(USUAL))
    functions: dict[str, Function] = field(default_factory=dict)
    kernels: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # other name -> kernel
    constants: dict[str, ast.expr] = field(default_factory=dict)  # module-level assignments

    def resolve(self, node: ast.expr) -> str:
        """Dotted name with imports replaced: `tl.math.exp` -> triton.language.math.exp; "" when it is not a plain path."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))

    def kernel_name(self, name: str) -> str:
        return self.aliases.get(name, name)


def scan(text: Text) -> Module:
    """Reads imports, functions, classes and kernels of a file, at any nesting."""
    module = Module(text)
    functions: list[Function] = []
    for node in ast.walk(text.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    module.imports[alias.asname] = alias.name
                else:
                    module.imports[alias.name.split(".")[0]] = alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if node.module:
                    module.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, Function):
            functions.append(node)
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
    for node in text.tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            module.constants[name] = node.value
            path = module.resolve(node.value)
            if path.startswith("triton"):  # exp = tl.math.exp; jit = triton.jit
                module.imports[name] = path
    for function in sorted(functions, key=lambda f: f.lineno):
        module.functions[function.name] = function
        if any(is_jit(module, decorator) for decorator in function.decorator_list):
            module.kernels[function.name] = function
    for name, value in module.constants.items():
        target = _wrapped(module, value)
        if target in module.functions:
            module.kernels[target] = module.functions[target]
            module.aliases[name] = target
    return module


def is_jit(module: Module, decorator: ast.expr) -> bool:
    """Whether a decorator is `triton.jit`, under whatever name and with or without call parentheses."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    path = module.resolve(decorator)
    return path.startswith("triton") and path.rsplit(".", 1)[-1] == "jit"


def _wrapped(module: Module, value: ast.expr) -> str:
    """The function in `k = triton.jit(f)` or `k = triton.autotune(...)(triton.jit(f))`, or of a jitted function in `autotune(...)(f)`."""
    seen_triton = False
    while isinstance(value, ast.Call) and value.args:
        inner = value.func.func if isinstance(value.func, ast.Call) else value.func
        path = module.resolve(inner)
        if not (path.startswith("triton") and path.rsplit(".", 1)[-1] in ("jit", "autotune", "heuristics")):
            return ""
        seen_triton = True
        value = value.args[0]
    return value.id if seen_triton and isinstance(value, ast.Name) else ""
