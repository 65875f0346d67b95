"""FlagGems on the CPU through Triton's interpreter; needs TRITON_INTERPRET=1 from the start.

What flag_gems expects of a compiled function and the interpreter's does not have is added here;
the kernels themselves, and our adapters, are the real ones.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

import fake_device
import pytest
import triton
import triton.language as tl
import triton.runtime.jit
from triton.runtime import interpreter

from vllm_fl_flaggems import library

Interpreted = interpreter.InterpretedFunction
#: The interpreter computes in numpy, which warns about what is no fault on a device either.
NUMPY_IS_SILENT = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]


@functools.cache
def load() -> Any:
    """flag_gems, through our own loader."""
    fake_device.install()
    _complete_interpreter()
    real = triton.runtime.jit.JITFunction
    triton.runtime.jit.JITFunction = Interpreted
    triton.autotune = _first_configuration
    sys.meta_path.insert(0, _LibEntryStub())
    try:
        gems = library.load()
    finally:
        triton.runtime.jit.JITFunction = real
        sys.meta_path.pop(0)
    fake_device.use_cpu_tensors()
    _plain_libdevice()
    return gems


def _complete_interpreter() -> None:
    def source(self: Any) -> str:
        text = textwrap.dedent(inspect.getsource(self.fn))
        return text[text.index("def ") :]

    Interpreted.src = property(source)
    Interpreted.cache_key = property(lambda self: hashlib.sha256(self.src.encode()).hexdigest())
    Interpreted.signature = property(lambda self: inspect.signature(self.fn))
    Interpreted.__globals__ = property(lambda self: self.fn.__globals__)
    unwrap = interpreter._unwrap_tensor
    # The wrapper that flag_gems passes for a tensor with other strides.
    interpreter._unwrap_tensor = lambda t: (
        t.unwrap() if type(t).__name__ == "StridedBuffer" else unwrap(t)
    )


_autotune = triton.autotune


def _first_configuration(configs: Any, key: Any, **options: Any) -> Callable[..., Any]:
    """There is nothing to measure in an interpreter."""
    kept = ("reset_to_zero", "restore_value", "pre_hook", "post_hook")
    options = {name: value for name, value in options.items() if name in kept}
    decorate: Callable[..., Any] = _autotune(configs=list(configs)[:1], key=key, **options)
    return decorate


class _LibEntryStub:
    """flag_gems' launcher and tuner look inside compiled functions: kernels do without."""

    NAME = "flag_gems.utils.libentry"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self) if name == self.NAME else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        module.libentry = lambda: lambda fn: fn
        module.libtuner = lambda configs, key, **_: _first_configuration(configs, key)
        module.LibEntry = type("LibEntry", (), {})
        module.LibTuner = type("LibTuner", (), {})
        module.libcache = None


@triton.jit
def _tanh(x):  # Triton
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _square(x, exponent):  # Triton
    return x * x


@triton.jit
def _erf(x):  # Triton
    return tl.math.erf(x)


def _plain_libdevice() -> None:
    """The device's mathematical library cannot be interpreted; `pow` is only used for squares."""
    module = sys.modules["flag_gems.fused.gelu_and_mul"]
    module.erf, module.tanh, module.pow = _erf, _tanh, _square  # type: ignore[attr-defined]
    flash = sys.modules["flag_gems.ops.flash_kernel"]
    flash.tl_extra_shim = types.SimpleNamespace(tanh=_tanh)  # type: ignore[attr-defined]
