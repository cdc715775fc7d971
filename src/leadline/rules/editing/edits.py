"""Edits of one text in original coordinates, applied together; lists are edited item by item."""

import ast
import difflib
from dataclasses import dataclass, field
from typing import cast

from leadline.rules.editing.layout import EditError, Layout, reindent

# Order of insertions at one offset: behind the line above, before this line, its indentation, the rest.
AFTER_LINE, BEFORE_LINE, INDENTATION, PLAIN = range(4)


@dataclass(frozen=True)
class TextEdit:
    start: int
    end: int
    text: str
    rank: int = PLAIN
    key: tuple[object, ...] = ()


@dataclass
class ListEdit:
    """Pending changes of the list whose opening bracket is at `bracket`; indices are of the original items (-1: in front)."""

    bracket: int
    replaced: dict[int, str] = field(default_factory=lambda: dict[int, str]())
    removed: set[int] = field(default_factory=lambda: set[int]())
    inserted: list[tuple[int, str, str]] = field(default_factory=lambda: list[tuple[int, str, str]]())  # (after which item, key, text)

    def insert(self, after: int, key: str, text: str) -> None:
        """Inserts `text` after item `after`; a second insertion under the same key replaces the first."""
        for index, (_, old, _) in enumerate(self.inserted):
            if old == key:
                self.inserted[index] = (after, key, text)
                return
        self.inserted.append((after, key, text))

    def render(self, layout: Layout) -> list[TextEdit]:
        items, close = layout.items(self.bracket)
        edits = [TextEdit(items[i].start, items[i].end, text) for i, text in self.replaced.items() if i not in self.removed]
        kept = [i for i in range(len(items)) if i not in self.removed]
        for index in sorted(self.removed):
            item = items[index]
            following = index + 1 < len(items) and (not kept or kept[-1] > index)
            if item.comment_after or (not following and (index == 0 or items[index - 1].comment_after or not kept)):
                edits.append(TextEdit(item.start, item.end_comma, ""))  # a comma left in front of the bracket is legal
            elif following:
                edits.append(TextEdit(item.start, items[index + 1].start, ""))
            else:
                edits.append(TextEdit(items[index - 1].end, item.end, ""))
        groups: dict[int, list[str]] = {}
        for after, _, text in self.inserted:
            anchor = max((k for k in kept if k <= after), default=-1)
            groups.setdefault(anchor, []).append(text)
        for anchor, texts in groups.items():
            joined = ", ".join(texts)
            if anchor >= 0:
                edits.append(TextEdit(items[anchor].end, items[anchor].end, f", {joined}"))
            elif kept:
                edits.append(TextEdit(items[0].start, items[0].start, f"{joined}, "))
            else:
                place = items[0].start if items else close
                edits.append(TextEdit(place, place, joined))
        return edits


class Edits:
    """A text and its pending edits. Every method takes places of the original text; `apply` gives the new text."""

    def __init__(self, text: str) -> None:
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise EditError(f"the text does not parse: {error}") from None
        if "\r" in text:
            raise EditError("the text has carriage returns; convert its line ends first")
        self.text, self.layout = text, Layout(text)
        self._edits: list[TextEdit] = []
        self._lists: dict[int, ListEdit] = {}
        self._deleted: set[ast.stmt] = set()
        self._blocks: dict[ast.stmt, list[ast.stmt]] = {}
        self._inside: dict[ast.stmt, ast.stmt | ast.ExceptHandler] = {}  # not for the module's own
        for node in ast.walk(self.tree):
            for name in ("body", "orelse", "finalbody"):
                block: list[ast.stmt] | object = getattr(node, name, None)
                if not isinstance(block, list):
                    continue
                members = [s for s in cast("list[ast.AST]", block) if isinstance(s, ast.stmt)]
                for statement in members:
                    self._blocks[statement] = members
                    if isinstance(node, (ast.stmt, ast.ExceptHandler)):
                        self._inside[statement] = node

    def replace(self, start: int, end: int, text: str, *, rank: int = PLAIN, key: tuple[object, ...] = ()) -> None:
        """Replaces the characters [start, end); an edit with the same non-empty key is superseded."""
        if key:
            self._edits = [e for e in self._edits if e.key != key]
        self._edits.append(TextEdit(start, end, text, rank, key))

    def list_edit(self, bracket: int) -> ListEdit:
        return self._lists.setdefault(bracket, ListEdit(bracket))

    # -- expressions

    def replace_expression(self, line: int, column: int, end_line: int, end_column: int, text: str) -> None:
        """Replaces a span given by 1-based lines and character columns, as in `model.Access`."""
        self.replace(self.layout.offset(line, column), self.layout.offset(end_line, end_column), text)

    def replace_node(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Replaces a node of `self.tree`."""
        self.replace(*self.layout.span(node), text)

    # -- statements

    def statement(self, line: int) -> ast.stmt:
        """The innermost statement that starts on `line`, else the innermost that covers it."""
        covering = [s for s in self._blocks if s.lineno <= line <= (s.end_lineno or s.lineno)]
        starting = [s for s in covering if s.lineno == line]
        if not covering:
            raise EditError(f"no statement at line {line}")
        if starting:  # the outermost of those that start here: `if x: y = 1` is one unit
            return min(starting, key=lambda s: (s.col_offset, -(s.end_lineno or 0)))
        return max(covering, key=lambda s: (s.lineno, s.col_offset))

    def _first_line(self, statement: ast.stmt) -> int:
        decorators = getattr(statement, "decorator_list", [])
        return min([statement.lineno, *(d.lineno for d in decorators)])

    def _own_lines(self, statement: ast.stmt) -> tuple[int, int]:
        """First and last line of a statement that shares them with no other."""
        first, last = self._first_line(statement), statement.end_lineno or statement.lineno
        before = self.layout.line_text(first)[: self.layout.span(statement)[0] - self.layout.offset(statement.lineno, 0)]
        behind = self.text[self.layout.span(statement)[1] : self.layout.next_line(last)].strip()
        if (first == statement.lineno and before.strip()) or (behind and not behind.startswith("#")):
            raise EditError(f"the statement at line {statement.lineno} shares its line with another")
        return first, last

    def replace_statement(self, line: int, text: str) -> None:
        """Replaces the statement at `line` by `text`, which may be several lines; a trailing comment stays."""
        statement = self.statement(line)
        start, end = self.layout.span(statement)
        decorators = getattr(statement, "decorator_list", [])
        start = min([start, *(self.layout.span(d)[0] - 1 for d in decorators)])  # with the "@"
        self.replace(start, end, reindent(text, self.layout.indentation(statement.lineno)).lstrip(" \t"))

    def insert_before(self, line: int, text: str) -> None:
        """Inserts lines before the statement at `line`, at its indentation."""
        statement = self.statement(line)
        first = self._first_line(statement)
        place = self.layout.offset(first, 0)
        self.replace(place, place, reindent(text, self.layout.indentation(first)) + "\n", rank=BEFORE_LINE)

    def insert_after(self, line: int, text: str) -> None:
        """Inserts lines behind the statement at `line` (behind its whole block when it is compound), at its indentation."""
        statement = self.statement(line)
        _, last = self._own_lines(statement)
        self._insert_behind_line(last, reindent(text, self.layout.indentation(statement.lineno)))

    def _insert_behind_line(self, line: int, text: str) -> None:
        place = self.layout.next_line(line)
        newline = "" if self.text[:place].endswith("\n") else "\n"
        self.replace(place, place, f"{newline}{text}\n", rank=AFTER_LINE)

    def delete_statement(self, line: int) -> None:
        """Deletes the statement at `line` with its line and trailing comment; a block left empty gets `pass`."""
        statement = self.statement(line)
        self._own_lines(statement)
        self._deleted.add(statement)

    def indent(self, first: int, last: int, levels: int = 1) -> None:
        """Indents the lines first..last (inclusive); negative levels dedent. Lines inside strings stay as they are."""
        unit = "    "
        for line in range(first, last + 1):
            place = self.layout.offset(line, 0)
            if not self.layout.line_text(line).strip() or self._in_string(place):
                continue
            if levels > 0:
                self.replace(place, place, unit * levels, rank=INDENTATION)
            else:
                width = len(unit) * -levels
                if not self.layout.line_text(line).startswith(" " * width):
                    raise EditError(f"line {line} cannot be dedented by {width} spaces")
                self.replace(place, place + width, "", rank=INDENTATION)

    def dedent(self, first: int, last: int, levels: int = 1) -> None:
        """Dedents the lines first..last (inclusive)."""
        self.indent(first, last, -levels)

    def wrap(self, first: int, last: int, header: str) -> None:
        """Puts the statements of the lines first..last into a block with this header, `if x:` for instance."""
        self.insert_before(first, header)
        self.indent(self._first_line(self.statement(first)), last)

    def _in_string(self, offset: int) -> bool:
        index = self.layout.token_at(offset) - 1
        return index >= 0 and self.layout.tokens[index].start < offset < self.layout.tokens[index].end

    def forget_inside(self, statements: list[ast.stmt]) -> None:
        """Drops the edits inside statements that are to be replaced or deleted as a whole."""
        spans = [self.layout.span(s) for s in statements]
        self._edits = [e for e in self._edits if not any(a <= e.start and e.end <= b for a, b in spans)]

    # -- result

    def _collected(self) -> list[TextEdit]:
        edits = [*self._edits, *(e for edit in self._lists.values() for e in edit.render(self.layout))]
        for statement in self._deleted:
            ancestor = self._inside.get(statement)
            while ancestor is not None and ancestor not in self._deleted:
                ancestor = self._inside.get(ancestor) if isinstance(ancestor, ast.stmt) else None
            if ancestor is not None:
                continue  # deleted with it
            block = self._blocks[statement]
            first, last = self._own_lines(statement)
            if statement is block[0] and all(s in self._deleted for s in block) and statement in self._inside:
                edits.append(TextEdit(*self.layout.span(statement), "pass"))
            else:
                edits.append(TextEdit(self.layout.offset(first, 0), self.layout.next_line(last), ""))
        return edits

    def apply(self) -> str:
        """The text with all edits made. Raises EditError (a ValueError) when edits overlap or the result does not parse."""
        ordered = sorted(enumerate(self._collected()), key=lambda p: (p[1].start, p[1].end > p[1].start, p[1].rank, p[0]))
        pieces: list[str] = []
        position = 0
        for _, edit in ordered:
            if edit.start < position:
                raise EditError(f"two edits overlap at line {self.layout.line_of(edit.start)}")
            pieces += [self.text[position : edit.start], edit.text]
            position = edit.end
        result = "".join((*pieces, self.text[position:]))
        try:
            ast.parse(result)
        except SyntaxError as error:
            raise EditError(f"the edits leave a text that does not parse: {error}") from None
        return result


def unified_diff(old: str, new: str, path: str) -> str:
    """The difference of two texts in unified format, "" when they are equal."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
