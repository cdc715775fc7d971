"""Source text with exact excerpts of syntax nodes; columns are characters (`ast` counts UTF-8 bytes)."""

import ast


class Text:
    """A parsed file. `tree` is an empty module when the text does not parse."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        # Only these end a line for Python's tokenizer; str.splitlines would also cut at form feeds.
        self.lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.tree = ast.Module(body=[], type_ignores=[])

    def column(self, line: int, byte: int) -> int:
        """Character column of a UTF-8 byte column of a 1-based line."""
        content = self.lines[line - 1]
        return byte if content.isascii() else len(content.encode()[:byte].decode(errors="replace"))

    def place(self, node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
        """(line, column, end line, end column) in characters."""
        end = node.end_lineno or node.lineno
        return (node.lineno, self.column(node.lineno, node.col_offset), end, self.column(end, node.end_col_offset or 0))

    def of(self, node: ast.expr | ast.stmt | None) -> str:
        """The exact excerpt of `node`; synthesised nodes are unparsed."""
        if node is None:
            return ""
        if not hasattr(node, "lineno"):
            return ast.unparse(node)
        line, column, end, end_column = self.place(node)
        if line == end:
            return self.lines[line - 1][column:end_column]
        return "\n".join((self.lines[line - 1][column:], *self.lines[line : end - 1], self.lines[end - 1][:end_column]))
