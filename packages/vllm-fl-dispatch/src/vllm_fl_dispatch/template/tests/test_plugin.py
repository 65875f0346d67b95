"""The plugin is found and loaded, and does no harm where the device is missing."""

from __future__ import annotations

from vllm_fl_acme import plugin
from vllm_fl_dispatch import discover_plugins, get_default_manager, with_preference


def test_the_plugin_is_found_through_its_entry_point() -> None:
    (record,) = (record for record in discover_plugins() if record.name == "acme")
    assert record.error == ""


def test_every_operator_of_the_table_is_registered() -> None:
    manager = get_default_manager()
    for op in plugin.OPERATORS:
        assert "vendor.acme" in {impl.impl_id for impl in manager.registry.impls(op)}


def test_a_user_who_prefers_vendors_gets_these_kernels() -> None:
    with with_preference("vendor"):
        for op in plugin.OPERATORS:
            selected = get_default_manager().resolve(op).selected
            assert selected is not None
            assert selected.impl_id == "vendor.acme"


def test_the_device_is_looked_for_without_opening_it() -> None:
    verdict = plugin.device_present()
    assert verdict.ok or verdict.reason
    assert (plugin.vllm_fl_device() is None) == (not verdict)
