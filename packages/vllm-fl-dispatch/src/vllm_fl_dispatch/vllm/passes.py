"""vLLM's compiler passes on `PlatformFL`."""

from __future__ import annotations

from typing import Any

import torch
from vllm.compilation.passes.pass_manager import PostGradPassManager
from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass


class FixFunctionalizationFL(FixFunctionalizationPass):  # type: ignore[misc]  # of vLLM
    """Does nothing. vLLM's pass is about its compiled operators, fails where one of them is not
    there, and leaves all others to Inductor, as here."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Leave the graph as it is."""


class PassManagerFL(PostGradPassManager):  # type: ignore[misc]  # of vLLM
    """The passes, the last one replaced."""

    def configure(self, config: Any) -> None:
        super().configure(config)
        self.fix_functionalization = FixFunctionalizationFL(config)
