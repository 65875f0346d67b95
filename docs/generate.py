"""The reference pages that are made from code: ``python docs/generate.py`` writes them.

Needs the five distributions importable, and no torch. A test fails where a page is not what this
makes.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from vllm_fl_dispatch import OpRegistry, OpSpec, Registrar, hookspecs
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.config.environment import POLICY_VARIABLES, VARIABLES
from vllm_fl_dispatch.config.schema import PolicyFile
from vllm_fl_dispatch.contracts import signature_of
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.selectors import SELECTORS, Spec
from vllm_fl_dispatch.types import Origin

TARGET = Path(__file__).parent / "reference"
BACKENDS = ("flaggems", "cuda", "ascend", "reference")
GENERATED = "<!-- Made by docs/generate.py from the code; edit that. -->"
SECTION = re.compile(r"^(Args|Returns|Raises|Attributes):$", re.MULTILINE)
ANNOTATION = re.compile(r"(: |-> )'([^']*)'")
ITEM = re.compile(r"^    (\w[\w, ]*): ", re.MULTILINE)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |"
        for line in lines
    )


def prose(function: Callable[..., Any]) -> str:
    """A docstring of Google's convention in Markdown."""
    text, *sections = SECTION.split(inspect.getdoc(function) or "")
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Returns":
            parts.append(f"**Returns**: {inspect.cleandoc(body)}")
            continue
        names_and_texts = ITEM.split(body)[1:]
        items = [
            f"* `{name}`: {' '.join(text.split())}"
            for name, text in zip(names_and_texts[::2], names_and_texts[1::2], strict=True)
        ]
        parts.append(f"**{title}**\n\n" + "\n".join(items))
    return "\n\n".join(parts).replace("``", "`")


def hooks() -> Iterator[str]:
    """One section per hook; its heading is the signature."""
    yield (
        "A backend implements any of these with the marker `hookimpl`, and states the level of the "
        f"interface that it was written for: `vllm_fl_api = {hookspecs.API_LEVEL}`. "
        "[The guide](../backends.md) has a whole plugin. All hooks run once per process, at "
        "start-up, one plugin at a time: what a plugin registered before it raised is taken back, "
        "and the other plugins go on. An implementation may leave out parameters."
    )
    for name, function in inspect.getmembers(hookspecs, inspect.isfunction):
        if hasattr(function, f"{hookspecs.PROJECT}_spec"):
            yield f"## `{name}{unquoted(inspect.signature(function))}`"
            yield prose(function)


def operators() -> Iterator[str]:
    """One section per contract."""
    yield (
        "Every implementation has the positional parameters of the contract by name and order. "
        "Tolerances are in units in the last place (ulp) of the result's dtype, against the "
        "contract's float64 oracle; the [kit](../backends.md#proving-it) runs the cases."
    )
    yield from (section for spec in SPECS for section in operator(spec))
    for selector in SELECTORS:
        yield from contract(selector)
        yield table(("", ""), [("what `supports` sees", names(selector.fact_names))])


def contract(spec: Spec) -> Iterator[str]:
    """The head of a contract: name, signature, meaning."""
    yield f"## {spec.name}"
    signature = f"{spec.name}{unquoted(signature_of(spec.contract))}"
    if len(signature) > 90:
        opening, rest = signature.split("(", 1)
        arguments, result = rest.rsplit(") -> ", 1)
        split = re.sub(r", (?=\w+:|\*)", ",\n    ", arguments)
        signature = f"{opening}(\n    {split},\n) -> {result}"
    yield f"```text\n{signature}\n```"
    yield prose(spec.contract)


def operator(spec: OpSpec) -> Iterator[str]:
    """The contract of one operator, and what else is known about it."""
    yield from contract(spec)
    ulps = ", ".join(f"{value:g} ({dtype})" for dtype, value in spec.max_ulp.items())
    facts: list[tuple[str, str]] = [("tolerance in ulp", ulps)]
    if spec.ulp_of:
        facts.append(("units of", f"the dtype of `{spec.ulp_of}`"))
    if spec.ulp_floor:
        smallest = f"{spec.ulp_floor:g} of its row's root mean square"
        facts.append(("no value counts as smaller than", smallest))
    if spec.max_steps:
        facts.append(("tolerance of integers", f"{spec.max_steps:g}"))
    facts.append(("may be overwritten in eager mode", names(spec.donates) or "nothing"))
    if spec.group:
        facts.append(("inherits the order of", f"[`{spec.group}`](#{spec.group})"))
    if spec.lower:
        facts.append(("options that the core can supply", names(spec.lower)))
    if spec.fact_names:
        facts.append(("what `supports` sees", names(spec.fact_names)))
    if spec.cases:
        facts.append(("conformance cases", str(len(list(spec.cases())))))
    if spec.schema:
        facts.append(("opaque operator", f"`torch.ops.vllm_fl.{spec.name}{spec.schema}`"))
    yield table(("", ""), facts)


def unquoted(signature: inspect.Signature) -> str:
    """A signature without the quotes of postponed annotations."""
    return ANNOTATION.sub(r"\1\2", str(signature))


def names(values: Iterable[str]) -> str:
    """Names in code type."""
    return ", ".join(f"`{value}`" for value in values)


def matrix() -> Iterator[str]:
    """Which backend registers which operator."""
    yield (
        "What each distribution registers. Whether it can run is asked of the machine: "
        "`vllm-fl ops`. vLLM's own layers (`stock`) stand beside all of them."
    )
    registry = OpRegistry()
    for spec in (*SPECS, *SELECTORS):
        registry.add_spec(spec)
    for backend in BACKENDS:
        plugin = importlib.import_module(f"vllm_fl_{backend}.plugin")
        registrar = Registrar(registry, Origin(backend))
        for hook in ("vllm_fl_register_specs", "vllm_fl_register_ops"):
            getattr(plugin, hook, lambda _: None)(registrar)
    rows = []
    for name in sorted(registry.snapshot().impls):
        ids: dict[str, list[str]] = {backend: [] for backend in BACKENDS}
        for impl in registry.impls(name):
            ids[str(impl.origin)].append(impl.impl_id)
        rows.append((f"`{name}`", *map(names, ids.values())))
    yield table(("operator", *(f"vllm-fl-{backend}" for backend in BACKENDS)), rows)


def environment() -> Iterator[str]:
    """Every variable."""
    yield (
        "[Configuration](../configuration.md) says how they act together. `VLLM_FL_CONFIG` names a "
        "file that replaces those marked so."
    )
    rows = ((f"`{v.name}`", v.help, "yes" if v.name in POLICY_VARIABLES else "") for v in VARIABLES)
    yield table(("variable", "meaning", "a policy file replaces it"), rows)


def policy_file() -> Iterator[str]:
    """Every key of the YAML policy."""
    yield (
        "`VLLM_FL_CONFIG` names such a file; every key is optional. `vllm-fl config check FILE` "
        "reads one as vLLM would, [`policy.schema.json`](../policy.schema.json) serves editors, "
        "[Configuration](../configuration.md) has an example."
    )
    rows = []
    for name, field in PolicyFile.model_fields.items():
        kind = inspect.formatannotation(field.annotation).rpartition(".")[2]
        rows.append((f"`{name}`", f"`{kind}`", f"`{field.default!r}`", field.description))
    yield table(("key", "type", "default", "meaning"), rows)


def commands() -> Iterator[str]:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    yield f"{group.help} Errors of ours are one message and exit code 2."
    yield from command("vllm-fl", group)


def command(path: str, found: Any) -> Iterator[str]:
    """One command, or those of a group."""
    for name, each in sorted(getattr(found, "commands", {}).items()):
        yield f"## `{path} {name}`"
        yield each.help
        rows = [parameter(each) for each in each.params]
        if rows:
            yield table(("", "meaning", "default"), rows)
        yield from command(f"{path} {name}", each)


def parameter(found: Any) -> tuple[str, str, str]:
    """Spelling, meaning and default of an argument or option."""
    value = found.name.upper()
    if found.param_type_name == "argument":
        spelling = value
    else:
        spelling = ", ".join([*found.opts, *found.secondary_opts])
        spelling += "" if getattr(found, "is_flag", False) else f" {value}"
    default = "required" if found.required else f"`{found.default}`" if found.default else ""
    return f"`{spelling}`", found.help or "", default


#: page -> (title, what makes its sections)
PAGES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "hooks.md": ("Hooks", hooks),
    "operators.md": ("Operators", operators),
    "matrix.md": ("Backends and operators", matrix),
    "environment.md": ("Environment variables", environment),
    "policy-file.md": ("Policy file", policy_file),
    "commands.md": ("Commands", commands),
}


def render(page: str) -> str:
    """The text of a page, from the code that is imported."""
    title, sections = PAGES[page]
    return "\n\n".join([GENERATED, f"# {title}", *sections()]) + "\n"


if __name__ == "__main__":
    for page in PAGES:
        (TARGET / page).write_text(render(page), encoding="utf-8")
