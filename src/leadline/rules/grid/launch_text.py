"""Edits of a kernel and of its launches as text: offsets of syntax nodes, launch statements, grids, arguments, options."""

import ast

from leadline.model import KernelFacts, Launch
from leadline.rules.base import View
from leadline.rules.grid.body import callee


class Text:
    """A file's text with its syntax tree; edits are collected and applied at once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[tuple[int, int, str]] = []

    def offset(self, line: int, column: int) -> int:
        """Character offset of a 1-based line and a UTF-8 column."""
        whole = self.lines[line - 1]
        return self.starts[line - 1] + (column if whole.isascii() else len(whole.encode()[:column].decode()))

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> tuple[int, int]:
        """Character offsets of a node."""
        return self.offset(node.lineno, node.col_offset), self.offset(
            node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        )

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        """The node's text as it is written."""
        start, end = self.span(node)
        return self.text[start:end]

    def replace(self, node: ast.expr | ast.stmt | ast.keyword, text: str) -> None:
        """Put `text` in the place of the node."""
        start, end = self.span(node)
        self.edits.append((start, end, text))

    def insert(self, at: int, text: str) -> None:
        """Put `text` at a character offset."""
        self.edits.append((at, at, text))

    def indent(self, statement: ast.stmt) -> str:
        """The white space in front of a statement."""
        line = self.lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def block(self, statements: list[ast.stmt]) -> tuple[int, int]:
        """Offsets of whole lines of consecutive statements, comments between them included."""
        return self.starts[statements[0].lineno - 1], self.starts[min(statements[-1].end_lineno or 0, len(self.lines))]

    def result(self) -> str | None:
        """The text after all edits; None when two overlap, nothing changed, or the result does not parse."""
        out: list[str] = []
        at = 0
        for start, end, new in sorted(self.edits, key=lambda e: (e[0], e[1])):
            if start < at:
                return None
            out += [self.text[at:start], new]
            at = end
        result = "".join([*out, self.text[at:]])
        try:
            ast.parse(result)
        except SyntaxError:
            return None
        return result if result != self.text else None


def opened(view: View, *files: str) -> Text | None:
    """The file under diagnosis as text, when kernel and wrapper (`files`) both live in it."""
    path = view.source.path
    if any(f and f != path for f in files) or not view.text(path):
        return None
    try:
        return Text(view.text(path))
    except SyntaxError:
        return None


def kernel_in(text: Text, facts: KernelFacts) -> ast.FunctionDef | None:
    """The kernel's definition in this tree; None for an autotuned or heuristic kernel, whose constants live in its decorators."""
    found = [n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef) and n.name == facts.name]
    if len(found) != 1 or any("autotune" in ast.unparse(d) or "heuristics" in ast.unparse(d) for d in found[0].decorator_list):
        return None
    return found[0]


def launches_of(text: Text, kernel: str) -> list[ast.Call]:
    """All `kernel[grid](...)` calls of the file."""
    return [
        n
        for n in ast.walk(text.tree)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Subscript)
        and isinstance(n.func.value, ast.Name)
        and n.func.value.id == kernel
    ]


def launch_at(text: Text, launch: Launch) -> ast.Call | None:
    """The call that made this launch: the one that spans its line, or the only one."""
    calls = launches_of(text, launch.kernel)
    at = [c for c in calls if c.lineno <= launch.call_line <= (c.end_lineno or c.lineno)]
    return at[0] if len(at) == 1 else calls[0] if len(calls) == 1 else None


def enclosing(text: Text, node: ast.AST) -> ast.FunctionDef | None:
    """The innermost function around a node."""
    around = [f for f in ast.walk(text.tree) if isinstance(f, ast.FunctionDef) and any(n is node for n in ast.walk(f))]
    return max(around, key=lambda f: f.lineno, default=None)


def grid_of(text: Text, call: ast.Call) -> list[ast.expr] | None:
    """The axes of a launch's grid as nodes: of a tuple, of a name bound once to one, of a lambda that returns one; None otherwise."""
    node: ast.expr = call.func.slice if isinstance(call.func, ast.Subscript) else call
    if isinstance(node, ast.Name):
        function = enclosing(text, call)
        values = [
            n.value
            for n in ast.walk(function or text.tree)
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
        ]
        uses = [n for n in ast.walk(function or text.tree) if isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Load)]
        if len(values) != 1 or len(uses) != 1:
            return None
        node = values[0]
    if isinstance(node, ast.Lambda):
        node = node.body
    return list(node.elts) if isinstance(node, ast.Tuple) else None


def passed(call: ast.Call, kernel: ast.FunctionDef, parameter: str) -> ast.expr | None:
    """What a launch passes for a kernel parameter, by keyword or by position; None when it relies on the default."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    names = [a.arg for a in kernel.args.args]
    if any(isinstance(a, ast.Starred) for a in call.args) or parameter not in names:
        return None
    at = names.index(parameter)
    return call.args[at] if at < len(call.args) else None


def set_keyword(text: Text, call: ast.Call, name: str, value: str) -> None:
    """Give a keyword argument of a call another value, or add it at the end."""
    for keyword in call.keywords:
        if keyword.arg == name:
            text.replace(keyword.value, value)
            return
    last = max([*call.args, *[k.value for k in call.keywords]], key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0), default=None)
    if last is None:
        text.insert(text.span(call)[1] - 1, f"{name}={value}")
    else:
        text.insert(text.span(last)[1], f", {name}={value}")


class _OnHost(ast.NodeTransformer):
    """Puts a launch's arguments in the place of kernel parameters."""

    def __init__(self, text: Text, call: ast.Call, kernel: ast.FunctionDef) -> None:
        self.text, self.call, self.kernel, self.missing = text, call, kernel, False

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("tl", "triton"):
            return ast.Name("triton", ast.Load())
        given = passed(self.call, self.kernel, node.id)
        self.missing |= given is None
        return ast.parse(self.text.of(given), mode="eval").body if given is not None else node


def on_host(text: Text, call: ast.Call, kernel: ast.FunctionDef, expression: str) -> str | None:
    """An expression over kernel parameters in the words of a launch; None when it names anything else."""
    host = _OnHost(text, call, kernel)
    result = ast.unparse(host.visit(ast.parse(expression, mode="eval")))
    return None if host.missing else result


def with_arguments(view: View, launch: Launch, arguments: dict[str, str], options: dict[str, str]) -> str | None:
    """The file with other texts for some kernel parameters and launch options of one launch; None where that is not possible."""
    facts = view.kernel(launch)
    text = opened(view, launch.call_file)
    call = launch_at(text, launch) if text else None
    if text is None or call is None or facts is None or launch.variants > 1 or any("autotune" in d for d in facts.decorators):
        return None
    node = next((n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef) and n.name == facts.name), None)
    for name, value in arguments.items():
        given = passed(call, node, name) if node else next((k.value for k in call.keywords if k.arg == name), None)
        if given is None:
            return None
        text.replace(given, value)
    for name, value in options.items():
        set_keyword(text, call, name, value)
    return text.result()


def with_options(view: View, launch: Launch, options: dict[str, str]) -> str | None:
    """The file with other launch options (`num_warps`, ...) at one launch."""
    return with_arguments(view, launch, {}, options)


def with_literal(source: str, function: str, name: str, value: int) -> str | None:
    """The source with the integer that `function` assigns once to `name` replaced."""
    try:
        text = Text(source)
    except SyntaxError:
        return None
    owner = next((n for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef) and n.name == function), None)
    found = (
        [n for n in ast.walk(owner) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
        if owner
        else []
    )
    if len(found) != 1 or not isinstance(found[0].value, ast.Constant):
        return None
    text.replace(found[0].value, str(value))
    return text.result()


def bracketed(text: str) -> str:
    """The text, in parentheses unless it is a name, a number or a call."""
    node = ast.parse(text.strip(), mode="eval").body
    plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Subscript) or callee(node) or isinstance(node, ast.Call)
    return text if plain else f"({text})"
