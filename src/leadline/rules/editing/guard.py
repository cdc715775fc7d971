"""Host guards: keep the original kernel and wrapper under other names and dispatch on a condition."""

import ast
from collections.abc import Iterable

from leadline.rules.editing.dataflow import free_name
from leadline.rules.editing.edits import AFTER_LINE, BEFORE_LINE, TextEdit
from leadline.rules.editing.functions import renamed_text
from leadline.rules.editing.launches import LaunchEdits
from leadline.rules.editing.layout import EditError, reindent


class GuardEdits(LaunchEdits):
    """Guards; see `SourceFile`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._guards: list[tuple[str, str, str]] = []

    def add_host_guard(self, function: str, condition: str, original_copy: str = "") -> None:
        """Makes `function` return what its original would unless `condition` holds on its arguments.

        The original is kept under `original_copy` (by default "<function>_original", or a free name like it) together with copies of
        every function on the way to a place that this file's edits touch. `function` may be "Class.method".
        """
        node = self.function(function)
        if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node)):
            raise EditError(f"{function} is a generator")
        self._guards.append((function, condition, original_copy))

    def guard_launch(self, line: int, condition: str) -> None:
        """Launches the edited kernel if `condition` holds there, else a kept copy of the original kernel with the original arguments."""
        site = self.launch(line)
        statement = self.statement(site.line)
        if not (isinstance(statement, ast.Expr) and statement.value is site.call):
            raise EditError(f"the launch at line {line} is not a statement of its own")
        original = self._copy_name(site.kernel, "")
        head = site.call.func
        assert isinstance(head, ast.Subscript)
        end = self.layout.span(site.call)[1]
        text = original + self.text[self.layout.span(head.value)[1] : end]
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        pad = self.layout.indentation(first)
        self.wrap(first, last, f"if {condition}:")
        # Continuation lines keep their place relative to the call.
        other = "\n".join(f"    {row}" if number else row for number, row in enumerate(text.split("\n")))
        self._insert_behind_line(last, f"{pad}else:\n{pad}    {other}")
        self._insert_behind_line(self.function(site.kernel).end_lineno or 0, self._copies({site.kernel: original}))

    def _copy_name(self, name: str, wanted: str) -> str:
        return wanted or free_name(f"{name.rpartition('.')[2]}_original", self.names())

    def _copies(self, mapping: dict[str, str]) -> str:
        texts = [renamed_text(self.function_text(name), mapping) for name in sorted(mapping, key=lambda n: self.function(n).lineno)]
        return "".join(f"\n\n{reindent(text, '')}\n" for text in texts)[:-1]

    def _touched(self, edits: Iterable[TextEdit]) -> set[str]:
        """Top-level functions (and "Class.method"s) that an edit lies in."""
        found: set[str] = set()
        edits = list(edits)
        for node in self.tree.body:
            inner = (
                [(f"{node.name}.{m.name}", m) for m in node.body if isinstance(m, ast.FunctionDef)]
                if isinstance(node, ast.ClassDef)
                else []
            )
            for name, function in [*inner, *([(node.name, node)] if isinstance(node, ast.FunctionDef) else [])]:
                start, end = self.layout.offset(self._first_line(function), 0), self.layout.span(function)[1]
                if any(start < e.start < end or (e.start == start and e.end > start) for e in edits):
                    found.add(name)
        return found

    def _collected(self) -> list[TextEdit]:
        edits = super()._collected()
        guards: list[TextEdit] = []
        for function, condition, wanted in self._guards:
            guards += self._rendered(function, condition, wanted, self._touched(edits))
        return [*edits, *guards]

    def _rendered(self, function: str, condition: str, wanted: str, touched: set[str]) -> list[TextEdit]:
        node = self.function(function)
        tops = {n.name: n for n in self.tree.body if isinstance(n, ast.FunctionDef)}
        owner, _, method = function.rpartition(".")
        uses = {n: {p.id for p in ast.walk(f) if isinstance(p, ast.Name) and p.id in tops} - {n} for n, f in tops.items()}
        needed = {n for n in touched if n in tops}
        while more := {n for n, used in uses.items() if used & needed} - needed:
            needed |= more
        reached = {p.id for p in ast.walk(node) if isinstance(p, ast.Name) and p.id in tops}
        while more := {m for n in reached for m in uses[n]} - reached:
            reached |= more
        if any(t.startswith(f"{owner}.") and t != function for t in touched) and owner:
            raise EditError(f"another method of {owner} is edited, which a guard in {function} cannot undo")
        mapping = {n: self._copy_name(n, "") for n in sorted(needed & reached) if n != function}
        copy = self._copy_name(function, wanted)
        if owner:
            text = renamed_text(self.function_text(function), mapping | {method: copy})
            mine = "\n" + reindent(text, self.layout.indentation(node.lineno))
            others = self._copies(mapping) if mapping else ""
        else:
            mapping[function] = copy
            mine, others = self._copies(mapping), ""
        place = self._guard_place(node)
        pad = self.layout.indentation(node.body[0].lineno) if node.body[0].lineno != node.lineno else ""
        if not pad:
            raise EditError(f"the body of {function} is on the line of its def")
        head = "self." if owner else ""
        call = f"{pad}if not ({condition}):\n{pad}    return {head}{copy}({_forwarded(node, bool(owner))})\n"
        end = self.layout.next_line(node.end_lineno or node.lineno)
        newline = "" if self.text[:end].endswith("\n") else "\n"
        made = [TextEdit(place, place, call, BEFORE_LINE), TextEdit(end, end, f"{newline}{mine}\n", AFTER_LINE)]
        if others:
            first = next(n for n in self.tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
            start = self.layout.offset(self._first_line(first), 0)
            made.append(TextEdit(start, start, f"{others.lstrip()}\n\n\n", BEFORE_LINE))
        return made

    def _guard_place(self, node: ast.FunctionDef) -> int:
        """Offset of the line behind a docstring."""
        first = node.body[0]
        doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        if doc and len(node.body) > 1:
            first = node.body[1]
        return self.layout.offset(self._first_line(first), 0)


def _forwarded(node: ast.FunctionDef, method: bool) -> str:
    """Arguments that pass a function's parameters on."""
    arguments = node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1 if method else 0 :]
    texts = [*positional, *([f"*{arguments.vararg.arg}"] if arguments.vararg else []), *(f"{a.arg}={a.arg}" for a in arguments.kwonlyargs)]
    return ", ".join([*texts, *([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])])
