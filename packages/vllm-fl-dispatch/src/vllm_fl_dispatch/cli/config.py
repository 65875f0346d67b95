"""``vllm-fl config``: what is in force and why, whether a file is right, what a file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table
from vllm_fl_dispatch.config.effective import policy_from_file
from vllm_fl_dispatch.explain import policy_settings
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import unknown_name

config = typer.Typer(help="Show the policy in force, check a file, print the schema of files.")
app.add_typer(config, name="config")


@config.command("show")
def show_config(as_json: AsJson = False) -> None:
    """Print every setting in force, with its value and where the value came from."""
    manager = get_default_manager()
    manager.ensure_built()
    _print(manager.current_policy(), as_json)


@config.command()
def check(
    file: Annotated[Path, typer.Argument(help="A YAML policy.")], as_json: AsJson = False
) -> None:
    """Read a YAML policy as VLLM_FL_CONFIG would; exit code 1 if anything in it is unknown."""
    found = policy_from_file(file)
    manager = get_default_manager()
    manager.ensure_built()
    ops = manager.registry.names()
    orders = {**found.policy.per_op_order, **found.policy.compiled.get("per_op_order", {})}
    warnings = [*found.warnings, *(unknown_name("operator", op, ops) for op in orders
                                   if op not in ops)]  # fmt: skip
    _print(found.policy, as_json, warnings)
    if warnings:
        raise typer.Exit(1)


@config.command()
def schema() -> None:
    """Print the JSON schema of YAML policies, for editors and validators."""
    from vllm_fl_dispatch.config.schema import PolicyFile

    print(json.dumps(PolicyFile.model_json_schema(), indent=2))


def _print(policy: SelectionPolicy, as_json: bool, warnings: list[str] | None = None) -> None:
    settings = policy_settings(policy)
    made = table("Settings", "setting", "value", "from", wrap=["value", "from"])
    for setting in settings:
        made.add_row(setting.name, setting.value, setting.origin)
    data = {"settings": [vars(setting) for setting in settings], "warnings": warnings or []}
    show(as_json, data, made, *(styled((text, "yellow")) for text in warnings or []))
