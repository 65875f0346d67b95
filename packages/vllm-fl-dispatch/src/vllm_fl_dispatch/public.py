"""The handles that callers hold, and what stands in them while policy scopes are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_fl_dispatch.handles import Call, Handle, make_handle, reraise
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.scopes import Scope, make_routers, scopes_here
from vllm_fl_dispatch.slots import Slot

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager


class PublicHandles:
    """One handle per operator.

    The lock is held for a moment only, never while anything is imported: a module of kernels may
    ask for a handle while another thread, which binds and waits for this module, holds the
    manager's.
    """

    def __init__(self, manager: OpManager) -> None:
        self._manager = manager
        self._lock = ForkLock()
        #: operator -> the function that callers hold
        self.calls: dict[str, Call] = {}
        self._entries: dict[str, tuple[Handle, Slot]] = {}
        self.open_scopes: list[Scope] = []

    def get(self, op_name: str) -> Call:
        """The handle of an operator, made at first use; UnknownOp names the nearest."""
        if op_name not in self.calls:
            spec = self._spec(op_name)
            with self._lock:
                if op_name not in self.calls:
                    self._make(op_name, spec)
        return self.calls[op_name]

    def slot(self, op_name: str) -> Slot:
        """The slot behind a handle."""
        self.get(op_name)
        return self._entries[op_name][1]

    def scope_opened(self, scope: Scope) -> None:
        """Routers stand in all handles from the first open scope on."""
        with self._lock:
            self.open_scopes.append(scope)
            if len(self.open_scopes) == 1:
                self.route_all()

    def scope_closed(self, scope: Scope) -> None:
        """The last closed scope takes the routers away."""
        with self._lock:
            if scope in self.open_scopes:
                self.open_scopes.remove(scope)
            if not self.open_scopes:
                self.route_all()

    def reset_in_child(self) -> None:
        """Of the scopes of a forked parent, those around the fork are open here."""
        self.open_scopes = scopes_here(self._manager)

    def route_all(self) -> None:
        """Point every handle at its slot, or at a router while scopes are open."""
        with self._lock:
            for op_name in self._entries:
                self._route(op_name)

    def _make(self, op_name: str, spec: OpSpec) -> None:
        slot = self._manager.new_slot(spec)
        handle = make_handle(spec, slot.plain_call, reraise)
        self._entries[op_name] = (handle, slot)
        self._route(op_name)
        self.calls[op_name] = handle.call

    def _spec(self, op_name: str) -> OpSpec:
        from vllm_fl_dispatch.ops import SPECS

        for spec in SPECS:  # known without discovery
            if spec.name == op_name:
                return spec
        self._manager.ensure_built()
        return self._manager.registry.spec(op_name)

    def _route(self, op_name: str) -> None:
        handle, slot = self._entries[op_name]
        if self.open_scopes:
            handle.rebind(*make_routers(self._manager, slot))
        else:
            handle.rebind(slot.plain_call, slot.call)
