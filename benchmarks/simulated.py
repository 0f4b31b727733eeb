"""The simulator for hours: seeds in chunks, each chunk saved when it is done, so that a run can be ended and taken up.

    python benchmarks/simulated.py --commits 1000000 --jobs 2      make simulate-long

``benchmarks/results/simulation.json`` has the counts, and the digest of each chunk: ``frazil simulate --seed N --seeds
200`` of the same version prints the same one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from common import RESULTS
from frazil.verify.simulator import Case, campaign

CHUNK = 200
STEPS = 100
Json = dict[str, Any]


def summed(found: list[Json]) -> Json:
    """All chunks together."""
    totals = {
        name: sum(each[name] for each in found) for name in ("seeds", "commits", "snapshots", "reads", "elapsed_s")
    }
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for each in found:
        faults.update(each["faults"])
        outcomes.update(each["outcomes"])
    seconds = totals["elapsed_s"]
    return {
        "benchmark": "simulation",
        "figures": {},
        "steps": STEPS,
        **totals,
        "elapsed_s": round(seconds, 1),
        "seeds_per_s": round(totals["seeds"] / seconds, 2),
        "commits_per_s": round(totals["commits"] / seconds, 1),
        "faults": dict(faults.most_common()),
        "outcomes": dict(sorted(outcomes.items())),
        "violations": [violation for each in found for violation in each["violations"]],
        "chunks": [
            {name: each[name] for name in ("seed", "seeds", "commits", "elapsed_s", "digest")} for each in found
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_000_000, help="so many, and whole chunks")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/simulation"), help="of the chunks that are done")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    done = {int(path.stem): json.loads(path.read_text()) for path in asked.folder.glob("*.json")}
    commits = sum(each["commits"] for each in done.values())
    ahead = (seed for seed in range(asked.seed, 1 << 40, CHUNK) if seed not in done)
    while commits < asked.commits and not any(each["violations"] for each in done.values()):
        seed = next(ahead)
        done[seed] = found = {"seed": seed, **campaign(Case(seed, STEPS), CHUNK, asked.jobs).to_json()}
        (asked.folder / f"{seed}.json").write_text(json.dumps(found))
        commits += found["commits"]
        sys.stderr.write(f"{sum(each['seeds'] for each in done.values())} seeds, {commits} commits\n")
    result = summed([done[seed] for seed in sorted(done)])
    (RESULTS / "simulation.json").write_text(json.dumps(result, indent=1) + "\n")
    print(*(f"{name}: {result[name]}" for name in ("seeds", "commits", "seeds_per_s", "commits_per_s")), sep="\n")
    print(f"violations: {len(result['violations'])}")
    return int(bool(result["violations"]))


if __name__ == "__main__":
    sys.exit(main())
