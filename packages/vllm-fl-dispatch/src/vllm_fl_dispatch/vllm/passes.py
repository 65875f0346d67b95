"""vLLM's compiler passes on `PlatformFL`."""

from __future__ import annotations

from typing import Any

import torch
from vllm.compilation.passes.pass_manager import PostGradPassManager
from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass


class FixFunctionalizationFL(FixFunctionalizationPass):  # type: ignore[misc]  # of vLLM
    """vLLM's pass names compiled operators, and fails where they are not. Inductor removes what it
    would have removed, with a copy where vLLM knows better."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        if hasattr(torch.ops._C, "rotary_embedding"):
            super().__call__(graph)


class PassManagerFL(PostGradPassManager):  # type: ignore[misc]  # of vLLM
    """The passes, the last one replaced."""

    def configure(self, config: Any) -> None:
        super().configure(config)
        self.fix_functionalization = FixFunctionalizationFL(config)
