"""Makes vLLM's CPU platform keep the piecewise mode of compilation, which it replaces by another.

The mode is what other devices run in, and only it has the compile cache that these tests are about.
One of vLLM's passes does not run on its CPU build, so the passes are those of `PlatformFL`.
"""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch import Registrar, hookimpl


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """Registers nothing; it is loaded with the plugins, in every process of vLLM."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        config = vllm_config.compilation_config
        mode, backend = config.mode, config.backend
        own(cls, vllm_config)
        config.mode, config.backend = mode, backend
        config.compile_sizes = []

    passes = "vllm_fl_dispatch.vllm.passes.PassManagerFL"
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    CpuPlatform.get_pass_manager_cls = classmethod(lambda _: passes)
