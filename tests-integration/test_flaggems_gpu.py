"""FlagGems' attention inside vLLM on a device: the tokens of vLLM's own in Triton.

bfloat16, for FlagGems' attention has no float32: a token may differ where two are as good as equal.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Compare

pytestmark = pytest.mark.gpu

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


@pytest.mark.parametrize("model", ATTENTION)
@pytest.mark.parametrize(
    "options", [(), ("--mode", "graphs"), ("--chunk", "64")], ids=["eager", "graphs", "chunked"]
)
def test_the_tokens_are_those_of_vllms_attention(
    tiny: Callable[[str], Path],
    compare_tokens: Compare,
    tmp_path: Path,
    model: str,
    options: tuple[str, ...],
) -> None:
    ours, stock = ATTENTION[model]
    truth = str(tmp_path / "truth.json")
    # The rest of the model is vLLM's own: what differs is attention.
    arguments = (*options, "--policies", "stock")
    compare_tokens(tiny(model), *arguments, "--attention", stock, "--save", truth)
    done, found = compare_tokens(tiny(model), *arguments, "--attention", ours, "--truth", truth)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert found["stock"]["of"] == 120
    assert found["stock"]["same"] > 60
