"""Once per process: operators, plugins, and the policy that configuration spells."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vllm_fl_dispatch import discovery
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.effective import effective
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.platforms import platform_defaults
from vllm_fl_dispatch.plugins import PluginLoader, PluginRecord
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import OpRegistry, unknown_name
from vllm_fl_dispatch.selectors import Spec
from vllm_fl_dispatch.types import Origin

logger = get_logger(__name__)


def build(
    registry: OpRegistry, loader: PluginLoader, sources: Iterable[discovery.Source] | None
) -> tuple[PluginRecord, ...]:
    """Fill a registry with our operators and with what plugins register.

    Args:
        sources: the plugins; None: those installed and those of `VLLM_FL_PLUGIN_MODULES`.

    Raises:
        PolicyError: a variable that is no part of a policy has a wrong value.
    """
    # Now, and not when it is first needed.
    for _, error in environment.wrong(policy=False):
        raise error
    from vllm_fl_dispatch.ops import SPECS
    from vllm_fl_dispatch.selectors import SELECTORS

    core = Origin("vllm-fl-dispatch")
    specs: tuple[Spec, ...] = (*SPECS, *SELECTORS)
    for spec in specs:
        registry.add_spec(spec, core)
    disabled = frozenset(parse_names(environment.read("VLLM_FL_DISABLED_PLUGINS") or ""))
    records = []
    for source in _found() if sources is None else sources:
        record = loader.load(source, registry, disabled)
        records.append(record)
        if record.status == "broken":
            logger.warning(
                "plugin %s of %s is broken: %s", source.name, source.origin, record.error
            )
    names = {name for r in records for name in (r.name, r.source.origin.distribution)}
    for name in sorted(disabled - names):
        logger.warning("VLLM_FL_DISABLED_PLUGINS: %s", unknown_name("plugin", name, names))
    for refusal in registry.snapshot().refusals:
        logger.warning("%s: refused %s: %s", refusal.origin, refusal.what, refusal.reason)
    for impl in registry.orphans():
        logger.warning("%s: %s", impl, unknown_name("operator", impl.op_name, registry.names()))
    return tuple(records)


def _found() -> Iterable[discovery.Source]:
    scan = discovery.installed()
    for file, problem in scan.problems:
        logger.warning("%s: %s", file, problem)
    return (*scan.sources, *discovery.module_sources())


def configured(records: Iterable[PluginRecord]) -> SelectionPolicy:
    """The policy of files and environment; what must be said about it is said once.

    Raises:
        PolicyError: a wrong value, or a file that the user named and that cannot be used.
    """
    found = effective(platform=platform_defaults(records))
    for warning in found.warnings:
        warning_once(logger, warning)
    return found.policy


def check_names(
    policy: SelectionPolicy,
    registry: OpRegistry,
    where: str = "policy",
    besides: SelectionPolicy | None = None,
) -> None:
    """Warn once of names in a policy that nothing here has.

    Args:
        where: what the warning names as the place of the mistake.
        besides: the policy that it was made from, about whose names enough was said.

    Raises:
        PolicyError: there is one, and the policy is strict.
    """
    said = [] if besides is None else unknown_names(besides, registry)
    for problem in unknown_names(policy, registry):
        if problem in said:
            continue
        if policy.strict:
            raise PolicyError(f"{where}: {problem} (the policy is strict)")
        warning_once(logger, f"{where}: {problem}")


def unknown_names(policy: SelectionPolicy, registry: OpRegistry) -> list[str]:
    """What is to be said about each name in a policy that nothing here has.

    The lists of FlagGems are left out: they may name ATen operators as well.
    """
    ops = registry.names()
    orders = [policy.per_op_order, policy.compiled.get("per_op_order", {})]
    tokens = [t.partition(":") for each in orders for order in each.values() for t in order]
    vendors = [name for kind, _, name in tokens if kind == "vendor" and name]
    used: list[tuple[str, Iterable[str], Collection[str]]] = [
        ("operator", [op for each in orders for op in each], ops),
        ("operator", policy.oot_blacklist, ops),
        ("operator", policy.oot_whitelist or (), ops),
        ("vendor", [*vendors, *policy.deny_vendors, *(policy.allow_vendors or ())],
         registry.vendors()),
        ("implementation", [name for kind, _, name in tokens if kind == "impl"],
         {impl.impl_id for op in ops for impl in registry.impls(op)}),
    ]  # fmt: skip
    found = [
        unknown_name(what, name, known) for what, names, known in used for name in names
        if name not in known
    ]  # fmt: skip
    return list(dict.fromkeys(found))
