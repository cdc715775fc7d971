#!/usr/bin/env python3
"""Diagnose every case file of this folder and keep a summary.

usage: run.py [--level 4] [--target cuda:90] [--only NAME,NAME] [--keep DIR] [-o benchmarks/results/field_cuda90.json]

The kernels are those of the installed packages liger-kernel and conch-triton-kernels. Nothing here is measured: times are predicted.
`--keep` writes the whole run of each case into DIR. Exit status 1 when a case crashed, reported errors, or gave no findings list.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
PACKAGES = ("liger-kernel", "conch-triton-kernels", "triton", "torch")


def shown(path: str) -> str:
    """A file's name as the package knows it: the part after site-packages, or the case file's own name."""
    return path.rsplit("site-packages/", 1)[-1] if "site-packages/" in path else pathlib.Path(path).name


def row(path: pathlib.Path, level: str, target: str, keep: pathlib.Path | None) -> dict:
    """One case: exit status, levels passed, predicted floor and findings."""
    started = time.time()
    command = [sys.executable, "-m", "leadline", "diagnose", str(path), "--level", level, "--target", target, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    out: dict = {"case": path.stem, "exit": done.returncode, "seconds": round(time.time() - started, 1), "findings": []}
    try:
        run = json.loads(done.stdout)
        if "levels" not in run:
            raise ValueError(done.stdout)
    except ValueError as error:
        return {**out, "trouble": (done.stderr.strip() or str(error).strip())[-300:]}
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{path.stem}.json").write_text(done.stdout)
    out["levels"] = [level["level"] for level in run["levels"]]
    out["errors"] = run["errors"]
    out["limit"] = run["limit"] and {k: run["limit"][k] for k in ("bound", "floor_us", "predicted")}
    out["unavailable"] = [entry["what"] for entry in run["unavailable"]]
    out["refuted"] = sorted({entry["rule"] for entry in run["refuted"]})
    out["findings"] = [
        {
            "rule": found["rule"],
            "cause": found["cause"],
            "grade": found["grade"],
            "place": f"{shown(found['file'])}:{found['line']}",
            "predicted": found["estimate"],
            "summary": found["summary"],
        }
        for found in run["findings"]
    ]
    return out


def line(last: dict) -> str:
    """A row in one line for a person."""
    found = ", ".join(f"{f['rule']} {f['grade']} {f['predicted']['low']:.2f}-{f['predicted']['high']:.2f}" for f in last["findings"])
    trouble = last.get("trouble") or "; ".join(last.get("errors", ()))
    shown_trouble = f"  TROUBLE {trouble}" if trouble else ""
    return f"{last['case']:28s} exit {last['exit']} {last['seconds']:6.1f} s  {found or 'nothing found'}{shown_trouble}"


def main() -> int:
    """Run all cases, print one line each, write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="4")
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    args = parser.parse_args()
    chosen = {name for name in args.only.split(",") if name}
    files = [p for p in sorted(HERE.glob("*.py")) if p.name != "run.py" and (not chosen or p.stem in chosen)]
    rows = []
    for path in files:
        rows.append(row(path, args.level, args.target, args.keep))
        print(line(rows[-1]), flush=True)
    if args.output:
        versions = {name: importlib.metadata.version(name) for name in PACKAGES}
        summary = {"target": args.target, "level": args.level, "device": None, "versions": versions, "rows": rows}
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(summary, indent=1) + "\n")
    return int(any(r["exit"] or r.get("errors") or r.get("trouble") for r in rows))


if __name__ == "__main__":
    sys.exit(main())
