"""What the user asked for: `[tool.leadline]`, the environment, and the options record of each command.

Strongest first: command line, environment (`LEADLINE_HOME`, `NO_COLOR`), the nearest `pyproject.toml`, defaults.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from leadline.errors import UsageError
from leadline.model.base import Record

LEVELS = ("auto", "1", "2", "3", "4")
PROPOSERS = ("rules", "search")
DEVICES = ("auto", "none")
DEFAULT_BUDGET_S = 300.0
DEFAULT_ROUNDS = 8
DEFAULT_THRESHOLD = 1.02

Progress = Callable[[str, int, int], None]
"""`progress(stage, done, total)`: called by the pipeline as work goes on; `total` is 0 while it is unknown."""


class Settings(Record, frozen=True):
    """`[tool.leadline]` of the nearest pyproject.toml upward of the target, completed from environment and defaults.

    `budget_s` is in seconds; `threshold` is the smallest speedup worth accepting (1.02 = 2 % faster); `source` is the
    file read, "" when there is none.
    """

    target: str = "cuda:90"
    level: str = "auto"
    budget_s: float = DEFAULT_BUDGET_S
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    proposers: tuple[str, ...] = ("rules", "search")
    threshold: float = DEFAULT_THRESHOLD
    home: str = ""
    color: bool = True
    source: str = ""


class DiagnoseOptions(Record, frozen=True):
    """One `leadline diagnose`. `target_file` is TARGET as typed: `file.py`, `file.py::kernel`, recorded case, run id.

    `case_file` is the file that holds CASES when it is not the target itself; `case` is a name in CASES, "" for the
    first. `level` is "auto" or the level asked for by number; `device` is "auto", or "none" to leave a device alone.
    """

    target_file: str
    case_file: str = ""
    case: str = ""
    level: str = "auto"
    target: str = "cuda:90"
    profile: str = ""
    device: str = "auto"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    threshold: float = DEFAULT_THRESHOLD
    home: str = ""


class OptimizeOptions(DiagnoseOptions, frozen=True):
    """One `leadline optimize`. `output` and `write` say where the accepted file goes; the command line writes it."""

    budget_s: float = DEFAULT_BUDGET_S
    rounds: int = DEFAULT_ROUNDS
    proposers: tuple[str, ...] = ("rules", "search")
    output: str | None = None
    write: bool = False
    allow_numerics: bool = False


class VerifyOptions(Record, frozen=True):
    """One `leadline verify OLD NEW`: the judge alone."""

    old: str
    new: str
    case_file: str = ""
    case: str = ""
    target: str = "cuda:90"
    device: str = "auto"
    threshold: float = DEFAULT_THRESHOLD
    allow_numerics: bool = False
    first_call: bool = False  # judge the first call with an empty compile cache in place of the steady state
    home: str = ""


def seconds(text: str, *, where: str = "--budget") -> float:
    """Seconds of a duration such as `60s`, `5m`, `1h`, `1m30s` or a bare number; UsageError when it is none."""
    stripped = text.strip().lower()
    total = 0.0
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        total = float(stripped)
    elif re.fullmatch(r"(\d+(\.\d+)?(h|m|s))+", stripped):
        unit = {"h": 3600.0, "m": 60.0, "s": 1.0}
        total = sum(float(number) * unit[letter] for number, _, letter in re.findall(r"(\d+(\.\d+)?)([hms])", stripped))
    if total <= 0:
        raise UsageError(f"'{text}' is not a duration", where=where, remedy="write it as 60s, 5m or 1m30s")
    return total


def closest(word: str, words: tuple[str, ...] | list[str]) -> str:
    """The entry of `words` most like `word` (case ignored), "" when none is near."""
    lowered = {w.lower(): w for w in words}
    found = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.5)
    return lowered[found[0]] if found else ""


def choice(value: str, allowed: tuple[str, ...], *, where: str) -> str:
    """`value` when it is one of `allowed`; UsageError naming the closest otherwise."""
    if value in allowed:
        return value
    near = closest(value, allowed)
    remedy = f"did you mean '{near}'?" if near else f"choose one of {', '.join(allowed)}"
    raise UsageError(f"'{value}' is not known", where=where, remedy=remedy)


def check_target(value: str, *, where: str = "--target") -> str:
    """A compile target, `backend:architecture`; UsageError when it has another form. Back-ends say which they know."""
    if re.fullmatch(r"[a-z]+:[A-Za-z0-9_]+", value):
        return value
    raise UsageError(
        f"'{value}' is not a target", where=where, remedy="write it as backend:architecture, for example cuda:90"
    )


def default_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where runs, artefacts and caches live: `LEADLINE_HOME`, else `leadline` in the user cache folder; not created."""
    if chosen := environment.get("LEADLINE_HOME"):
        return Path(chosen).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "leadline"


def find_pyproject(start: Path) -> Path | None:
    """The nearest pyproject.toml with a `[tool.leadline]` table, from `start` upward."""
    here = start.resolve()
    for folder in (here, *here.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file() and "leadline" in _read(candidate).get("tool", {}):
            return candidate
    return None


def load(target: str | Path = ".", environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings that hold for `target` (a file, `file.py::kernel`, or a folder). UsageError names the wrong key."""
    path = Path(str(target).split("::", 1)[0])
    file = find_pyproject(path if path.is_dir() else path.parent)
    values: dict[str, Any] = {}
    if file is not None:
        values = _validated(_read(file)["tool"]["leadline"], str(file))
        if home := values.get("home"):
            values["home"] = str((file.parent / Path(home).expanduser()).resolve())
    if environment.get("LEADLINE_HOME") or not values.get("home"):
        values["home"] = str(default_home(environment))
    values["color"] = not environment.get("NO_COLOR")
    return Settings(**values, source=str(file) if file else "")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not valid TOML: {error}", where=str(file), remedy="correct the file") from None
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(file), remedy="make the file readable"
        ) from None


KEYS: dict[str, str] = {
    "target": "text", "level": "text", "budget": "duration", "select": "list", "ignore": "list", "proposers": "list",
    "threshold": "number", "home": "text",
}  # fmt: skip


def _validated(table: object, file: str) -> dict[str, Any]:
    """Field name of `Settings` -> value, from the raw table."""
    if not isinstance(table, dict):
        raise UsageError("tool.leadline is not a table", where=file, remedy="write [tool.leadline] and keys below it")
    out: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{file}: tool.leadline.{key}"
        if key not in KEYS:
            near = closest(key, list(KEYS))
            remedy = f"did you mean '{near}'?" if near else f"valid keys are {', '.join(KEYS)}"
            raise UsageError(f"unknown key '{key}'", where=f"{file}: tool.leadline", remedy=remedy)
        match KEYS[key]:
            case "text":
                # `level = 2` reads naturally; it means the text "2".
                if key == "level" and isinstance(value, int) and not isinstance(value, bool):
                    value = str(value)
                out[key] = _typed(value, str, "a string", where)
            case "duration":
                number = isinstance(value, int | float) and not isinstance(value, bool)
                out["budget_s"] = seconds(
                    str(value) if number else _typed(value, str, "a duration", where), where=where
                )
            case "number":
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise UsageError("must be a number", where=where, remedy="correct its type")
                if value < 1.0:
                    raise UsageError(
                        f"{value} is below 1.0", where=where, remedy="give the smallest speedup to accept, such as 1.02"
                    )
                out[key] = float(value)
            case "list":
                items = _typed(value, list, "a list of strings", where)
                out[key] = tuple(_typed(item, str, "a list of strings", where) for item in items)
    if "level" in out:
        choice(out["level"], LEVELS, where=f"{file}: tool.leadline.level")
    if "target" in out:
        check_target(out["target"], where=f"{file}: tool.leadline.target")
    return out


def _typed(value: Any, kind: type, name: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise UsageError(f"must be {name}", where=where, remedy="correct its type")
    return value
