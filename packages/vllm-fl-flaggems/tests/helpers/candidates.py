"""Our implementations, loaded as the manager loads them, in a process with flag_gems."""

from __future__ import annotations

from vllm_fl_dispatch import OpManager, OpSpec, SelectionPolicy
from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.types import Origin
from vllm_fl_flaggems.plugin import OPERATORS, vllm_fl_register_ops

#: The contracts of the operators that we serve.
SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS if spec.name in OPERATORS}


def load_all() -> dict[str, Candidate]:
    """operator -> our implementation; those that the installed release lacks are left out."""
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-flaggems")))
    found = {}
    for name, spec in SPEC.items():
        (impl,) = manager.registry.impls(name)
        if manager.resolve(name).decisions[0].outcome.value == "not installed":
            continue
        fn = manager.load(spec, impl)
        assert fn is not None, manager.failures.all()
        found[name] = Candidate.of(spec, impl, fn, fn)
    return found
