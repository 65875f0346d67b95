"""``vllm-fl config``: what is in force and why, whether a file is right, what a file may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_fl_dispatch import startup
from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, say, show, styled, table
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.effective import policy_from_file
from vllm_fl_dispatch.explain import policy_settings
from vllm_fl_dispatch.policy import SelectionPolicy

config = typer.Typer(help="Show the policy in force, check a file, print the schema of files.")
app.add_typer(config, name="config")


@config.command("show")
def show_config(as_json: AsJson = False) -> None:
    """Print every setting in force, with its value and where the value came from."""
    manager = get_default_manager()
    manager.ensure_built()
    _print(manager.current_policy(), as_json, variables=True)


@config.command()
def check(
    file: Annotated[Path, typer.Argument(help="A YAML policy.")], as_json: AsJson = False
) -> None:
    """Read a YAML policy as VLLM_FL_CONFIG would; exit code 1 if anything in it is unknown."""
    found = policy_from_file(file)
    manager = get_default_manager()
    manager.ensure_built()
    warnings = [*found.warnings, *startup.unknown_names(found.policy, manager.registry)]
    _print(found.policy, as_json, warnings)
    if warnings:
        raise typer.Exit(1)


@config.command()
def schema() -> None:
    """Print the JSON schema of YAML policies, for editors and validators."""
    from vllm_fl_dispatch.config.schema import PolicyFile

    say(json.dumps(PolicyFile.model_json_schema(), indent=2))


def _print(
    policy: SelectionPolicy, as_json: bool, warnings: list[str] | None = None, *,
    variables: bool = False,
) -> None:  # fmt: skip
    """Print a policy, and on demand the variables that are set and are no part of one."""
    settings = policy_settings(policy)
    made = table("Settings", "setting", "value", "from", wrap=["value", "from"])
    for setting in settings:
        made.add_row(setting.name, setting.value, setting.origin)
    others = {
        variable.name: value
        for variable in environment.VARIABLES
        if variables and variable.name not in environment.POLICY_VARIABLES
        and (value := environment.read(variable.name)) is not None
    }  # fmt: skip
    beside = table("Beside the policy", "variable", "value", "meaning", wrap=["value", "meaning"])
    meanings = {variable.name: variable.help for variable in environment.VARIABLES}
    for name, value in others.items():
        beside.add_row(name, value, meanings[name])
    data = {
        "settings": [vars(setting) for setting in settings],
        "variables": others,
        "warnings": warnings or [],
    }
    tables = [made, beside] if others else [made]
    show(as_json, data, *tables, *(styled((text, "yellow")) for text in warnings or []))
