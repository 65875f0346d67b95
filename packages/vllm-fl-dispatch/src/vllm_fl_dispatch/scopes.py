"""Policies for a block of code: context managers that other threads and tasks never see.

While any scope is open, the handles of the manager carry a router that asks a ContextVar;
otherwise no call pays for scopes. Scopes act on handles, and on layers built inside them; not on
layers already built, compiled code or other processes. A `with` around a `yield` in a generator
leaks to the generator's caller, as it does for every ContextVar.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.slots import Slot

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager

_current: ContextVar[Scope | None] = ContextVar("vllm_fl_scope", default=None)


class Scope:
    """An open block with a policy of its own. Reusable one after the other, not while open."""

    def __init__(
        self, manager: OpManager, change: Callable[[SelectionPolicy], SelectionPolicy]
    ) -> None:
        self._manager = manager
        self._change = change
        self._token: Token[Scope | None] | None = None
        self.parent: Scope | None = None
        self.policy: SelectionPolicy | None = None
        #: process-wide slot -> slot under this scope's policy; empty while the scope is closed
        self.slots: dict[Slot, Slot] = {}

    def __enter__(self) -> SelectionPolicy:
        if self.policy is not None:
            raise RuntimeError("this policy scope is already open; make a new one to nest it")
        manager = self._manager
        with manager.lock:
            around = current_policy(manager)
            policy = self._change(around)
            manager.check_names(policy, besides=around)
            self.parent = _open(_current.get())
            self.policy = policy
            self.slots = {}
            manager.public.scope_opened(self)
        # The routers are in place before the scope becomes visible.
        self._token = _current.set(self)
        return self.policy

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        token, self._token = self._token, None
        try:
            if token is not None:
                _current.reset(token)
        except ValueError:
            # Left in another context (an async generator finished elsewhere): being closed is
            # enough, routers skip closed scopes.
            pass
        with self._manager.lock:
            self.policy = None
            self.slots = {}
            self._manager.public.scope_closed(self)

    def slot_for(self, slot: Slot) -> Slot:
        """The slot of the same operator under this scope's policy."""
        own = self.slots.get(slot)
        if own is None:
            made = self._manager.new_slot(slot.spec, policy=self.policy, donate=slot.donate)
            own = self.slots.setdefault(slot, made)
        return own


def _open(scope: Scope | None, manager: OpManager | None = None) -> Scope | None:
    """The innermost open one of a scope and those around it; of a manager, if one is given.

    A scope that was left in another context is still current here, and closed.
    """
    while scope is not None and (scope.policy is None or manager not in (None, scope._manager)):
        scope = scope.parent
    return scope


def open_scope(manager: OpManager) -> Scope | None:
    """The innermost open scope of this context that belongs to the manager."""
    return _open(_current.get(), manager)


def scopes_here(manager: OpManager) -> list[Scope]:
    """All open scopes of this context that belong to the manager."""
    scopes, scope = [], open_scope(manager)
    while scope is not None:
        scopes.append(scope)
        scope = _open(scope.parent, manager)
    return scopes


def current_policy(manager: OpManager) -> SelectionPolicy:
    """The policy that a call made here would follow."""
    scope = open_scope(manager)
    return manager.policy if scope is None or scope.policy is None else scope.policy


def make_routers(manager: OpManager, slot: Slot) -> tuple[Call, Call]:
    """The functions that stand in a public handle while scopes are open: for calls without
    options, and for calls with."""
    plain_base, base = slot.plain_call, slot.call
    current = _current.get
    torch = sys.modules.get("torch")
    is_compiling: Callable[[], bool] = torch.compiler.is_compiling if torch else _never

    def scoped_slot() -> Slot:
        scope = open_scope(manager)
        return slot if scope is None else scope.slot_for(slot)

    # In both: a ContextVar cannot be traced, and a scope of one thread must not break the
    # compilation in another. A scope that was closed has no slots.
    def route_plain(*args: Any) -> Any:
        if is_compiling():
            return plain_base(*args)
        scope = current()
        if scope is None:
            return plain_base(*args)
        own = scope.slots.get(slot)
        return (own or scoped_slot()).plain_call(*args)

    def route(*args: Any, **options: Any) -> Any:
        if is_compiling() or current() is None:
            return base(*args, **options)
        return scoped_slot().call(*args, **options)

    return route_plain, route


def _never() -> bool:
    return False


def scoped(manager: OpManager, **values: Any) -> Scope:
    """A scope that replaces some settings of the policy around it."""
    return Scope(manager, lambda policy: policy.with_values("scope", **values))
