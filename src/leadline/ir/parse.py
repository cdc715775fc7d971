"""MLIR text -> operations. The only place that touches tree-sitter.

Only text whose grammar the parser accepts becomes an operation. Lines it could not read are listed in `Module.unread`, so that a
reader says "line 12 could not be read" instead of guessing; nesting is reliable only when there are none. A matrix product's ttgir
(23 KB, 180 operations) takes about 20 ms.
"""

import functools
import re
from typing import TYPE_CHECKING

from leadline.ir.locations import Locations
from leadline.model import Record

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

LOOPS = ("scf.for", "scf.while")


class Op(Record, frozen=True):
    """One operation. `types` are all printed types in order, `result_types` those of its results where they are printed.

    `location` is the text inside `loc(...)`; `row` the 1-based line of the text; `parent` the index of the operation whose region
    holds it (-1 at the top); `depth` counts enclosing operations and `loop_depth` the loops among them.
    """

    name: str
    results: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    result_types: tuple[str, ...] = ()
    attributes: dict[str, str] = {}
    location: str = ""
    row: int = 0
    depth: int = 0
    loop_depth: int = 0
    parent: int = -1
    text: str = ""  # the operation's own first line, without its location

    @property
    def short_name(self) -> str:
        """The name without its dialect: tt.load -> load."""
        return self.name.split(".", 1)[-1]


class Module:
    """All operations of one module text, in order, with its layout aliases and locations."""

    def __init__(self, ops: tuple[Op, ...], aliases: dict[str, str], locations: Locations, unread: tuple[int, ...]) -> None:
        self.ops, self.aliases, self.locations, self.unread = ops, aliases, locations, unread
        self._definitions = {result: op for op in ops for result in op.results}

    def definition(self, value: str) -> Op | None:
        """The operation that defines `%value`; None for a block argument. Names are unique within one function."""
        return self._definitions.get(value.split("#")[0])

    def named(self, *names: str) -> tuple[Op, ...]:
        """Operations with one of these full names."""
        return tuple(op for op in self.ops if op.name in names)

    def line(self, op: Op, file: str) -> int:
        """The line of `file` that `op` belongs to, through inlined calls; 0 when unknown."""
        return self.locations.line_in(op.location, file)


@functools.cache
def _parser() -> "Parser":
    import tree_sitter_mlir
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_mlir.language()))


def parse(text: str) -> Module:
    """Parse one module as Triton prints it. Never raises: unreadable lines are in `unread` (1-based)."""
    data = text.encode()
    root = _parser().parse(data).root_node
    builder = _Builder(data)
    if root.has_error:
        builder.broken = True
        builder.collect_errors(root)
    builder.walk(root, 0, 0, -1)
    aliases = dict(re.findall(r"^(#\w+) = (#.*)$", text, re.M))
    return Module(tuple(builder.ops), aliases, Locations.of_text(text), tuple(sorted(builder.unread)))


class _Builder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ops: list[Op] = []
        self.unread: set[int] = set()
        self.broken = False  # error recovery puts operations anywhere, so everything is searched; nesting is then unreliable

    def text(self, node: "Node") -> str:
        return self.data[node.start_byte : node.end_byte].decode().strip()

    def collect_errors(self, node: "Node") -> None:
        if node.is_error or node.is_missing:
            self.unread.add(node.start_point[0] + 1)
        for child in node.children:
            if child.has_error or child.is_error or child.is_missing:
                self.collect_errors(child)

    def walk(self, node: "Node", depth: int, loops: int, parent: int) -> None:
        for child in node.named_children:
            if child.type == "operation":
                self.operation(child, depth, loops, parent)
            elif self.broken or child.type in ("region", "block", "entry_block") or node.type == "toplevel":
                self.walk(child, depth, loops, parent)

    def operation(self, node: "Node", depth: int, loops: int, parent: int) -> None:
        results: tuple[str, ...] = ()
        location, body = "", None
        for child in node.named_children:
            if child.type == "op_result":
                results += tuple(self.text(use) for use in child.named_children if use.type == "value_use")
            elif child.type == "trailing_location":
                location = self.text(child)[len("loc(") : -1]
            elif child.type in ("custom_operation", "generic_operation"):
                body = child
        if body is None:
            self.unread.add(node.start_point[0] + 1)
            return
        if body.type == "custom_operation" and body.named_child_count == 1 and body.named_children[0].type.endswith("_operation"):
            body = body.named_children[0]  # builtin operations such as `module` have a rule of their own
        if _is_attribute(body):
            return
        index = len(self.ops)
        self.ops.append(self.describe(node, body, results, location, depth, loops, parent))
        inner = loops + (self.ops[index].name in LOOPS)
        for child in body.named_children:
            if child.type == "region" or self.broken:
                self.walk(child, depth + 1, inner, index)

    def describe(self, node: "Node", body: "Node", results: tuple[str, ...], location: str, depth: int, loops: int, parent: int) -> Op:
        operands: list[str] = []
        types: list[str] = []
        result_types: list[str] = []
        attributes: dict[str, str] = {}
        name, after_arrow, signature = "", False, None
        for child in body.children:
            kind = child.type
            if not name and kind in ("custom_op_name", "string_literal", "module", "bare_id"):
                name = self.text(child).strip('"')
            elif kind == "value_use":
                operands.append(self.text(child))
            elif kind in ("->", "to") or (kind == "bare_id" and self.text(child) == "to"):
                after_arrow = True
            elif kind == "type":
                types.append(self.text(child))
                if after_arrow:
                    result_types.append(types[-1])
            elif kind == "pretty_dialect_item_body" and types:
                types.append(self.text(child))
            elif kind in ("attribute", "dictionary_attribute", "properties"):
                self.entries(child, attributes)
            elif kind == "function_type":
                signature = self.text(child)
            elif kind == "region" and name in LOOPS:
                self.region_attributes(child, attributes)
        if name == "builtin.module":
            name = "module"
        if signature is not None:
            from leadline.ir.layouts import split_top

            inputs, _, outputs = signature.rpartition("->")
            result_types = [t.strip() for t in split_top(_strip_parentheses(outputs)) if t.strip()]
            types = [t.strip() for t in split_top(_strip_parentheses(inputs)) if t.strip()] + result_types
        if results and not result_types and types and name not in ("tt.load",):
            result_types = types[-1:]
        own = self.data[node.start_byte : node.end_byte].split(b"\n", 1)[0].decode().strip()
        return Op(
            name=name,
            results=tuple(r.split(":")[0] for r in results),
            operands=tuple(operands),
            types=tuple(types),
            result_types=tuple(result_types),
            attributes=attributes,
            location=location,
            row=node.start_point[0] + 1,
            depth=depth,
            loop_depth=loops,
            parent=parent,
            text=re.sub(r"\s*loc\(.*$", "", own),
        )

    def entries(self, node: "Node", into: dict[str, str]) -> None:
        for child in node.named_children:
            if child.type == "attribute_entry":
                key, equals, value = self.text(child).partition("=")
                into[key.strip().strip('"')] = value.strip() if equals else "true"
            else:
                self.entries(child, into)

    def region_attributes(self, node: "Node", into: dict[str, str]) -> None:
        # The grammar reads a loop's trailing `{tt.num_stages = 3 : i32}` as a region whose operations are entries.
        for block in node.named_children:
            for child in block.named_children:
                body = child.named_children[0] if child.type == "operation" and child.named_children else None
                if body is not None and _is_attribute(body):
                    key, _, value = self.text(child).partition("=")
                    into[key.strip()] = value.strip()


def _is_attribute(body: "Node") -> bool:
    return body.child_count > 1 and body.children[1].type == "=" and body.children[0].type == "custom_op_name"


def _strip_parentheses(text: str) -> str:
    text = text.strip()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
