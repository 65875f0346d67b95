"""FlagGems compiled for a device that is not there: kernels are built to machine code by the real
compiler, and a launch checks what it was given instead of running it.

So a Triton that flag-gems does not fit is found without a device: a kernel that does not compile,
one that needs more shared memory than the device has, a launch with missing arguments.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import fake_device
import pytest
import triton
from packaging.version import Version
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from vllm_fl_flaggems import library

#: Triton 3.7 warns about some of what flag-gems' kernels use, such as block pointers.
OLD_TRITON_IS_FINE = pytest.mark.filterwarnings("ignore:(?s).*is deprecated:UserWarning")
TRITON = Version(triton.__version__)
#: Of an H200: bytes of shared memory that one block may use.
SHARED_MEMORY = 227 << 10


#: The names of the kernels launched so far, in order.


LAUNCHES: list[str] = []


@functools.cache
def load(architecture: int = 90) -> Any:
    """flag_gems, through our own loader, for NVIDIA devices of this compute capability."""
    fake_device.install()
    driver.set_active(_Driver(architecture))
    gems = library.load()
    fake_device.use_cpu_tensors()
    return gems


class _Driver:
    """Just enough of Triton's driver to get a kernel compiled and launched."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)
        self.launcher_cls = _Launcher
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda _: {"max_shared_mem": SHARED_MEMORY},
            # module, function, registers, spills and, since 3.4, threads per block
            load_binary=lambda *_: (None, None, 0, 0, 1024)[: 4 + (Version("3.4") <= TRITON)],
        )

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Every configuration that an autotuner offers is compiled and is as good as the others."""

        def benchmark(call: Any, **_: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return benchmark


class _Launcher:
    """Stands for the C function that passes the arguments to the device."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._names = src.fn.arg_names
        self._kernel = metadata.name

    def __call__(self, *given: Any) -> None:
        # Grid, stream, function, two records of metadata, and two hooks come first.
        arguments = given[9:]
        if len(arguments) != len(self._names):
            # The C function indexes by position, without a check.
            raise AssertionError(
                f"{self._kernel} was launched with {len(arguments)} arguments, "
                f"it reads {len(self._names)}: {', '.join(self._names)}"
            )
        LAUNCHES.append(self._kernel)
