"""The state of a process: one registry, one policy, and the slots that follow them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_fl_dispatch import discovery, shadow, startup
from vllm_fl_dispatch.config.effective import effective
from vllm_fl_dispatch.config.environment import enabled, read, switch
from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.fallback import FailureMemory
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.implementations import Implementations
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.op_impl import OpImpl, own_layer
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.plugins import PluginLoader, PluginRecord
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.public import PublicHandles
from vllm_fl_dispatch.registry import OpRegistry
from vllm_fl_dispatch.report import Report
from vllm_fl_dispatch.resolution import Resolution, resolve
from vllm_fl_dispatch.scopes import current_policy
from vllm_fl_dispatch.selectors import Spec
from vllm_fl_dispatch.slots import Slot
from vllm_fl_dispatch.types import Query, Verdict

logger = get_logger(__name__)


class OpManager:
    """Builds the registry once, holds the policy, and binds and rebinds slots.

    Args:
        policy: the process-wide policy; None: what configuration says, read at first use.
        sources: plugins to load; None: those installed and those of `VLLM_FL_PLUGIN_MODULES`.
    """

    def __init__(
        self,
        policy: SelectionPolicy | None = None,
        sources: Iterable[discovery.Source] | None = None,
    ) -> None:
        self.lock = ForkLock()
        self.registry = OpRegistry()
        self.failures = FailureMemory()
        self.report = Report()
        #: What runs beside the selected implementations, where that was asked for.
        self.shadow: shadow.Shadow | None = None
        self.records: tuple[PluginRecord, ...] = ()
        self._sources = None if sources is None else tuple(sources)
        self._policy = policy
        self._configured: SelectionPolicy | None = None
        self._built = False
        self._building = False
        self._before_build = self.registry.snapshot()
        self._loader = PluginLoader()
        self._implementations = Implementations(self.failures)
        self._announced: dict[tuple[str, str], None] = {}
        self.public = PublicHandles(self)
        self._slots: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._slots_lock = ForkLock()
        self.registry.on_change = self._registry_changed
        _managers.add(self)

    # -- start-up -----------------------------------------------------------------------------

    def ensure_built(self) -> None:
        """Discover and load all plugins, once. A second thread waits; a hook that calls back
        sees what is registered so far."""
        if self._built:
            return
        with self.lock:
            if self._built or self._building:
                return
            self._building = True
            self._before_build = self.registry.snapshot()
            try:
                self._build()
                self._built = True
            finally:
                self._building = False
                if not self._built:
                    self._begin_anew()
            self._invalidate()

    def _build(self) -> None:
        self.records = startup.build(self.registry, self._loader, self._sources)
        if self._policy is None:
            self._configured = startup.configured(self.records)
        startup.check_names(self.policy, self.registry)
        self.shadow = shadow.start(self)
        self._start_report()

    def _begin_anew(self) -> None:
        """Forget what an unfinished start registered: the next one registers it again."""
        self.records = ()
        self._loader = PluginLoader()
        self.registry.replace_with(self._before_build)
        # A hook may have called an operator.
        self._invalidate()

    def _start_report(self) -> None:
        folder = read("VLLM_FL_REPORT")
        if folder is None or not self.report.to_file or self.report.on_news is not None:
            return
        from vllm_fl_dispatch import report_files  # few processes need it

        try:
            report_files.start(self, Path(folder))
        except OSError as error:
            # A report must not keep a server from starting.
            logger.warning("VLLM_FL_REPORT=%s: no report is written: %s", folder, error)

    def reset_in_child(self) -> None:
        """In a forked child a start that another thread had half done begins anew."""
        self.public.reset_in_child()
        if self._building:
            self._building = False
            self._begin_anew()
        self.report.forget()
        if self.shadow is not None:
            self.shadow.forget()
        if self.report.on_news is not None:
            from vllm_fl_dispatch import report_files

            report_files.save_at_end(self)
        self._invalidate()

    # -- policy -------------------------------------------------------------------------------

    @property
    def policy(self) -> SelectionPolicy:
        """The process-wide policy (scopes come on top: `get_policy`)."""
        if self._policy is not None:
            return self._policy
        self.ensure_built()
        if self._configured is None:
            # Asked by a plugin while it loads: platform defaults are not known yet.
            return effective().policy
        return self._configured

    def set_policy(self, policy: SelectionPolicy | None) -> None:
        """Replace the process-wide policy; None returns to configuration."""
        with self.lock:
            if self._built:
                # Either may raise: the policy stays what it was.
                configured = startup.configured(self.records) if policy is None else None
                startup.check_names(policy or configured or self.policy, self.registry)
                self._configured = configured or self._configured
            self._policy = policy
            self._invalidate()

    def check_names(self, policy: SelectionPolicy, besides: SelectionPolicy) -> None:
        """Warn once of names in a policy made from another that nothing here has; an error where
        it is strict."""
        if self._built:
            startup.check_names(policy, self.registry, "scope", besides)

    def current_policy(self) -> SelectionPolicy:
        return current_policy(self)

    # -- resolution ---------------------------------------------------------------------------

    def resolve(
        self,
        op_name: str,
        *,
        query: Query | None = None,
        policy: SelectionPolicy | None = None,
        stock: bool = False,
        opaque: bool = False,
        refused: Mapping[str, str] | None = None,
        numel: int | None = None,
    ) -> Resolution:
        """Who would serve this operator, and why not the others. Binds nothing.

        Args:
            query: what is known about the call; None asks without arguments.
            policy: by default the one in force here.
            stock: is it asked for a layer, for which vLLM's own code is a candidate?
            opaque: is it asked for an opaque operator, behind which it cannot be one?
            refused: impl_id -> why it failed when it was tried for this query.
            numel: elements of the largest input, where known.

        Raises:
            UnknownOp: no such operator.
        """
        self.ensure_built()
        spec = self.registry.contract(op_name)
        impls = self.registry.impls(op_name)
        policy = policy or self.current_policy()
        facts = self._implementations.facts(
            impls, query=query, numel=numel, refused=refused or {}, strict=policy.strict
        )
        if stock:
            facts = replace(facts, left_alone=_left_alone(spec, policy))
            impls = (*impls, own_layer(op_name))
        resolution = resolve(spec, impls, policy, replace(facts, opaque=opaque))
        if resolution.note:
            warning_once(logger, resolution.note)
        return resolution

    def ask(self, question: str, impl: OpImpl) -> Verdict:
        """`installed` or `available` of an implementation."""
        return self._implementations.ask(question, impl)

    def load(self, spec: Spec, impl: OpImpl, *, strict: bool | None = None) -> Call | None:
        """The function of an implementation; None if it cannot be loaded. See `Implementations`.

        Args:
            strict: an error instead; by default as the policy in force here says.
        """
        strict = self.current_policy().strict if strict is None else strict
        return self._implementations.load(spec, impl, strict=strict)

    def instrumented(self, spec: OpSpec, impl: OpImpl, mode: str, fn: Call, **where: Any) -> Call:
        """`fn`, or where a report or a shadow was asked for, one function that calls it and
        keeps a record. See `Report.counted` and `Shadow.compared`."""
        if self.shadow is not None:
            fn = self.shadow.compared(spec, impl, mode, fn, **where)
        return self.report.counted(impl, mode, fn)

    def try_out(self, spec: OpSpec, impl: OpImpl, fn: Call, query: Query) -> str | None:
        """Why an implementation fails on a tiny input, or None. See `Implementations`."""
        strict = self.current_policy().strict
        return self._implementations.try_out(spec, impl, fn, query, strict=strict)

    # -- slots --------------------------------------------------------------------------------

    def get_op(self, op_name: str) -> Call:
        """The handle of an operator. Nothing is discovered or resolved before its first call."""
        return self.public.get(op_name)

    def slot(self, op_name: str) -> Slot:
        """The slot behind the handle of an operator."""
        return self.public.slot(op_name)

    def new_slot(self, spec: OpSpec, **arguments: Any) -> Slot:
        """A slot of its own, for a layer or a scope; it follows changes like all others."""
        slot = Slot(self, spec, **arguments)
        with self._slots_lock:  # another thread may be going through them
            self._slots.add(slot)
        return slot

    def _registry_changed(self) -> None:
        if self._built:
            with self.lock:
                self._invalidate()

    def _invalidate(self) -> None:
        self._implementations.forget_verdicts()
        self._invalidate_slots()
        self.public.route_all()

    def _invalidate_slots(self, op_name: str | None = None) -> None:
        with self._slots_lock:
            slots = list(self._slots)
        for slot in slots:
            if op_name in (None, slot.spec.name):
                slot.invalidate()

    def invalidate(self) -> None:
        """Resolve everything again at the next call."""
        with self.lock:
            self._invalidate()

    # -- what happened ------------------------------------------------------------------------

    @property
    def announced(self) -> list[tuple[str, str]]:
        """(operator, implementation) of what was bound in this process, in that order."""
        return list(self._announced)

    def announce(self, spec: Spec, resolution: Resolution, impl: OpImpl) -> None:
        """Say that an implementation serves an operator: once, as layers may alternate."""
        if (spec.name, impl.impl_id) not in self._announced:
            self._announced[spec.name, impl.impl_id] = None
            logger.info("%s is served by %s (%s)", spec.name, impl, resolution.order_origin)
            if switch("VLLM_FL_DISPATCH_DEBUG", False):
                logger.info("%s\n%s", spec.name, resolution.table())

    def remember_failure(self, impl: OpImpl, key: Any, error: Exception, served_by: OpImpl) -> None:
        """An implementation failed and another one answered: say it once, avoid it from now on."""
        with self.lock:
            if self.failures.add(impl, key, error):
                logger.warning(
                    "%s failed and is not tried again for %s; %s serves it. Cause: %s",
                    impl,
                    key,
                    served_by.impl_id,
                    in_brief(error),
                )
                self.report.failed(impl)
                self._invalidate_slots(impl.op_name)

    def clear_failures(self) -> None:
        """Forget all failures; the implementations are tried again."""
        with self.lock:
            self.failures.clear()
            self._implementations.forget_trials()
            self._invalidate()


def _left_alone(spec: Spec, policy: SelectionPolicy) -> str | None:
    """Why the layers of an operator stay vLLM's, whatever could serve them."""
    if not enabled():
        return "the plugin is switched off (VLLM_FL_PREFER_ENABLED, VLLM_FL_ENABLED)"
    return policy.layer_objection(spec.names) if isinstance(spec, OpSpec) else None


_managers: weakref.WeakSet[OpManager] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for manager in list(_managers):
        manager.reset_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
