"""Optimise slow kernels whose fix is known, on a device, and hold the result against the fix.

usage: pairs.py CASES_DIR -o results.json [--only ID,ID] [--jobs 6] [--budget 60s] [--leadline "leadline"]

CASES_DIR holds <id>.py, <id>_fixed.py and labels.json. Both the known fix and our candidate are judged against the slow kernel by
`leadline verify`'s and `leadline optimize`'s own judge: random ABBA order, cold L2, in one process. `share` is the part of the known fix's
log-gain that ours reaches. Nothing is left out: a crash or a rejected candidate counts as 1.0.
"""

import argparse
import concurrent.futures as cf
import datetime
import json
import math
import os
import pathlib
import shlex
import subprocess
import time


def call(command: list[str], timeout: float) -> tuple[dict | None, str, float]:
    began = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"time-out after {timeout} s", timeout
    try:
        return json.loads(done.stdout), "", time.time() - began
    except ValueError:
        return None, f"exit {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}", time.time() - began


def verdict_of(run: dict | None) -> dict | None:
    """The final judgement of a run: the last round against the original."""
    rounds = [
        r for r in (run or {}).get("rounds", []) if r["rewrite"] == "final" or (len(run["rounds"]) == 1 and run["command"] == "verify")
    ]
    return rounds[-1] if rounds else None


def gain(entry: dict | None) -> float:
    return entry["speedup"]["mid"] if entry and entry["verdict"] == "accepted" and entry["speedup"] else 1.0


def one(row: dict, args: argparse.Namespace) -> dict:
    slow, fixed = args.cases / f"{row['id']}.py", args.cases / f"{row['id']}_fixed.py"
    tool = shlex.split(args.leadline)
    out = args.output.parent / "candidates" / f"{row['id']}.py"
    out.parent.mkdir(parents=True, exist_ok=True)
    numerics = ["--allow-numerics"] if args.numerics else []
    first = ["--first-call"] if set(row["causes"]) == {"recompile_per_shape"} else []  # what is published there is the first call
    ours, trouble, seconds = call(
        [*tool, "optimize", str(slow), "--budget", args.budget, *numerics, "-o", str(out), "--json"], args.timeout
    )
    mine = verdict_of(ours)
    if row["id"] in args.kept:  # judged before, by the same judge on the same device and versions
        known, known_verdict = args.kept[row["id"]]["known_fix"], args.kept[row["id"]]["known_fix_verdict"]
    else:
        fix, fix_trouble, _ = call([*tool, "verify", str(slow), str(fixed), *first, "--allow-numerics", "--json"], args.timeout)
        theirs = verdict_of(fix)
        known = theirs["speedup"]["mid"] if theirs and theirs["speedup"] else row["h200"]["gain"]
        known_verdict = f"{theirs['verdict']}: {theirs['reason']}" if theirs else fix_trouble
    reached = gain(mine)
    details = (mine or {}).get("details") or {}
    return {
        "id": row["id"], "initial_us": sum((details.get("original_us") or {}).values()) or None, "known_fix": known,
        "known_fix_verdict": known_verdict,
        "published_gain": row["h200"]["gain"], "ours": reached, "interval": (mine or {}).get("speedup"),
        "verdict": f"{mine['verdict']}: {mine['reason']}" if mine else (trouble or "no rewrite was accepted"),
        "share": math.log(reached) / math.log(known) if known > 1.02 else None,
        "accepted": [r["rewrite"] for r in (ours or {}).get("rounds", []) if r["verdict"] == "accepted" and r["rewrite"] != "final"],
        "titles": [(ours or {})["rewrites"][r["rewrite"]]["title"] if r["rewrite"] in (ours or {})["rewrites"] else r["rewrite"]
                for r in (ours or {}).get("rounds", []) if r["verdict"] == "accepted" and r["rewrite"] != "final"],
        "rounds": [[r["rewrite"], r["verdict"], r["reason"][:120]] for r in (ours or {}).get("rounds", [])],
        "findings": [[f["rule"], f["cause"], f["grade"], f["estimate"]] for f in (ours or {}).get("findings", [])][:5],
        "seconds": round(seconds, 1), "device": (ours or {}).get("device"), "versions": (ours or {}).get("versions"), "trouble": trouble,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--timeout", type=float, default=280)
    parser.add_argument("--leadline", default="leadline")
    parser.add_argument("--numerics", action="store_true", help="pass --allow-numerics (reassociated sums)")
    parser.add_argument("--known", type=pathlib.Path, help="take the known fixes' gains from this earlier results file")
    args = parser.parse_args()
    args.kept = {e["id"]: e for e in json.loads(args.known.read_text())["results"]} if args.known else {}
    rows = [r for r in json.loads((args.cases / "labels.json").read_text()) if not args.only or r["id"] in args.only.split(",")]
    results: dict[str, dict] = {}
    with cf.ThreadPoolExecutor(args.jobs) as pool:
        for done in cf.as_completed([pool.submit(one, row, args) for row in rows]):
            entry = done.result()
            results[entry["id"]] = entry
            print(f"{entry['id']:16s} fix {entry['known_fix']:6.2f}x  ours {entry['ours']:6.2f}x  share "
                  f"{'-' if entry['share'] is None else format(entry['share'], '5.2f')}  {entry['seconds']:5.0f} s  "
                  f"{', '.join(entry['titles'])[:90]}  [{entry['verdict'][:60]}]", flush=True)  # fmt: skip
            flag = (" --numerics" if args.numerics else "") + (f" --known {args.known.name}" if args.known else "")
            body = {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "host_cores": os.cpu_count(),
                "command": f"python benchmarks/pairs.py CASES -o {args.output.name} --budget {args.budget}{flag}",
                "results": [results[k] for k in sorted(results)],
            }
            args.output.write_text(json.dumps(body, indent=1))
    shares = [e["share"] for e in results.values() if e["share"] is not None]
    print(f"{sum(s >= 0.8 for s in shares)} of {len(shares)} reach 80 % of the known fix's log-gain; "
          f"{sum(e['ours'] < 0.99 for e in results.values())} slower than the original")  # fmt: skip


if __name__ == "__main__":
    main()
