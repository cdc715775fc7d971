"""Tensor types and layouts ("encodings") of the TritonGPU dialects, read from their printed form."""

import re

from leadline.model import Record

BITS = {"f64": 64, "i64": 64, "f32": 32, "i32": 32, "f16": 16, "bf16": 16, "i16": 16, "i8": 8, "i1": 1}
_SHAPE = re.compile(r"((?:\d+x)*)(.*)", re.S)
_HEAD = re.compile(r"#(?:ttg|ttng|triton_gpu|triton_nvidia_gpu|gluon)\.(\w+)")


class Layout(Record, frozen=True):
    """One encoding. Fields that its kind does not have are empty; `parent` is the text of a slice's or operand's parent."""

    kind: str  # blocked nvidia_mma slice dot_op swizzled_shared nvmma_shared linear amd_mfma tensor_memory ...
    text: str = ""
    size_per_thread: tuple[int, ...] = ()
    threads_per_warp: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    version: int = 0  # of nvidia_mma: 2 (mma.sync), 3 (wgmma); of amd_mfma its own
    instruction: tuple[int, ...] = ()
    vector: int = 0  # of swizzled_shared
    swizzle_bytes: int = 0  # of nvmma_shared
    transposed: bool = False
    parent: str = ""


class TensorType(Record, frozen=True):
    """`tensor<128x64xf16, #blocked>`, `!ttg.memdesc<...>` or a scalar type. `element` of a tensor of pointers is the pointee."""

    text: str
    kind: str  # tensor memdesc scalar
    shape: tuple[int, ...] = ()
    element: str = ""
    pointer: bool = False
    layout: str = ""  # alias or text

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def bits(self) -> int:
        """Width of one element in bits; 8 for the fp8 types, 0 when unknown."""
        return BITS.get(self.element, 8 if self.element.startswith("f8") else 0)


def parse_type(text: str) -> TensorType:
    """Read a printed type; anything that is neither a tensor nor a memory descriptor is a scalar."""
    text = text.strip()
    body = _body(text)
    bare = text.startswith("<")  # async copies print their memory descriptor without its name
    if not (text.startswith(("tensor<", "!ttg.memdesc<")) or bare) or body is None:
        pointer = re.fullmatch(r"!tt\.ptr<(\w+)(?:, \d+)?>", text)
        return TensorType(text=text, kind="scalar", element=pointer[1] if pointer else text, pointer=bool(pointer))
    parts = split_top(body)
    found = _SHAPE.match(parts[0])
    assert found is not None
    element = found[2].strip()
    pointer = re.fullmatch(r"!tt\.ptr<(\w+)(?:, \d+)?>", element)
    return TensorType(
        text=text,
        kind="tensor" if text.startswith("tensor") else "memdesc",
        shape=tuple(int(n) for n in found[1].split("x") if n),
        element=pointer[1] if pointer else element,
        pointer=bool(pointer),
        layout=parts[1].strip() if len(parts) > 1 else "",
    )


def parse_layout(text: str, aliases: dict[str, str] | None = None) -> Layout:
    """Read an encoding or an alias of one (`aliases`: `#blocked` -> text). An unknown form has kind "unknown"."""
    text = text.strip()
    text = (aliases or {}).get(text, text)
    head = _HEAD.match(text)
    if head is None:
        return Layout(kind="unknown", text=text)
    fields = dict(_fields(_body(text) or ""))
    return Layout(
        kind=head[1],
        text=text,
        size_per_thread=_ints(fields.get("sizePerThread")),
        threads_per_warp=_ints(fields.get("threadsPerWarp")),
        warps=_ints(fields.get("warpsPerCTA")),
        order=_ints(fields.get("order")),
        version=int(fields.get("versionMajor", fields.get("version", "0")) or 0),
        instruction=_ints(fields.get("instrShape")),
        vector=int(fields.get("vec", "0")),
        swizzle_bytes=int(fields.get("swizzlingByteWidth", "0")),
        transposed=fields.get("transposed", fields.get("isTransposed")) == "true",
        parent=fields.get("parent", ""),
    )


def root_layout(text: str, aliases: dict[str, str] | None = None) -> Layout:
    """The layout a slice or dot operand is cut from; the layout itself when it has no parent."""
    layout = parse_layout(text, aliases)
    while layout.parent:
        layout = parse_layout(layout.parent, aliases)
    return layout


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside all brackets and strings; `->` does not close a bracket."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        if quoted:
            continue
        if char in "([{<":
            depth += 1
        elif char in ")]}>" and not (char == ">" and i and text[i - 1] == "-"):
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _body(text: str) -> str | None:
    start, end = text.find("<"), text.rfind(">")
    return text[start + 1 : end] if 0 <= start < end else None


def _fields(body: str):
    for part in split_top(body.strip().removeprefix("{").removesuffix("}")):
        name, equals, value = part.partition("=")
        if equals:
            yield name.strip(), value.strip()


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"-?\d+", text or ""))
