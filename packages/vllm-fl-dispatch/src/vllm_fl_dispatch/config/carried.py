"""A policy set in code, carried to the processes that this one starts.

Workers are started with the environment of their parent and find everything else anew, so the
policy travels as a variable. It stands above files and other variables, as it did in the parent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.policy import SelectionPolicy

VARIABLE = "VLLM_FL_CARRIED_POLICY"
ORIGIN = "code of the parent process"


def carry(policy: SelectionPolicy | None) -> None:
    """Hand a policy to all processes that are started from now on; None takes it back."""
    if policy is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = spelled(policy)


def spelled(policy: SelectionPolicy) -> str:
    """A policy as the value of `VARIABLE`."""
    return json.dumps({f.name: _plain(getattr(policy, f.name)) for f in fields(policy)})


def carried(environ: Mapping[str, str] | None = None) -> SelectionPolicy | None:
    """The policy that the parent process handed over, if any.

    Raises:
        PolicyError: the variable holds something else.
    """
    text = (os.environ if environ is None else environ).get(VARIABLE)
    if not text:
        return None
    try:
        values = json.loads(text)
        origins = {name: f"{ORIGIN} ({origin})" for name, origin in values.pop("origins").items()}
        return SelectionPolicy(**values, origins=origins)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PolicyError(
            f"{VARIABLE} is written by set_global_policy and not by hand: {error}"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value
