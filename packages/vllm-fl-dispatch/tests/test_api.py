"""The public functions, on the default manager."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
import torch

import vllm_fl_dispatch as fl
from vllm_fl_dispatch import SelectionPolicy, probing, startup

from .conftest import impl

X = torch.ones(2, 8)
W = torch.ones(8)


def test_every_public_name_is_there() -> None:
    for name in fl.__all__:
        assert getattr(fl, name) is not None
    assert list(fl.__all__) == sorted(fl.__all__)


def test_the_default_manager_is_made_once_and_can_be_forgotten() -> None:
    fl.reset_default_manager()
    try:
        first = fl.get_default_manager()
        assert fl.get_default_manager() is first
        assert fl.get_discovered_plugins() == ()
        records = fl.discover_plugins()
        assert {"reference", "cuda", "flaggems", "ascend"} <= {record.name for record in records}
        assert fl.get_discovered_plugins() is records
        fl.clear_discovered_plugins()
        assert fl.get_default_manager() is not first
    finally:
        fl.reset_default_manager()


def test_call_resolve_and_bump(default_manager: Any) -> None:
    available = [False]
    default_manager(impl("vendor.acme", available=lambda: available[0]), impl("reference.torch"))
    assert fl.call_op("silu_and_mul", X) == "reference.torch"
    assert fl.call_op("silu_and_mul", x=X) == "reference.torch"
    available[0] = True
    assert fl.call_op("silu_and_mul", X) == "reference.torch", "verdicts are kept"
    fl.bump_policy_epoch()
    assert fl.call_op("silu_and_mul", X) == "vendor.acme"
    assert fl.resolve_op("silu_and_mul")(X) == "vendor.acme"
    with pytest.raises(fl.UnknownOp, match="did you mean 'silu_and_mul'"):
        fl.call_op("silu_and_mull", X)


def test_a_key_error_of_an_implementation_is_its_own(default_manager: Any) -> None:
    def broken(x: Any) -> Any:
        raise KeyError("inside")

    default_manager(impl("vendor.acme", broken))
    with pytest.raises(KeyError, match="inside"):
        fl.call_op("silu_and_mul", X)
    assert fl.failures() == ()


def test_policies_of_the_process(default_manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    default_manager(impl("vendor.acme"), impl("reference.torch"))
    assert fl.resolve_op("silu_and_mul")(X) == "vendor.acme"
    fl.set_global_policy(SelectionPolicy(prefer="reference"))
    assert fl.resolve_op("silu_and_mul")(X) == "reference.torch"
    assert fl.get_policy().prefer == "reference"
    assert fl.call_op("silu_and_mul", X) == "reference.torch"
    monkeypatch.setenv("VLLM_FL_PREFER", "vendor")
    fl.reset_global_policy()
    assert fl.get_policy().origin_of("prefer") == "environment VLLM_FL_PREFER"
    assert fl.call_op("silu_and_mul", X) == "vendor.acme"


def test_a_configuration_that_cannot_be_read_changes_nothing(
    default_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_manager(impl("vendor.acme"), impl("reference.torch"))
    fl.set_global_policy(fl.SelectionPolicy(prefer="vendor"))
    monkeypatch.setenv("VLLM_FL_PREFER", "vendro")
    with pytest.raises(fl.PolicyError, match="vendro"):
        fl.reset_global_policy()
    assert fl.get_policy().prefer == "vendor"


def test_failures_are_listed_and_cleared(default_manager: Any) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("no symbol")

    default_manager(impl("vendor.acme", broken), impl("reference.torch"))
    fl.call_op("silu_and_mul", X)
    assert [failure.impl_id for failure in fl.failures()] == ["vendor.acme"]
    fl.clear_failures()
    assert fl.failures() == ()


def test_options_follow_scopes_too(default_manager: Any) -> None:
    def named(name: str) -> Any:
        def rms_norm(x: Any, weight: Any, epsilon: float, *, variance_size: Any = None,
                     weight_offset: float = 0.0) -> Any:  # fmt: skip
            return name, variance_size, weight_offset

        return rms_norm

    default_manager(
        impl("vendor.acme", named("vendor"), op="rms_norm"),
        impl("reference.torch", named("reference"), op="rms_norm"),
    )
    op = fl.get_op("rms_norm")
    assert op(X, W, 1e-6, variance_size=4) == ("vendor", 4, 0.0)
    with fl.with_preference("reference"):
        assert op(X, W, 1e-6, weight_offset=1.0) == ("reference", None, 1.0)
        assert op(X, W, 1e-6) == ("reference", None, 0.0)
    assert op(X, W, 1e-6, weight_offset=1.0) == ("vendor", None, 1.0)


def test_scopes_of_another_manager_are_not_ours(default_manager: Any, make_manager: Any) -> None:
    from vllm_fl_dispatch.scopes import scoped

    default_manager(impl("vendor.acme"), impl("reference.torch"))
    other = make_manager(impl("vendor.acme"), impl("reference.torch"))
    with scoped(other, prefer="reference"):
        assert fl.call_op("silu_and_mul", X) == "vendor.acme"
        assert other.get_op("silu_and_mul")(X) == "reference.torch"
        with fl.with_strict_mode():
            assert other.get_op("silu_and_mul")(X) == "reference.torch"
            assert fl.call_op("silu_and_mul", X) == "vendor.acme"


def test_unknown_names_in_a_policy_are_warnings_or_errors_when_strict(
    make_manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make_manager(impl("vendor.acme"))
    wrong = {"silu_and_mull": "vendor:acmee|reference"}
    with caplog.at_level(logging.WARNING):
        manager.set_policy(SelectionPolicy.from_dict(per_op_order=wrong, deny_vendors=["acmi"]))
    said = {record.getMessage() for record in caplog.records}
    for expected in ("did you mean 'silu_and_mul'", "'acmee'; did you mean 'acme'", "'acmi'"):
        assert any(expected in text for text in said), said
    with pytest.raises(fl.PolicyError, match="the policy is strict"):
        manager.set_policy(SelectionPolicy.from_dict(per_op_order=wrong, strict=True))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"per_op_order": {"silu_and_mul": ("impl:vendor.acne",)}},
         "unknown implementation 'vendor.acne'; did you mean 'vendor.acme'?"),
        ({"oot_blacklist": frozenset({"rms_nrom"})}, "'rms_nrom'; did you mean 'rms_norm'?"),
        ({"oot_whitelist": frozenset({"rms_nrom"})}, "'rms_nrom'; did you mean 'rms_norm'?"),
        ({"compiled": {"per_op_order": {"rms_nrom": ("stock",)}}}, "did you mean 'rms_norm'?"),
        ({"compiled": {"per_op_order": {"rms_norm": ("vendor:acne",)}}}, "unknown vendor 'acne'"),
        ({"flagos_blacklist": frozenset({"to_copy"})}, None),
    ],
)  # fmt: skip
def test_every_name_in_a_policy_is_looked_up(
    make_manager: Any, values: dict[str, Any], expected: str | None
) -> None:
    manager = make_manager(impl("vendor.acme"))
    policy = SelectionPolicy().with_values("test", **values)
    found = startup.unknown_names(policy, manager.registry)
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]


def test_a_wrong_variable_beside_the_policy_is_an_error_at_once(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_FL_DISPATCH_DEBUG", "loud")
    with pytest.raises(fl.PolicyError, match="VLLM_FL_DISPATCH_DEBUG: 'loud' is not a switch"):
        make_manager(impl("vendor.acme")).ensure_built()


def test_an_inherited_order_that_fits_nothing_is_filled_up_with_one_warning(
    make_manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def add(x: Any, residual: Any, weight: Any, epsilon: float) -> str:
        return "reference.torch"

    policy = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:acme"})
    manager = make_manager(impl("reference.torch", add, op="fused_add_rms_norm"), policy=policy)
    with caplog.at_level(logging.WARNING):
        assert manager.get_op("fused_add_rms_norm")(X, X, W, 1e-6) == "reference.torch"
    assert any("stock and reference were appended" in r.getMessage() for r in caplog.records)


def test_the_whole_resolution_is_logged_on_demand(
    make_manager: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_FL_DISPATCH_DEBUG", "1")
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    with caplog.at_level(logging.INFO, logger="vllm_fl"):
        manager.get_op("silu_and_mul")(X)
    text = "\n".join({record.getMessage() for record in caplog.records})
    assert "silu_and_mul is served by silu_and_mul[vendor.acme]" in text
    assert "reference.torch  fallback" in text


def test_batch_invariance_is_asked_of_vllms_variable(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make_manager(impl("vendor.acme"), impl("reference.torch", batch_invariant=True))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"


def test_log_levels() -> None:
    before = logging.getLogger("vllm_fl").level
    try:
        fl.set_log_level("debug")
        assert fl.get_logger("vllm_fl_dispatch.manager").isEnabledFor(logging.DEBUG)
        fl.set_log_level(logging.ERROR)
        assert not fl.get_logger("vllm_fl_acme").isEnabledFor(logging.WARNING)
        with pytest.raises(ValueError, match="'LOUD' is not accepted; accepted: DEBUG, INFO"):
            fl.set_log_level("LOUD")
    finally:
        fl.set_log_level(before)


def test_probing_has_no_side_effects(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert probing.module_installed("torch")
    missing = probing.module_installed("no_such_module", "pip install it")
    assert missing.reason == "no_such_module is not installed: pip install it"
    assert "cannot be looked up" in probing.module_installed("no_such_module.inner").reason
    (tmp_path / "acme0").touch()
    assert probing.device_node("acme", ["acme[0-9]"], tmp_path)
    assert "no acme device node (x*)" in probing.device_node("acme", ["x*"], tmp_path).reason
    monkeypatch.setenv("ACME_VISIBLE", "-1")
    hidden = probing.devices_visible("ACME_VISIBLE")
    assert probing.all_of(probing.Verdict.yes(), hidden) is hidden
    assert probing.all_of(probing.devices_visible("ACME_OTHER"))
    assert probing.version_of("pluggy")
    assert probing.version_of("no-such-distribution") is None


def test_a_logger_that_somebody_made_before_us_serves(default_manager: Any) -> None:
    code = (
        "import logging\n"
        "logging.getLogger('vllm_fl.op_impl').setLevel(logging.ERROR)\n"
        "import torch\n"
        "from vllm_fl_dispatch import BackendImplKind, OpImpl, OpManager, SelectionPolicy\n"
        "def supports(query): raise ValueError\n"
        "manager = OpManager(SelectionPolicy(), sources=())\n"
        "kernel = OpImpl('silu_and_mul', 'vendor.a', BackendImplKind.VENDOR, print, 'a',\n"
        "                supports=supports)\n"
        "other = OpImpl('silu_and_mul', 'reference.torch', BackendImplKind.REFERENCE,\n"
        "               lambda x: 'reference')\n"
        "manager.registry.register_many([kernel, other])\n"
        "print(manager.get_op('silu_and_mul')(torch.ones(2, 4)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "reference"
