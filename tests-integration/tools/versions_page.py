"""Write the page of versions from what `test_versions.py` has run.

usage: python versions_page.py RESULTS.json > docs/versions.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MODELS = {"qwen3": "dense", "moe": "experts", "window": "sliding window", "mla": "latent attention"}
HEAD = """# Versions of vLLM

Written by `nox -s versions`. Each cell is one run of a tiny model with five prompts, greedy and in
float32, compared with the tokens that Hugging Face gives: *equal*, *different*, *failed* (it did
not start), or *not run*. All run under one environment, that of the version which the integration
tests use.

*Python tree* is vLLM's Python code without a compiled module, on `PlatformFL` with the reference
backend: it shows that nothing in vLLM has moved away from under us. *Full build* is all of the CPU
wheel on vLLM's own platform, with the reference backend serving the layers.

"""


def page(results: dict[str, dict[str, str]]) -> str:
    """The page as Markdown."""
    lines = [
        f"| vLLM | what ran | {' | '.join(MODELS.values())} |",
        "|---" * (len(MODELS) + 2) + "|",
    ]
    for name in sorted(
        results, key=lambda name: [int(n) for n in name.partition("-")[0].split(".")]
    ):
        version, _, full = name.partition("-")
        cells = [results[name].get(model, "not run") for model in MODELS]
        lines.append(
            f"| {version} | {'full build' if full else 'Python tree'} | {' | '.join(cells)} |"
        )
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))
