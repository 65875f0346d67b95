"""Environment and YAML become one policy; mistakes are never silent."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_fl_dispatch import (
    DeviceSpec,
    OpManager,
    PolicyError,
    SelectionPolicy,
    hookimpl,
    policy_from_config,
)
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.carried import carried, carry
from vllm_fl_dispatch.config.effective import PlatformDefaults, effective
from vllm_fl_dispatch.explain import policy_settings
from vllm_fl_dispatch.scopes import scoped

from .conftest import source


def policy_of(environ: dict[str, str]) -> SelectionPolicy:
    return effective(environ).policy


def test_the_environment_replaces_the_defaults_item_by_item() -> None:
    policy = policy_of(
        {
            "VLLM_FL_PREFER": "vendor",
            "VLLM_FL_STRICT": "on",
            "VLLM_FL_PER_OP": "rms_norm=reference",
            "VLLM_FL_DENY_VENDORS": "acme, Other",
        }
    )
    assert policy.prefer == "vendor"
    assert policy.strict
    assert policy.per_op_order == {"rms_norm": ("reference",)}
    assert policy.deny_vendors == {"acme", "other"}
    assert policy.allow_vendors is None
    assert policy.origin_of("per_op_order.rms_norm") == "environment VLLM_FL_PER_OP"


def test_blank_variables_are_unset() -> None:
    assert policy_of({"VLLM_FL_PREFER": " ", "VLLM_FL_STRICT": ""}).prefer == "flagos"


def test_a_wrong_value_names_the_variable() -> None:
    with pytest.raises(PolicyError, match="VLLM_FL_PREFER: 'vendro'"):
        policy_of({"VLLM_FL_PREFER": "vendro"})


@pytest.mark.parametrize("name", ["VLLM_FL_PREFER_ENABLED", "VLLM_FL_ENABLED"])
def test_either_name_switches_the_plugin_off(name: str) -> None:
    assert environment.enabled({})
    assert not environment.enabled({name: "off"})


def test_a_file_may_merge_mappings(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "op_backends: &common\n"
        "  rms_norm: [reference]\n"
        "compiled:\n"
        "  op_backends:\n"
        "    <<: *common\n"
        "    silu_and_mul: [stock]\n"
    )
    orders = policy_of({"VLLM_FL_CONFIG": str(path)}).compiled["per_op_order"]
    assert orders == {"rms_norm": ("reference",), "silu_and_mul": ("stock",)}


def test_a_file_replaces_all_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "prefer: vendor\n"
        "op_backends:\n"
        "  rms_norm: [vendor:acme, reference]\n"
        "  silu_and_mul: flagos|reference\n"
        "allow_vendors: [acme]\n"
    )
    policy = policy_of({"VLLM_FL_CONFIG": str(path), "VLLM_FL_PREFER": "reference"})
    assert policy.prefer == "vendor"
    assert policy.per_op_order["silu_and_mul"] == ("flagos", "reference")
    assert policy.allow_vendors == {"acme"}
    assert policy.origin_of("prefer") == f"file {path}"
    assert policy.origin_of("strict") == "default"


@pytest.mark.parametrize("text", ["", "# only a comment\n"])
def test_an_empty_file_is_the_default_policy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    assert policy_from_config(path) == policy_of({})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "expected keys .* found list"),
        ("prefer: off\n", r":1: prefer: .*quote it"),
        ("strict: 2\n", r":1: strict: .*not a switch"),
        (
            "strict: on\nop_backend: {}\n",
            r":2: unknown key 'op_backend', .*'op_backends'.*accepted",
        ),
        ("op_backends: [rms_norm]\n", r":1: op_backends: .*expected a mapping"),
        ("op_backends:\n  rms_norm: vendro\n", "not a token"),
        ("prefer: flagos\nprefer: vendor\n", ":2: the key 'prefer' is there twice"),
        ("op_backends:\n  a: flagos\n  a: vendor\n", ":3: the key 'a' is there twice"),
        ("\tprefer: flagos\n", ":1: this is not valid YAML"),
        ("prefer: vendor\nop_backends: [rms\n", r":3: this is not valid YAML: .*expected ','"),
        ("prefer: vendro\n", r":1: prefer: 'vendro' is not accepted"),
        ("op_backends:\n  a: flagos\n  b: stok\n", r":3: op_backends: b: 'stok' is not a token"),
    ],
)
def test_a_file_of_the_wrong_shape_names_file_and_place(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=message) as caught:
        policy_from_config(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_that_the_user_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot read the policy file .*nowhere\.yaml"):
        policy_of({"VLLM_FL_CONFIG": str(tmp_path / "nowhere.yaml")})
    with pytest.raises(PolicyError, match="cannot read the policy file"):
        policy_from_config(tmp_path)


PLATFORM = PlatformDefaults(
    "acme",
    {
        "prefer": "vendor",
        "op_backends": {"rms_norm": "stock|vendor:acme", "silu_and_mul": "vendor:acme"},
        "flagos_blacklist": ["mm", "to_copy"],
        "compiled": {"op_backends": {"rms_norm": "stock"}},
    },
    "vllm-fl-acme 1.0",
)
SHIPPED = "platform defaults acme of vllm-fl-acme 1.0"


def on_platform(**environ: str) -> SelectionPolicy:
    return effective(environ, PLATFORM).policy


def test_platform_defaults_stand_below_the_environment() -> None:
    policy = on_platform(VLLM_FL_PER_OP="silu_and_mul=reference")
    assert policy.prefer == "vendor"
    assert policy.per_op_order == {
        "rms_norm": ("stock", "vendor:acme"),
        "silu_and_mul": ("reference",),
    }
    assert policy.origin_of("prefer") == SHIPPED
    assert policy.origin_of("per_op_order.rms_norm") == SHIPPED
    assert policy.origin_of("per_op_order.silu_and_mul") == "environment VLLM_FL_PER_OP"


def test_a_preference_of_the_user_makes_shipped_orders_yield() -> None:
    policy = on_platform(VLLM_FL_PREFER="reference")
    assert policy.per_op_order == {}
    assert policy.for_mode(compiled=True).per_op_order == {}
    scoped = on_platform().with_values("scope", prefer="reference")
    assert scoped.per_op_order == {}


def test_a_preference_does_not_touch_orders_that_the_user_gave() -> None:
    policy = on_platform(VLLM_FL_PREFER="reference", VLLM_FL_PER_OP="rms_norm=vendor")
    assert policy.per_op_order == {"rms_norm": ("vendor",)}


def test_the_compiled_section_acts_in_compiled_modes_only() -> None:
    policy = on_platform()
    assert policy.for_mode(compiled=False).per_op_order["rms_norm"] == ("stock", "vendor:acme")
    compiled = policy.for_mode(compiled=True)
    assert compiled.per_op_order["rms_norm"] == ("stock",)
    assert compiled.per_op_order["silu_and_mul"] == ("vendor:acme",)
    assert compiled.origin_of("per_op_order.rms_norm") == f"compiled section of {SHIPPED}"


def test_an_order_of_the_user_holds_in_compiled_modes_too() -> None:
    policy = on_platform(VLLM_FL_PER_OP="rms_norm=reference")
    assert policy.for_mode(compiled=True).per_op_order["rms_norm"] == ("reference",)


def test_a_blacklist_replaces_the_shipped_one_and_says_what_it_drops() -> None:
    found = effective({"VLLM_FL_FLAGOS_BLACKLIST": "rms_norm"}, PLATFORM)
    assert found.policy.flagos_blacklist == {"rms_norm"}
    (warning,) = found.warnings
    assert "drops mm, to_copy" in warning
    assert "VLLM_FL_FLAGOS_BLACKLIST_APPEND" in warning


def test_the_append_form_keeps_the_shipped_list_and_each_origin() -> None:
    found = effective({"VLLM_FL_FLAGOS_BLACKLIST_APPEND": "rms_norm"}, PLATFORM)
    assert found.policy.flagos_blacklist == {"mm", "to_copy", "rms_norm"}
    assert found.warnings == ()
    assert found.policy.origin_of("flagos_blacklist.mm") == SHIPPED
    assert found.policy.origin_of("flagos_blacklist.rms_norm") == (
        "environment VLLM_FL_FLAGOS_BLACKLIST_APPEND"
    )


@pytest.mark.parametrize("kind", ["FLAGOS", "OOT"])
def test_white_and_black_list_exclude_each_other(kind: str) -> None:
    with pytest.raises(PolicyError, match="exclude each other"):
        policy_of({f"VLLM_FL_{kind}_WHITELIST": "a", f"VLLM_FL_{kind}_BLACKLIST": "b"})


def test_kinds_per_operator_in_json(tmp_path: Path) -> None:
    text = '{"rms_norm": "vendor", "silu_and_mul": "reference"}'
    path = tmp_path / "ops.json"
    path.write_text(text)
    for value in (text, str(path)):
        policy = policy_of({"VLLM_FL_OP_CONFIG": value, "VLLM_FL_PER_OP": "rms_norm=flagos"})
        assert policy.per_op_order["rms_norm"] == ("flagos",)
        assert policy.per_op_order["silu_and_mul"][0] == "reference"
        assert policy.origin_of("per_op_order.silu_and_mul") == "environment VLLM_FL_OP_CONFIG"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("nowhere.json", "neither a JSON object nor a readable file"),
        ('{"rms_norm": "vendro"}', "VLLM_FL_OP_CONFIG, rms_norm: 'vendro'"),
        ('{"rms_norm": 3}', "'3' is not accepted"),
    ],
)
def test_wrong_kinds_per_operator(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy_of({"VLLM_FL_OP_CONFIG": text})


def test_a_list_in_a_json_file_is_not_an_object(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    path.write_text("[1]")
    with pytest.raises(PolicyError, match="expected an object"):
        policy_of({"VLLM_FL_OP_CONFIG": str(path)})


def test_variables_that_a_file_replaces_are_named_once(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("prefer: vendor\n")
    environ = {"VLLM_FL_CONFIG": str(path), "VLLM_FL_PREFER": "flagos", "VLLM_FL_STRICT": "1"}
    found = effective(environ, PLATFORM)
    assert found.policy.per_op_order == {}, "a file replaces platform defaults as well"
    (warning,) = found.warnings
    assert "ignored: VLLM_FL_PREFER, VLLM_FL_STRICT" in warning


def test_variables_that_nothing_reads_are_named_with_the_nearest() -> None:
    (warning,) = effective({"VLLM_FL_PREFFER": "vendor"}).warnings
    assert "VLLM_FL_PREFFER is set, but nothing reads it; did you mean VLLM_FL_PREFER?" in warning


def test_every_setting_of_a_file_reaches_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "strict: 'yes'\ndeny_vendors: [acme]\nflagos_whitelist: [rms_norm]\n"
        "oot_blacklist: [silu_and_mul]\ncompiled: {prefer: reference}\n"
    )
    policy = policy_from_config(path)
    assert policy.strict
    assert policy.deny_vendors == {"acme"}
    assert policy.flagos_whitelist == {"rms_norm"}
    assert policy.layer_objection(["silu_and_mul"]) is not None
    assert policy.layer_objection(["rms_norm"]) is None
    assert policy.for_mode(compiled=True).prefer == "reference"


class Plugin:
    """A backend with a device and defaults for it."""

    @hookimpl
    def vllm_fl_device(self) -> DeviceSpec:
        return DeviceSpec("acme", "acme", "acme", "PrivateUse1", "torch.acme", "accl", "ACME_ALL")

    @hookimpl
    def vllm_fl_platform_config(self, platform: str) -> Any:
        return {"prefer": "vendor"} if platform == "acme" else None


def plugin_manager(monkeypatch: pytest.MonkeyPatch) -> OpManager:
    holder = types.ModuleType("platform_plugin")
    holder.plugin = Plugin()  # type: ignore[attr-defined]  # a module made for this test
    monkeypatch.setitem(sys.modules, holder.__name__, holder)
    return OpManager(sources=[source("platform_plugin:plugin")])


def test_the_defaults_of_the_device_that_is_there_apply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = plugin_manager(monkeypatch).policy
    assert policy.prefer == "vendor"
    assert policy.origin_of("prefer").startswith("platform defaults acme of dist-of-planted")


def test_an_unknown_platform_has_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FL_PLATFORM", "brandnew")
    assert plugin_manager(monkeypatch).policy == SelectionPolicy()


def test_a_hook_that_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, platform: str) -> Any:
        raise RuntimeError("no file")

    monkeypatch.setattr(Plugin, "vllm_fl_platform_config", hookimpl(broken))
    assert plugin_manager(monkeypatch).policy == SelectionPolicy()


WORDS = st.sampled_from(
    ["prefer", "strict", "op_backends", "compiled", "deny_vendors", "allow_vendors", "rms_norm",
     "flagos", "vendor:acme", "reference", "off", "true", "1", "null", "[a]", "{a: b}", "&a [*a]",
     "2001-13-01", "? [x]", "'", "|", ">", "%", "@", "\t"]
)  # fmt: skip
LINES = st.builds(lambda indent, key, value: f"{'  ' * indent}{key}: {value}",
                  st.integers(0, 2), WORDS, WORDS)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.lists(LINES, max_size=6).map("\n".join), st.text(max_size=60)))
def test_any_file_is_a_policy_or_a_policy_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fuzz.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(PolicyError):
        policy_from_config(path)


def test_the_origin_of_every_value_with_a_platform_three_variables_and_a_scope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_FL_PER_OP", "rms_norm=vendor:acme")
    monkeypatch.setenv("VLLM_FL_DENY_VENDORS", "zeta")
    monkeypatch.setenv("VLLM_FL_OOT_BLACKLIST", "gelu_and_mul")
    manager = plugin_manager(monkeypatch)
    with scoped(manager, strict=True):
        found = {s.name: (s.value, s.origin) for s in policy_settings(manager.current_policy())}
    assert found == {
        "prefer": ("vendor", "platform defaults acme of dist-of-planted 1.2.3"),
        "strict": ("true", "scope"),
        "use_flagos": ("true", "default"),
        "oot_enabled": ("true", "default"),
        "allow_vendors": ("(all)", "default"),
        "deny_vendors": ("zeta", "environment VLLM_FL_DENY_VENDORS"),
        "flagos_whitelist": ("(all)", "default"),
        "flagos_blacklist": ("(none)", "default"),
        "flagos_aten": ("(none)", "default"),
        "oot_whitelist": ("(all)", "default"),
        "oot_blacklist": ("gelu_and_mul", "environment VLLM_FL_OOT_BLACKLIST"),
        "per_op_order.rms_norm": ("vendor:acme", "environment VLLM_FL_PER_OP"),
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [("true", {"*"}), ("off", set()), ("[mm, softmax]", {"mm", "softmax"}), ("[]", set())],
)
def test_aten_operators_are_all_none_or_named(tmp_path: Path, text: str, names: set[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(f"flagos_aten: {text}\n")
    policy = effective({"VLLM_FL_CONFIG": str(path)}, None).policy
    assert policy.flagos_aten == names
    plain = text.strip("[]")
    assert effective({"VLLM_FL_FLAGOS_ATEN": plain}, None).policy.flagos_aten == names


def test_aten_operators_are_no_setting_of_the_compiled_mode(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("compiled:\n  flagos_aten: true\n")
    found = effective({"VLLM_FL_CONFIG": str(path)}, None)
    assert found.policy.flagos_aten == frozenset()
    assert "unknown key 'flagos_aten'" in found.warnings[0]


@pytest.mark.parametrize(("value", "first"), [("1", "impl:default.flagos"), ("0", None)])
def test_flaggems_attention_is_an_order(value: str, first: str | None) -> None:
    environ = {"VLLM_FL_USE_FLAGGEMS_ATTN": value}
    orders = effective(environ, None).policy.per_op_order
    assert next(iter(orders.get("attention_backend", ())), None) == first
    environ["VLLM_FL_PER_OP"] = "attention_backend=stock"
    assert effective(environ, None).policy.per_op_order["attention_backend"] == ("stock",)


FULL = SelectionPolicy(
    prefer="vendor",
    strict=True,
    per_op_order={"rms_norm": ("vendor:acme", "reference")},
    deny_vendors=frozenset({"a", "b"}),
    allow_vendors=frozenset({"acme"}),
    use_flagos=False,
    flagos_blacklist=frozenset({"mm"}),
    flagos_aten=frozenset({"mul"}),
    oot_enabled=False,
    oot_whitelist=frozenset({"rms_norm"}),
    compiled={"per_op_order": {"rms_norm": ("stock",)}, "oot_blacklist": frozenset({"x"})},
    origins={"prefer": "code"},
)


@pytest.mark.parametrize("policy", [FULL, SelectionPolicy()])
def test_a_policy_is_carried_whole(
    monkeypatch: pytest.MonkeyPatch, policy: SelectionPolicy
) -> None:
    monkeypatch.setenv("VLLM_FL_CARRIED_POLICY", "to be replaced")
    carry(policy)
    found = carried()
    assert found == policy
    assert found is not None
    assert found.per_op_order == policy.per_op_order
    assert dict(found.compiled) == dict(policy.compiled)
    assert dict(found.origins) == {k: f"code of the parent process ({v})"
                                   for k, v in policy.origins.items()}  # fmt: skip
    assert effective().policy == policy
    assert carried({}) is None
    carry(None)
    assert carried() is None
    carry(None)


def test_a_carried_policy_stands_above_a_file_and_variables(tmp_path: Path) -> None:
    carry(SelectionPolicy(prefer="reference"))
    environ = {"VLLM_FL_CONFIG": str(tmp_path / "nowhere"), "VLLM_FL_PREFER": "vendor",
               "VLLM_FL_CARRIED_POLICY": os.environ["VLLM_FL_CARRIED_POLICY"],
               "VLLM_FL_TYPO": "1"}  # fmt: skip
    found = effective(environ, PLATFORM)
    assert found.policy.prefer == "reference"
    assert len(found.warnings) == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"origins": {}, "no_such": 1}', '"x"'])
def test_what_nobody_carried_is_an_error(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^VLLM_FL_CARRIED_POLICY is written by set_global_pol"):
        carried({"VLLM_FL_CARRIED_POLICY": text})


TWO_MODES = PlatformDefaults(
    "cuda",
    {
        "op_backends": {"rms_norm": ["vendor:cuda", "reference"]},
        "compiled": {"op_backends": {"rms_norm": ["stock", "reference"]}},
    },
    "acme",
)


@pytest.mark.parametrize("order", ["vendor:cuda|reference", "vendor:cuda"])
def test_the_order_of_a_user_holds_in_compiled_code_even_where_the_platform_has_the_same(
    order: str,
) -> None:
    policy = effective({"VLLM_FL_PER_OP": f"rms_norm={order}"}, TWO_MODES).policy
    assert policy.for_mode(True).order_for("rms_norm")[0] == tuple(order.split("|"))
    # Of another operator the platform's stays.
    other = effective({"VLLM_FL_PER_OP": "silu_and_mul=stock"}, TWO_MODES).policy
    assert other.for_mode(True).order_for("rms_norm")[0] == ("stock", "reference")


def test_a_compiled_preference_leaves_the_orders_of_the_same_file(tmp_path: Path) -> None:
    settings = {"op_backends": {"rms_norm": ["vendor:cuda"]}, "compiled": {"prefer": "reference"}}
    shipped = effective({}, PlatformDefaults("cuda", settings, "acme")).policy
    path = tmp_path / "policy.yaml"
    path.write_text("op_backends: {rms_norm: 'vendor:cuda'}\ncompiled: {prefer: reference}\n")
    own = effective({"VLLM_FL_CONFIG": str(path)}, None).policy
    for policy in (shipped, own):
        assert policy.for_mode(True).order_for("rms_norm")[0] == ("vendor:cuda",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prefer: vendor\ncompiled:\n  prefer: wrong\n", 3),
        (
            "op_backends:\n  rms_norm: stock\ncompiled:\n  op_backends:\n    a: stock\n"
            "    rms_norm: wrong\n",
            6,
        ),
        ("strict: true\ncompiled:\n  strict: true\n  strikt: 1\n", 4),
    ],
)
def test_a_mistake_is_named_by_its_own_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=f"policy.yaml:{line}: "):
        effective({"VLLM_FL_CONFIG": str(path)}, None)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("VLLM_FL_OP_CONFIG", '{"rms_norm": "vendor", "rms_norm": "reference"}', "named twice"),
        ("VLLM_FL_ALLOW_VENDORS", ",", "names nothing"),
    ],
)
def test_a_variable_that_says_two_things_or_nothing(variable: str, value: str, said: str) -> None:
    with pytest.raises(PolicyError, match=f"{variable}: .*{said}"):
        effective({variable: value}, None)


def test_names_are_checked_when_configuration_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    monkeypatch.setenv("VLLM_FL_STRICT", "1")
    monkeypatch.setenv("VLLM_FL_PER_OP", "silu_and_mull=reference")
    with pytest.raises(PolicyError, match="silu_and_mull"):
        manager.set_policy(None)
    assert manager.policy == SelectionPolicy()


def test_a_hook_takes_the_arguments_that_it_names(module: Any) -> None:
    module(
        "short_hook",
        """
        from vllm_fl_dispatch import DeviceSpec, hookimpl

        @hookimpl
        def vllm_fl_device():
            return DeviceSpec("acme", "acme", "acme", "CPU", "torch.cpu", "gloo", "ACME")

        @hookimpl
        def vllm_fl_platform_config():
            return {"prefer": "vendor"}
        """,
    )
    manager = OpManager(sources=[source("short_hook")])
    manager.ensure_built()
    assert manager.policy.prefer == "vendor"
