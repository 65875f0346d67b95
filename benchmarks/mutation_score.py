"""How many mutants the tests killed, by module, from the results of a mutmut run.

usage: python mutation_score.py [--at-least SHARE]     in the folder where mutmut ran
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter, defaultdict


def main() -> int:
    """Print the table; fail below the asked share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-least", type=float, default=0.0)
    asked: float = parser.parse_args().at_least
    listed = subprocess.run(
        [sys.executable, "-m", "mutmut", "results", "--all", "true"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    by_module: dict[str, Counter[str]] = defaultdict(Counter)
    for line in listed.splitlines():
        name, colon, status = line.strip().rpartition(": ")
        if colon:
            module = name.split(".x_")[0].split(".x\u01c1")[0]
            by_module[module][status] += 1
    total: Counter[str] = Counter()
    for module, counts in sorted(by_module.items()):
        total += counts
        print(f"{module:45} {_share(counts):6.1%}  {dict(counts)}")
    print(f"{'all':45} {_share(total):6.1%}  {dict(total)}")
    return 0 if total and _share(total) >= asked else 1


def _share(counts: Counter[str]) -> float:
    killed = counts["killed"] + counts["timeout"] + counts["caught by type check"]
    return killed / max(1, sum(counts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
