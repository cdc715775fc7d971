"""Write the table of a pairs run as Markdown: table.py results.json [labels.json]."""

import json
import pathlib
import sys


def main() -> None:
    body = json.loads(pathlib.Path(sys.argv[1]).read_text())
    labels = {r["id"]: r for r in json.loads(pathlib.Path(sys.argv[2]).read_text())} if len(sys.argv) > 2 else {}
    print("| pair | initial, us | known fix | ours | interval | share of log-gain | what was accepted, in order |")
    print("|---|---|---|---|---|---|---|")
    for entry in body["results"]:
        slow = entry["initial_us"] or labels.get(entry["id"], {}).get("h200", {}).get("slow_ms", 0) * 1e3
        mark = "" if entry["initial_us"] else "*"
        interval = entry["interval"] if entry["ours"] != 1.0 else None
        low_high = f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else "-"
        share = "-" if entry["share"] is None else f"{entry['share']:.2f}"
        done = "; ".join(dict.fromkeys(entry["titles"])) or f"none ({entry['verdict'][:70]})"
        print(f"| {entry['id']} | {slow:.1f}{mark} | {entry['known_fix']:.2f}x | {entry['ours']:.2f}x | {low_high} | {share} | {done} |")


if __name__ == "__main__":
    main()
