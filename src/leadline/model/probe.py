"""Counterfactual probes as pure data: facts to grant, the signature to watch, the direction expected."""

from leadline.model.base import Record


class Divisible(Record, frozen=True, tag="divisible"):
    """The integer or pointer argument is known to be a multiple of 16."""

    argument: str

    def describe(self) -> str:
        return f"{self.argument} % 16 == 0"


class Constant(Record, frozen=True, tag="constant"):
    """The argument is a constexpr with this value (its value in the launch when `value` is None)."""

    argument: str
    value: int | float | bool | None = None

    def describe(self) -> str:
        return f"{self.argument} constexpr" + ("" if self.value is None else f" = {self.value}")


class Option(Record, frozen=True, tag="option"):
    """A compile option: num_warps, num_stages, maxnreg."""

    name: str
    value: int

    def describe(self) -> str:
        return f"{self.name} = {self.value}"


class SourceEdit(Record, frozen=True, tag="source_edit"):
    """The kernel's file with this text instead; `label` says what was changed. Launch arguments are matched by name."""

    text: str
    label: str

    def describe(self) -> str:
        return self.label


Fact = Divisible | Constant | Option | SourceEdit


def moved(expect: str, before: int, after: int) -> bool:
    """Whether a signature moved as predicted; "zero" and "nonzero" also ask that it was not so before."""
    if expect == "decrease":
        return after < before
    if expect == "increase":
        return after > before
    return (before != 0 and after == 0) if expect == "zero" else (before == 0 and after != 0)


class Probe(Record, frozen=True):
    """Grant all `grants`, compile, and read `signature`; then leave one out at a time when there are several.

    `signature` is a counter name (see docs/signatures.md), optionally restricted to a source line. `stage` is where compiling stops:
    "ttgir" (0.1 s) or "sass" (the whole pipeline). `expect` is how the signature must move for the claim to hold.
    """

    claim: str
    grants: tuple[Fact, ...]
    signature: str
    expect: str = "decrease"  # decrease | increase | zero | nonzero
    line: int = 0
    stage: str = "ttgir"
    held_equal: tuple[str, ...] = ()
    launch: int = 0
