"""What a plugin may be, and what becomes of a broken one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_fl_dispatch import OpManager, SelectionPolicy, hookspecs

from .conftest import source

HOOKS = """\
from vllm_fl_dispatch import BackendImplKind, OpImpl, hookimpl

def silu_and_mul(x):
    return "acme"

@hookimpl
def vllm_fl_register_ops(registrar):
    registrar.add(OpImpl("silu_and_mul", "vendor.acme", BackendImplKind.VENDOR,
                         silu_and_mul, "acme"))
"""
Write = Callable[[str, str], Path]


def loaded(*targets: str) -> OpManager:
    sources = [source(target, target.replace(".", "_").replace(":", "_")) for target in targets]
    manager = OpManager(SelectionPolicy(), sources)
    manager.ensure_built()
    return manager


def test_a_module_with_hook_implementations(module: Write) -> None:
    module("acme_hooks", HOOKS)
    manager = loaded("acme_hooks")
    (record,) = manager.records
    assert (record.status, record.form, record.impl_count) == ("loaded", "hooks", 1)
    (impl,) = manager.registry.impls("silu_and_mul")
    assert str(impl.origin) == "dist-of-acme_hooks 1.2.3"


def test_what_answers_to_every_name_is_no_hook(module: Write) -> None:
    module(
        "lazy",
        """
        from vllm_fl_dispatch import hookimpl

        class Lazy:
            def __getattr__(self, name):
                return self

        ops = Lazy()

        @hookimpl
        def vllm_fl_diagnose():
            return ["fine"]
        """,
    )
    (record,) = loaded("lazy").records
    assert (record.status, record.hooks) == ("loaded", ("vllm_fl_diagnose",)), record.error


def test_an_object_with_hook_implementations(module: Write) -> None:
    module(
        "acme_object",
        HOOKS.replace(
            "@hookimpl\ndef vllm_fl_register_ops(registrar):", "@hookimpl\ndef f(r):"
        ).replace("@hookimpl\ndef f(r):\n    registrar", "def add(registrar):\n    registrar")
        + "\nclass Plugin:\n    @hookimpl\n    def vllm_fl_register_ops(self, registrar):\n"
        "        add(registrar)\n\nplugin = Plugin()\n",
    )
    manager = loaded("acme_object:plugin", "acme_object:Plugin")
    assert [record.status for record in manager.records] == ["loaded", "loaded"]
    assert len(manager.registry.impls("silu_and_mul")) == 1


@pytest.mark.parametrize("name", ["register_builtins", "vllm_fl_register", "register"])
@pytest.mark.parametrize("announce", ["module", "function"])
def test_a_function_that_takes_the_registry(module: Write, name: str, announce: str) -> None:
    target = f"legacy_{name}_{announce}"
    module(
        target,
        f"""
        from vllm_fl_dispatch import BackendImplKind, OpImpl

        def {name}(registry):
            registry.register_many([
                OpImpl("silu_and_mul", "vendor.old", BackendImplKind.VENDOR,
                       fn=lambda x: x, vendor="old"),
            ])
        """,
    )
    manager = loaded(target if announce == "module" else f"{target}:{name}")
    (record,) = manager.records
    assert (record.status, record.form) == ("loaded", "function")
    assert [impl.impl_id for impl in manager.registry.impls("silu_and_mul")] == ["vendor.old"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import no_such_vendor_library\n", "ModuleNotFoundError"),
        ("raise OSError('libascendcl.so')\n", "libascendcl.so"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("x = 1\n", "is not a plugin"),
        ("def register(registry, policy): ...\n", "exactly one required argument"),
        ("def vllm_fl_register(): ...\n", "exactly one required argument"),
        ("vllm_fl_api = 99\n" + HOOKS, "level 99 of the hook interface, this is level 1"),
        (HOOKS.replace("(registrar):", "(registrar, policy):"), "policy"),
        (HOOKS.replace("vllm_fl_register_ops", "vllm_fl_regsiter_ops"), "vllm_fl_register_ops"),
    ],
)
def test_a_broken_plugin_is_a_record_and_the_others_load(
    module: Write, request: pytest.FixtureRequest, text: str, error: str
) -> None:
    name = f"broken_{abs(hash(text))}"
    module(name, text)
    module("acme_good", HOOKS)
    manager = loaded(name, "acme_good")
    bad, good = manager.records
    assert bad.status == "broken"
    assert error in bad.error
    assert "Traceback" in bad.traceback
    assert good.status == "loaded"
    assert manager.slot("silu_and_mul").bind().selected.impl_id == "vendor.acme"


def test_a_missing_module_is_a_record() -> None:
    (record,) = loaded("no_such_plugin_module").records
    assert record.status == "broken"
    assert "no_such_plugin_module" in record.error


def test_what_a_plugin_registered_before_it_raised_is_taken_back(module: Write) -> None:
    module("half", HOOKS + "    raise RuntimeError('half way')\n")
    manager = loaded("half")
    assert manager.records[0].status == "broken"
    assert manager.registry.impls("silu_and_mul") == ()


def test_one_misfit_is_refused_alone_with_both_signatures(module: Write) -> None:
    module(
        "misfit",
        """
        from vllm_fl_dispatch import BackendImplKind, OpImpl, hookimpl

        def rms_norm(layer, x, residual):
            return x

        @hookimpl
        def vllm_fl_register_ops(registrar):
            registrar.add(OpImpl("rms_norm", "vendor.m", BackendImplKind.VENDOR, rms_norm, "m"))
            registrar.add(OpImpl("silu_and_mul", "vendor.m", BackendImplKind.VENDOR,
                                 lambda x: x, "m"))
            registrar.add("not an implementation")
        """,
    )
    manager = loaded("misfit")
    assert manager.records[0].status == "loaded"
    assert manager.registry.impls("rms_norm") == ()
    assert len(manager.registry.impls("silu_and_mul")) == 1
    first, second = manager.registry.snapshot().refusals
    assert "expected: rms_norm(x: torch.Tensor, weight: torch.Tensor | None" in first.reason
    assert "found:    rms_norm(layer, x, residual)" in first.reason
    assert "expected an OpImpl, found str" in second.reason


def test_a_disabled_plugin_is_not_even_imported(
    module: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module("never_imported", "raise AssertionError('imported')\n")
    monkeypatch.setenv("VLLM_FL_DISABLED_PLUGINS", "never_imported")
    (record,) = loaded("never_imported").records
    assert record.status == "disabled"


def test_a_module_that_is_a_package_imports_its_own_submodules(
    module: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module("acmepkg.ops", HOOKS)
    init = tmp_path / "modules" / "acmepkg" / "__init__.py"
    init.write_text("from .ops import vllm_fl_register_ops\n")
    assert loaded("acmepkg").records[0].status == "loaded"


def test_a_plugin_may_add_an_operator_of_its_own(module: Write) -> None:
    module(
        "own_op",
        """
        from vllm_fl_dispatch import BackendImplKind, OpImpl, OpSpec, hookimpl

        def double(x): ...

        @hookimpl
        def vllm_fl_register_specs(registrar):
            registrar.add_spec(OpSpec("double", double))

        @hookimpl
        def vllm_fl_register_ops(registrar):
            registrar.add(OpImpl("double", "vendor.own", BackendImplKind.VENDOR,
                                 lambda x: 2 * x, "own"))
        """,
    )
    assert loaded("own_op").get_op("double")(21) == 42


def test_every_hook_is_documented() -> None:
    for name, hook in vars(hookspecs).items():
        if name.startswith("vllm_fl_"):
            assert hook.__doc__, name
