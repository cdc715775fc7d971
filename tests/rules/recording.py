"""Where the recorded evidence of rule examples lives, and how it is made: `python -m tests.rules.recording [CODE ...]`.

A recording holds every answer that a diagnosis of the example was given on cuda:90, so the examples are tested without triton. Record
again when a rule asks for something new (a probe, say), or for another version of triton.
"""

import gzip
import re
import sys
import tempfile
from pathlib import Path

import msgspec

from leadline.diagnose.engine import Engine
from leadline.diagnose.gather import LiveGatherer, Workers
from leadline.diagnose.recorded import Recording, RecordingGatherer
from leadline.execution.store import Store
from leadline.ingest.case import read_target
from leadline.rules.base import Example, Rule, all_rules

FOLDER = Path(__file__).parent.parent / "data" / "examples"
TARGET = "cuda:90"
PLACE = "/examples"  # recordings speak of this folder, whatever machine they were made on


def slug(rule: Rule, example: Example) -> str:
    return rule.code + "_" + re.sub(r"[^a-z0-9]+", "_", example.title.lower()).strip("_")


def path_of(rule: Rule, example: Example) -> Path:
    return FOLDER / f"{slug(rule, example)}.json.gz"


def load(path: Path) -> Recording:
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Recording)


def record(rule: Rule, example: Example, workers: Workers) -> Recording:
    """Diagnose the example with this rule on a live compiler and keep all answers."""
    with tempfile.TemporaryDirectory() as folder:
        gather = live(Path(folder) / f"{slug(rule, example)}.py", example.before, workers)
        first, *others = gather.case.cases
        Engine(gather, [rule], target=TARGET, auto=False).run(first, others)
        text = msgspec.json.encode(gather.recording()).decode().replace(folder, PLACE)
    return msgspec.json.decode(text.encode(), type=Recording)


def live(file: Path, text: str, workers: Workers) -> RecordingGatherer:
    """Asks the compiler about this text, written to `file`, and keeps the answers."""
    file.write_text(text)
    case = read_target(str(file))
    return RecordingGatherer(LiveGatherer(case, workers, Store(file.parent), target=TARGET, versions={}), case, TARGET)


def main(codes: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = [(r, e) for r in all_rules() if not codes or r.code in codes for e in r.examples]
    kept = {path_of(r, e) for r in all_rules() for e in r.examples}
    for stale in set(FOLDER.glob("*.json.gz")) - kept:
        stale.unlink()
    for rule, example in wanted:
        with Workers(folder=str(FOLDER), device=False) as workers:
            plain = msgspec.to_builtins(record(rule, example, workers), str_keys=True)
        # mtime=0: recording the same thing twice gives the same bytes
        path_of(rule, example).write_bytes(gzip.compress(msgspec.json.encode(plain, order="deterministic"), mtime=0))
        print(f"{rule.code} {example.title}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
