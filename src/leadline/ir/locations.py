"""MLIR locations: the `#loc` alias table, and the chain of source frames an operation was inlined through."""

import os
import re

from leadline.model import Record

_FILE = re.compile(r'"([^"]*)":(\d+):(\d+)')
_NAME = re.compile(r'"[^"]*"\s*\(')
_ALIAS = re.compile(r"#loc\d*")


class Frame(Record, frozen=True):
    """One source position; lines are 1-based."""

    file: str
    line: int
    column: int = 0


class Locations:
    """Resolves location texts (`#loc12`, `loc(callsite(#loc1 at #loc2))`, `"x"("f.py":3:4)`) to source frames.

    `aliases` maps `#locN` to the text between its parentheses.
    """

    def __init__(self, aliases: dict[str, str]) -> None:
        self._aliases = aliases
        self._resolved: dict[str, tuple[Frame, ...]] = {}

    @classmethod
    def of_text(cls, text: str) -> "Locations":
        """The table at the end (and start) of a module printed with debug info."""
        return cls(dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M)))

    def frames(self, text: str) -> tuple[Frame, ...]:
        """Frames of a location, innermost first, then its callers; empty when it is unknown."""
        text = text.strip()
        if text.startswith("loc(") and text.endswith(")"):
            text = text[4:-1]
        if text not in self._resolved:
            self._resolved[text] = ()  # a cycle, which MLIR never prints, would end here
            self._resolved[text] = self._resolve(text)
        return self._resolved[text]

    def line_in(self, text: str, file: str) -> int:
        """The line of `file` this location belongs to: its own, or that of the nearest caller in `file`; 0 when none is."""
        return line_in(self.frames(text), file)

    def _resolve(self, text: str) -> tuple[Frame, ...]:
        if text in self._aliases:
            return self.frames(self._aliases[text])
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            return self.frames(callee) + self.frames(caller)
        if text.startswith("fused"):
            # A fused location stands for several operations; the first that has a line names it.
            inner = text[text.find("[") + 1 : text.rfind("]")]
            return next((found for part in _split_top(inner, ",") if (found := self.frames(part))), ())
        if named := _NAME.match(text):
            return self.frames(text[named.end() : -1])
        if direct := _FILE.match(text):
            return (Frame(file=direct[1], line=int(direct[2]), column=int(direct[3])),)
        return ()


def line_in(frames: tuple[Frame, ...], file: str) -> int:
    """The line of the first frame in `file`, compared by path; 0 when no frame is in it."""
    return next((frame.line for frame in frames if same_file(frame.file, file)), 0)


def same_file(left: str, right: str) -> bool:
    """Whether two printed paths name one file (relative and absolute spellings of it included)."""
    return left == right or (os.path.basename(left) == os.path.basename(right) and os.path.realpath(left) == os.path.realpath(right))


def _split_top(text: str, separator: str) -> list[str]:
    parts, depth, start, quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([<":
            depth += 1
        elif char in ")]>":
            depth -= 1
        elif depth == 0 and text.startswith(separator, i):
            parts.append(text[start:i])
            start = i + len(separator)
    return [*parts, text[start:]]


def _split_callsite(text: str) -> tuple[str, str]:
    parts = _split_top(text, " at ")
    return parts[0], " at ".join(parts[1:])
