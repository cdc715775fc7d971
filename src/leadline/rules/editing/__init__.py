"""Source editing for rewrites: minimal changes of a text, so that comments and formatting stay.

`SourceFile(text)` collects edits in places of the original text; `apply()` makes them all and checks that the result parses.
Whatever cannot be done raises `EditError`, a ValueError with a one-line message: a rule then offers no rewrite.
"""

from leadline.rules.editing.dataflow import Statement, dependents, free_name, invariant, names_in, sources, split, statements, substitute
from leadline.rules.editing.edits import unified_diff
from leadline.rules.editing.functions import Site
from leadline.rules.editing.guard import GuardEdits
from leadline.rules.editing.layout import EditError


class SourceFile(GuardEdits):
    """A file under edit: expressions, statements, functions and parameters, launches and grids, guards."""


__all__ = [
    "EditError", "Site", "SourceFile", "Statement", "dependents", "free_name", "invariant", "names_in", "sources", "split", "statements",
    "substitute", "unified_diff",
]  # fmt: skip
