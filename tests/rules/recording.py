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

from leadline.diagnose.recorded import Recording
from leadline.model import KernelCase
from leadline.rules.base import Example, Rule, all_rules

FOLDER = Path(__file__).parent.parent / "data" / "examples"
PLACE = "/examples"  # recordings speak of this folder, whatever machine they were made on


def slug(rule: Rule, example: Example) -> str:
    return rule.code + "_" + re.sub(r"[^a-z0-9]+", "_", example.title.lower()).strip("_")


def path_of(rule: Rule, example: Example) -> Path:
    return FOLDER / f"{slug(rule, example)}.json.gz"


def load(path: Path) -> Recording:
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Recording)


def record(rule: Rule, example: Example) -> Recording:
    """Diagnose the example with this rule on a live compiler and keep all answers."""
    from leadline.diagnose.engine import Engine
    from leadline.diagnose.gather import LiveGatherer, Workers
    from leadline.diagnose.recorded import RecordingGatherer
    from leadline.execution.store import Store
    from leadline.ingest.case import read_target

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{slug(rule, example)}.py"
        file.write_text(example.before)
        case = read_target(str(file))
        names = case.cases
        with Workers(folder=folder, device=False) as workers:
            live = LiveGatherer(case, workers, Store(folder), target="cuda:90", versions={})
            gather = RecordingGatherer(live, case, "cuda:90")
            Engine(gather, [rule], target="cuda:90", auto=False).run(names[0], names[1:])
        text = msgspec.json.encode(gather.recording()).decode().replace(folder, PLACE)
    return msgspec.json.decode(text.encode(), type=Recording)


def case_of(rule: Rule, example: Example) -> KernelCase:
    return KernelCase(path=f"{PLACE}/{slug(rule, example)}.py", source=example.before, kernels=())


def main(codes: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = [(r, e) for r in all_rules() if not codes or r.code in codes for e in r.examples]
    kept = {path_of(r, e) for r in all_rules() for e in r.examples}
    for stale in set(FOLDER.glob("*.json.gz")) - kept:
        stale.unlink()
    for rule, example in wanted:
        plain = msgspec.to_builtins(record(rule, example), str_keys=True)
        # mtime=0: recording the same thing twice gives the same bytes
        path_of(rule, example).write_bytes(gzip.compress(msgspec.json.encode(plain, order="deterministic"), mtime=0))
        print(f"{rule.code} {example.title}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
