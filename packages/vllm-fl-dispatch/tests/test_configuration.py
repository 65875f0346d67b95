"""Environment and YAML become one policy; mistakes are never silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_fl_dispatch import PolicyError, SelectionPolicy, policy_from_config
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.effective import effective


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
        ("strict: on\nop_backend: {}\n", r":2: unknown key 'op_backend' .*'op_backends'.*accepted"),
        ("op_backends: [rms_norm]\n", r":1: op_backends: .*expected a mapping"),
        ("op_backends:\n  rms_norm: vendro\n", "not a token"),
        ("prefer: flagos\nprefer: vendor\n", "line 2: the key 'prefer' is there twice"),
        ("op_backends:\n  a: flagos\n  a: vendor\n", "line 3: the key 'a' is there twice"),
        ("\tprefer: flagos\n", "not valid YAML"),
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
