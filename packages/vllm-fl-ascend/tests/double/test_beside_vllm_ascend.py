"""Beside vllm-ascend, which registers its layers when its worker starts: after general plugins.

Source: `register_ascend_customop` in vllm_ascend/utils.py of 0.23.0.post1, called by the
constructor of its worker. It goes through `CustomOp.register_oot`, which refuses a second class for
a name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: nox -s ascend")

#: Names that it registers and that our general plugin replaces.
SHARED = (
    "SiluAndMul",
    "RotaryEmbedding",
    "YaRNScalingRotaryEmbedding",
    "RMSNorm",
    "GemmaRMSNorm",
)

CODE = """
import sys
from pathlib import Path

sys.path.insert(0, {double!r})
from npu_double import install

install.install(Path({folder!r}))
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers import activation, layernorm, rotary_embedding
from vllm_fl_dispatch.vllm.plugin import activate

replaced = activate()
assert set({shared}) <= set(replaced), replaced
modules = (activation, layernorm, rotary_embedding)
for name in {shared}:
    base = next(getattr(module, name) for module in modules if hasattr(module, name))
    other = type("Ascend" + name, (base,), {{}})
    CustomOp.register_oot(_decorated_op_cls=other, name=name)
    assert op_registry_oot[name] is other
assert "GeluAndMul" in activate()
for name in {shared}:
    assert op_registry_oot[name].__name__ == "Ascend" + name
try:
    CustomOp.register_oot(_decorated_op_cls=other, name=name)
except AssertionError as error:
    print("refused:", error)
"""


def test_its_layers_take_their_names_and_the_others_stay_dispatched(tmp_path: Path) -> None:
    code = CODE.format(shared=SHARED, double=str(Path(__file__).parent), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VLLM_FL_PREFER": "reference"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Between two others vLLM's own rule stays.
    assert "refused: Duplicate op name" in done.stdout
    assert "RMSNorm: __main__.AscendRMSNorm takes the place of the dispatched layer" in (
        done.stderr + done.stdout
    )
