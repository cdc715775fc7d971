"""Suppression comments: `# leadline: ignore[MEM101, tail-wave] reason`, on the line or on a comment line above it."""

import re

_COMMENT = re.compile(r"#\s*leadline:\s*ignore\[([^\]]*)\]")


def suppressions(lines: list[str]) -> dict[int, tuple[str, ...]]:
    """1-based line -> codes or slugs ignored there. A comment on its own line counts for the next line that is not a comment."""
    found: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(lines, 1):
        match = _COMMENT.search(line) if "leadline" in line else None
        if match is None:
            continue
        codes = tuple(c.strip() for c in match.group(1).split(",") if c.strip())
        at = number
        if line.lstrip().startswith("#"):
            while at < len(lines) and (lines[at - 1].lstrip().startswith("#") or not lines[at - 1].strip()):
                at += 1
        for place in dict.fromkeys((number, at)):
            found[place] = found.get(place, ()) + tuple(c for c in codes if c not in found.get(place, ()))
    return found
