"""Where things are in a text: offsets of syntax nodes, tokens, and the items of bracketed lists."""

import ast
import bisect
import io
import textwrap
import tokenize
from dataclasses import dataclass

OPEN, CLOSE = frozenset("([{"), frozenset(")]}")


class EditError(ValueError):
    """An edit cannot be made on this text, or two edits contradict each other. The message is one line."""


@dataclass(frozen=True)
class Token:
    text: str
    start: int
    end: int
    kind: int


@dataclass(frozen=True)
class Item:
    """One comma-separated item of a bracketed list; `end_comma` is behind its comma (equal to `end` when it has none)."""

    start: int
    end: int
    end_comma: int
    comment_after: bool  # a comment stands between this item and the next one or the bracket
    text: str

    @property
    def keyword(self) -> str:
        """The name in `name=value` of a call; "" for positional items."""
        name, equals, rest = self.text.partition("=")
        return name.strip() if equals and name.strip().isidentifier() and not rest.startswith("=") else ""

    @property
    def parameter(self) -> str:
        """The parameter's name in a definition, with its stars; "*" and "/" for the separators."""
        return self.text.split(":")[0].split("=")[0].strip()


class Layout:
    """Offsets (in characters) of one text. Lines are 1-based; columns are characters, 0-based."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0]
        for line in text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.starts.pop()
        self._tokens: list[Token] | None = None

    def offset(self, line: int, column: int) -> int:
        """Offset of a place given by line and character column."""
        if not 1 <= line <= len(self.starts):
            raise EditError(f"there is no line {line}")
        return self.starts[line - 1] + column

    def line_of(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def line_text(self, line: int) -> str:
        start = self.starts[line - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)]

    def indentation(self, line: int) -> str:
        content = self.line_text(line)
        return content[: len(content) - len(content.lstrip(" \t"))]

    def next_line(self, line: int) -> int:
        """Offset of the start of the line after `line` (the end of the text for the last one)."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """Offsets of a node; `ast` counts columns in UTF-8 bytes."""
        return self._byte(node.lineno, node.col_offset), self._byte(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _byte(self, line: int, column: int) -> int:
        content = self.line_text(line)
        if not content.isascii():
            column = len(content.encode()[:column].decode(errors="replace"))
        return self.starts[line - 1] + column

    def of(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    @property
    def tokens(self) -> list[Token]:
        if self._tokens is None:
            made: list[Token] = []
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.string.strip() and token.type != tokenize.INDENT:
                    start, end = self.offset(*token.start), self.offset(*token.end)
                    made.append(Token(token.string, start, end, token.type))
            self._tokens = made
        return self._tokens

    def token_at(self, offset: int) -> int:
        """Index of the first token that starts at or after `offset`."""
        return bisect.bisect_left(self.tokens, offset, key=lambda t: t.start)

    def bracket_after(self, offset: int, bracket: str = "(") -> int:
        """Offset of the first such bracket at or after `offset`."""
        for token in self.tokens[self.token_at(offset) :]:
            if token.text == bracket:
                return token.start
        raise EditError(f"no {bracket!r} after line {self.line_of(offset)}")

    def items(self, bracket: int) -> tuple[list[Item], int]:
        """(items, offset of the closing bracket) of the list whose opening bracket is at `bracket`."""
        found: list[Item] = []
        depth, start, end, lambdas = 0, -1, -1, 0
        pending: tuple[int, int, int] | None = None  # an item whose trailing comments are not yet seen
        comment = False

        def finish(has_comment: bool) -> None:
            nonlocal pending
            if pending is not None:
                found.append(Item(*pending, has_comment, self.text[pending[0] : pending[1]]))
                pending = None

        for token in self.tokens[self.token_at(bracket) :]:
            if depth == 0:
                depth = 1
                continue
            if token.kind == tokenize.COMMENT:
                comment = comment or depth == 1
                continue
            if depth == 1 and token.text in CLOSE:
                if start >= 0:
                    pending = (start, end, end)
                finish(comment)
                return found, token.start
            if depth == 1 and token.text == "," and not lambdas:
                pending, start, comment = (start, end, token.end), -1, False
                continue
            if start < 0:
                finish(comment)
                start = token.start
            comment = False
            depth += (token.text in OPEN) - (token.text in CLOSE)
            if depth == 1 and token.text == "lambda":
                lambdas += 1
            elif depth == 1 and token.text == ":" and lambdas:
                lambdas -= 1
            end = token.end
        raise EditError(f"the bracket at line {self.line_of(bracket)} is never closed")


def reindent(text: str, indentation: str) -> str:
    """`text` (any common indentation) with this indentation on every line that has content; no trailing newline."""
    lines = textwrap.dedent(text.strip("\n")).rstrip().split("\n")
    return "\n".join(indentation + line if line.strip() else "" for line in lines)
