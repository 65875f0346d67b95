"""``vllm-fl explain OP``: every candidate with its reason, and where each setting came from."""

from __future__ import annotations

from math import prod
from typing import Annotated, Any

import typer
import yaml

from vllm_fl_dispatch import explain as explaining
from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.platforms import devices

#: What packages beside torch add to its types of devices, whether or not they are here.
ADDED = ("npu",)


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="An operator, such as rms_norm.")],
    call: Annotated[
        bool,
        typer.Option(
            "--call", help="For calls through a handle; vLLM's own layer is no candidate."
        ),
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="For a model that vLLM compiles.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="Of a hypothetical call: float32, bfloat16 ...")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Of its input, such as 16x4096.")] = None,
    device: Annotated[str | None, typer.Option(help="Of its input: cpu, cuda, npu.")] = None,
    fact: Annotated[
        list[str] | None, typer.Option(help="name=value: head_size=128, is_neox_style=true ...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who serves an operator here, why not the others, and which settings decided."""
    facts, numel = hypothetical(dtype, shape, device, fact or [])
    found = explaining.explain(
        get_default_manager(), op, layer=not call, compiled=compiled, facts=facts, numel=numel
    )
    resolution = found.resolution
    selected = resolution.selected
    candidates = table(
        f"{found.signature}\norder: {'|'.join(resolution.order)}, from {resolution.order_origin}",
        "implementation",
        "decision",
        "compiled",
        "reason",
        below="reason",
        spare=["compiled"],
    )
    for decision in resolution.decisions:
        impl = decision.impl
        source = "vLLM" if impl.impl_id == "stock" else str(impl.origin or "code")
        style = "bold green" if impl is selected else "" if decision.accepted else "dim"
        candidates.add_row(
            styled((impl.impl_id, style), "\n", (source, "dim")),
            styled((decision.outcome.value, style)),
            explaining.compiled_mode(impl),
            decision.reason,
        )
    settings = table("Settings", "setting", "value", "from", wrap=["value", "from"])
    for setting in found.settings:
        settings.add_row(setting.name, setting.value, setting.origin)
    notes = [resolution.note] if resolution.note else []
    if selected is None and not call:
        strict = get_default_manager().current_policy().strict
        notes.append(
            "No candidate fits the policy. "
            + (
                "It is strict: a model with such a layer does not start."
                if strict
                else "vLLM's own code stays, with a warning; VLLM_FL_STRICT=1 makes it an error."
            )
        )
    show(as_json, found.as_dict(), candidates, settings, *notes)
    if selected is None:
        raise typer.Exit(1)


def hypothetical(
    dtype: str | None, shape: str | None, device: str | None, facts: list[str]
) -> tuple[dict[str, Any] | None, int | None]:
    """The facts that the options state, or None where they state none; and the element count."""
    known: dict[str, Any] = {}
    numel = None
    if dtype is not None:
        known["dtype"] = dtype_named(dtype)
    if shape is not None:
        sizes = shape.lower().split("x")
        if not all(size.isdecimal() for size in sizes):
            raise PolicyError(f"--shape: {shape!r} is not of the form 16x4096")
        known["last_dim"], numel = int(sizes[-1]), prod(map(int, sizes))
    if device is not None:
        known["device"] = _device_type(device)
    for text in facts:
        name, equals, value = text.partition("=")
        if not equals:
            raise PolicyError(f"--fact: {text!r} is not of the form name=value")
        try:
            known[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise PolicyError(f"--fact: {text!r}: {error}") from error
        if name.endswith("dtype"):
            known[name] = dtype_named(value)
    return known or None, numel


def _device_type(name: str) -> str:
    """A type of device that torch or a backend knows; none of it need be on this machine.

    Raises:
        PolicyError: nobody knows it.
    """
    manager = get_default_manager()
    manager.ensure_built()
    added = [*ADDED, *(spec.device_type for _, spec in devices(manager.records))]
    if name not in added:
        try:
            import torch

            return str(torch.device(name).type)
        except ImportError:
            pass  # Who has no torch has no list of its devices.
        except RuntimeError as error:
            raise PolicyError(
                f"--device: {str(error).splitlines()[0]}; backends add "
                f"{', '.join(dict.fromkeys(added))}"
            ) from None
    return name


def dtype_named(name: str) -> Any:
    """A dtype of torch, by name; PolicyError if there is none."""
    try:
        import torch
    except ImportError:
        raise PolicyError("a dtype can be named only where torch is installed") from None
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise PolicyError(f"{name!r} is not a dtype of torch, such as float32 or bfloat16")
    return found


def device_named(name: str) -> Any:
    """A device of torch, by name; PolicyError if there is none on this machine."""
    import torch

    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise PolicyError(f"--device: {str(error).splitlines()[0]}") from None
    count = getattr(getattr(torch, found.type, None), "device_count", lambda: 0)()
    if (found.index or 0) >= count:
        raise PolicyError(
            f"--device: {name!r} is not there: torch {torch.__version__} sees {count} devices of "
            f"type {found.type}"
        )
    return found
