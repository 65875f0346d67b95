"""From an announced plugin to registered operators. A broken plugin is a record, not a crash."""

from __future__ import annotations

import importlib
import inspect
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pluggy

from vllm_fl_dispatch import hookspecs
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.errors import PluginError, in_brief
from vllm_fl_dispatch.registry import OpRegistry, Registrar, nearest

#: Functions that older plugins expose instead of hooks; each takes the registry.
LEGACY_FUNCTIONS = ("vllm_fl_register", "register_builtins", "register")
_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("vllm_fl_"))
_MARK = f"{hookspecs.PROJECT}_impl"


@dataclass(frozen=True)
class PluginRecord:
    """What became of one plugin."""

    source: Source
    status: str  # loaded | broken | disabled
    form: str = ""  # hooks | function
    hooks: tuple[str, ...] = ()
    impl_count: int = 0
    error: str = ""
    traceback: str = ""
    plugin: Any = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.source.name


class PluginLoader:
    """Loads sources one after the other into a registry."""

    def __init__(self) -> None:
        self.hooks = pluggy.PluginManager(hookspecs.PROJECT)
        self.hooks.add_hookspecs(hookspecs)

    def load(
        self, source: Source, registry: OpRegistry, disabled: frozenset[str] = frozenset()
    ) -> PluginRecord:
        """Import one plugin and let it register into a copy that is kept only if it succeeds."""
        if source.name in disabled or source.origin.distribution in disabled:
            return PluginRecord(source, "disabled", error="named in VLLM_FL_DISABLED_PLUGINS")
        before = registry.snapshot()
        staging = OpRegistry(before)
        try:
            record = self._load(source, staging)
        # A plugin may raise anything while it is imported, SystemExit included; the others
        # must still load.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self._forget(source)
            return PluginRecord(
                source,
                "broken",
                error=in_brief(error),
                traceback=traceback.format_exc(),
            )
        added = staging.size() - OpRegistry(before).size()
        registry.absorb(staging, before)
        return replace(record, impl_count=added)

    def _load(self, source: Source, registry: OpRegistry) -> PluginRecord:
        plugin = _import(source.target)
        registrar = Registrar(registry, source.origin)
        # A class announced by an entry point is used through an instance of it.
        if inspect.isclass(plugin) and _marked(plugin):
            plugin = plugin()
        marked = _marked(plugin)
        if marked:
            self._check_level(plugin)
            _check_names(marked)
            _check_parameters(marked)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.hooks.register(plugin, name=_key(source))
            # Only this plugin's hooks: a broadcast would stop at the first plugin that raises.
            caller = self.hooks.subset_hook_caller
            others = [p for p in self.hooks.get_plugins() if p is not plugin]
            caller("vllm_fl_register_specs", others)(registrar=registrar)
            caller("vllm_fl_register_ops", others)(registrar=registrar)
            return PluginRecord(source, "loaded", "hooks", tuple(marked), plugin=plugin)
        function = _legacy_function(plugin)
        if function is None:
            unmarked = [name for name in _HOOKS if callable(getattr(plugin, name, None))]
            if unmarked:
                raise PluginError(
                    f"{', '.join(unmarked)} of {source.target} lacks the marker: put "
                    "@vllm_fl_dispatch.hookimpl above it"
                )
            raise PluginError(
                f"{source.target} is not a plugin: it has no function marked with "
                "vllm_fl_dispatch.hookimpl, and no function with exactly one required argument "
                f"that is itself announced or named {', '.join(LEGACY_FUNCTIONS)}"
            )
        function(registrar)
        return PluginRecord(source, "loaded", "function", (function.__name__,), plugin=plugin)

    def _check_level(self, plugin: Any) -> None:
        level = getattr(plugin, "vllm_fl_api", hookspecs.API_LEVEL)
        if level != hookspecs.API_LEVEL:
            raise PluginError(
                f"it was written for level {level!r} of the hook interface, this is level "
                f"{hookspecs.API_LEVEL}; install matching versions of it and of vllm-fl-dispatch"
            )

    def _forget(self, source: Source) -> None:
        if self.hooks.has_plugin(_key(source)):
            self.hooks.unregister(name=_key(source))


def _key(source: Source) -> str:
    return f"{source.origin.distribution}:{source.name}={source.target}"


def _import(target: str) -> Any:
    module_name, _, attribute = (part.strip() for part in target.partition(":"))
    try:
        plugin: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise PluginError(
            f"there is no module {error.name}: it is not installed, and in no folder of PYTHONPATH"
        ) from error
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    return plugin


def _marked(plugin: Any) -> dict[str, Callable[..., Any]]:
    """The functions of an object that carry our hookimpl marker."""
    if inspect.isfunction(plugin):
        return {}
    found = {}
    for name in dir(plugin):
        try:
            value = inspect.getattr_static(plugin, name)
        except AttributeError:
            continue
        # What is no function may have any attribute that it is asked for, as torch.ops has.
        if inspect.isroutine(value) and getattr(value, _MARK, None) is not None:
            found[name] = getattr(plugin, name)
    return found


def _check_names(marked: dict[str, Callable[..., Any]]) -> None:
    for name in marked:
        if name not in _HOOKS:
            near = nearest(name, _HOOKS)
            hint = f"; did you mean {near}?" if near else ""
            raise PluginError(f"{name} is not a hook{hint} known hooks: {', '.join(_HOOKS)}")


def _check_parameters(marked: dict[str, Callable[..., Any]]) -> None:
    for name, function in marked.items():
        accepted = list(inspect.signature(getattr(hookspecs, name)).parameters)
        found = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        if not set(found) <= set(accepted):
            raise PluginError(
                f"{name}({', '.join(found)}) does not fit the hook, whose parameters are given by "
                f"name: {name}({', '.join(accepted)})"
            )


def _legacy_function(plugin: Any) -> Callable[[Registrar], object] | None:
    if _takes_one_argument(plugin):
        return plugin  # type: ignore[no-any-return]  # checked the line above
    if not isinstance(plugin, types.ModuleType):
        return None
    for name in LEGACY_FUNCTIONS:
        function = getattr(plugin, name, None)
        if function is None:
            continue
        if not _takes_one_argument(function):
            raise PluginError(
                f"{plugin.__name__}.{name} must take exactly one required argument, the registry; "
                f"found {name}{inspect.signature(function) if callable(function) else ''}"
            )
        return function  # type: ignore[no-any-return]  # checked above
    return None


def _takes_one_argument(function: Any) -> bool:
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return len(required) == 1 and required[0].kind is not inspect.Parameter.KEYWORD_ONLY
