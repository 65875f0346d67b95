"""Check an environment: the core works, and exactly these plugins load; print what is missing.

usage: python installed.py [PLUGIN ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def command(name: str) -> dict[str, Any]:
    """What `vllm-fl NAME --json` prints."""
    line = [sys.executable, "-m", "vllm_fl_dispatch.cli", name, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(expected: set[str]) -> None:
    """Fail unless the loaded plugins are `expected`."""
    plugins = command("plugins")["plugins"]
    loaded = {each["name"] for each in plugins if each["status"] == "loaded"}
    if loaded != expected or len(plugins) != len(loaded):
        raise SystemExit(f"expected {sorted(expected)}, found {plugins}")
    ops = command("ops")["ops"]
    missing = [op["op"] for op in ops if not op["candidates"]]
    if not expected and len(missing) != len(ops):
        raise SystemExit("the core alone claims to have implementations")
    print(f"plugins: {', '.join(sorted(loaded)) or 'none'}; of {len(ops)} operators without any "
          f"implementation: {', '.join(missing) or 'none'}")  # fmt: skip


if __name__ == "__main__":
    main(set(sys.argv[1:]))
