"""FlagGems' attention inside vLLM on a device: the tokens of vLLM's own in Triton.

bfloat16, for FlagGems' attention has no float32: a token may differ where two are as good as equal.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.gpu
#: How far log-probabilities may be apart, and how close to the best a different token must be.
TOLERANCE = 0.1

#: model of tiny_models -> (our class, vLLM's)
ATTENTION = {
    "qwen3": ("vllm_fl_flaggems.vllm.attention.AttentionFLBackend", "TRITON_ATTN"),
    "window": ("vllm_fl_flaggems.vllm.attention.AttentionFLBackend", "TRITON_ATTN"),
    "mla": ("vllm_fl_flaggems.vllm.mla.MLAFLBackend", "TRITON_MLA"),
}


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag-gems")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA device")


def generate(folder: Path, model: Path, attention: str, **options: Any) -> Any:
    given = {"model": str(model), "attention": attention, **options}
    done = subprocess.run(
        [sys.executable, str(HERE / "tools" / "attention_logprobs.py"), json.dumps(given)],
        env={
            **os.environ,
            # The rest of the model is vLLM's own: what differs is attention.
            "VLLM_FL_ENABLED": "0",
            "VLLM_CACHE_ROOT": str(folder / "vllm"),
            "FLAGGEMS_CACHE_DIR": str(folder / "flaggems"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("model", ATTENTION)
@pytest.mark.parametrize(
    "options",
    [
        {"enforce_eager": True},
        {"enforce_eager": False},
        {"enforce_eager": True, "max_num_batched_tokens": 64, "enable_chunked_prefill": True},
    ],
    ids=["eager", "graphs", "chunked"],
)
def test_the_tokens_are_those_of_vllms_attention(
    tiny: Callable[[str], Path], tmp_path: Path, model: str, options: dict[str, Any]
) -> None:
    ours, stock = ATTENTION[model]
    found = generate(tmp_path, tiny(model), ours, **options)
    wanted = generate(tmp_path, tiny(model), stock, **options)
    same = 0
    for mine, theirs in zip(found, wanted, strict=True):
        for step, truth in zip(mine, theirs, strict=True):
            best = max(truth["top"].values())
            # JSON has text for keys.
            chosen = truth["top"].get(str(step["token"]))
            assert chosen is not None, "a token that vLLM's attention does not even consider"
            assert best - chosen <= TOLERANCE
            assert abs(step["top"][str(step["token"])] - chosen) <= TOLERANCE
            if step["token"] != truth["token"]:
                break  # from here on the texts differ
            same += 1
    assert same > 60, f"only {same} of 120 tokens before the texts differ"
