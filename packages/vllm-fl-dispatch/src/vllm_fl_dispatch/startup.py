"""Once per process: operators, plugins, and the policy that configuration spells."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_fl_dispatch import discovery
from vllm_fl_dispatch.config.effective import effective
from vllm_fl_dispatch.config.environment import read
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import get_logger
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
    """
    from vllm_fl_dispatch.ops import SPECS
    from vllm_fl_dispatch.selectors import SELECTORS

    core = Origin("vllm-fl-dispatch")
    specs: tuple[Spec, ...] = (*SPECS, *SELECTORS)
    for spec in specs:
        registry.add_spec(spec, core)
    disabled = frozenset(parse_names(read("VLLM_FL_DISABLED_PLUGINS") or ""))
    records = []
    for source in _found() if sources is None else sources:
        record = loader.load(source, registry, disabled)
        records.append(record)
        if record.status == "broken":
            logger.warning(
                "plugin %s of %s was left out: %s", source.name, source.origin, record.error
            )
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
        logger.warning_once(warning)
    return found.policy


def check_names(policy: SelectionPolicy, registry: OpRegistry, where: str = "policy") -> None:
    """Warn of names in a policy that nothing here has.

    Args:
        where: what the warning names as the place of the mistake.

    Raises:
        PolicyError: there is one, and the policy is strict.
    """
    ops, vendors = registry.names(), registry.vendors()
    named = [
        token.partition(":")[2]
        for order in policy.per_op_order.values()
        for token in order
        if token.startswith("vendor:")
    ]
    listed = dict.fromkeys([*named, *policy.deny_vendors, *(policy.allow_vendors or ())])
    problems = [unknown_name("operator", op, ops) for op in policy.per_op_order if op not in ops]
    problems += [unknown_name("vendor", v, vendors) for v in listed if v not in vendors]
    for problem in problems:
        if policy.strict:
            raise PolicyError(f"{where}: {problem} (the policy is strict)")
        logger.warning("%s: %s", where, problem)
