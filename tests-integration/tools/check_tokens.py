"""Generate with vLLM and compare with the right tokens; exits with 1 where they differ.

usage: python check_tokens.py TOKENS.json '{"model": "...", ...}'    keyword arguments of vllm.LLM
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generate import generate

if __name__ == "__main__":
    expected = json.loads(Path(sys.argv[1]).read_text())
    found = generate(json.loads(sys.argv[2]))["tokens"]
    print(f"found    {found}\nexpected {expected}")
    raise SystemExit(found != expected)
