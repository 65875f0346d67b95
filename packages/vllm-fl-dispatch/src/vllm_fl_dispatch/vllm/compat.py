"""Every difference between vLLM releases that we care for, in one place.

Nothing else in the package reads vLLM's configuration, registries or private names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from vllm_fl_dispatch.logger_manager import get_logger

logger = get_logger(__name__)

#: Modules with a CustomOp and an out-of-tree registry of its own; the second since vLLM 0.28.
CUSTOM_OP_MODULES = (
    "vllm.model_executor.custom_op",
    "vllm.model_executor.hw_agnostic.custom_op",
)


def import_attribute(module: str, name: str) -> Any:
    """An attribute of a module of vLLM, or None where this release has it not."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


class Registry:
    """Where constructing a custom operator class of vLLM looks for a replacement.

    vLLM renames a registered class to its registry key; the in-tree name is put back, so that
    ``custom_ops=["-rms_norm"]`` goes on to mean this layer.
    """

    def __init__(self, base: Any) -> None:
        self._base = base
        self._table = oot_registry(base)

    def current(self) -> type | None:
        """The replacement in force."""
        return self._table.get(self._base.__name__)

    def put(self, replacement: Any) -> None:
        """Let vLLM construct `replacement` where it asks for the class."""
        in_tree_name = self._base.name
        admit_later_classes(self._base, self._table)
        self._base.register_oot(replacement, name=self._base.__name__)
        replacement.name = in_tree_name

    def remove(self) -> None:
        """Let vLLM construct its own class again."""
        del self._table[self._base.__name__]


def admit_later_classes(base: Any, table: dict[str, Any]) -> None:
    """Let another plugin register a class under a name for which a dispatched one stands.

    vLLM refuses a second class for a name, and a platform may register its own when its worker
    starts, after the general plugins ran: the worker would die. Theirs takes the place, as one
    that is registered earlier keeps it. Idempotent.
    """
    owner = next(cls for cls in base.__mro__ if "register_oot" in vars(cls))
    original = vars(owner)["register_oot"].__func__
    if hasattr(original, "fl_original"):
        return

    def register_oot(cls: Any, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
        def register(op_cls: Any) -> Any:
            key = cls.__name__ if name is None else name
            if hasattr(table.get(key), "fl_bind"):
                logger.warning(
                    "%s: %s.%s takes the place of the dispatched layer",
                    key,
                    op_cls.__module__,
                    op_cls.__name__,
                )
                del table[key]
            return original(cls, op_cls, name=name)

        return register if _decorated_op_cls is None else register(_decorated_op_cls)

    register_oot.fl_original = original  # type: ignore[attr-defined]  # the mark
    owner.register_oot = classmethod(register_oot)


class Attribute:
    """The module attribute through which a factory of vLLM makes a class that has no registry."""

    def __init__(self, base: Any, module: str) -> None:
        self._base = base
        self._module = importlib.import_module(module)

    def current(self) -> type | None:
        """The replacement in force."""
        found: type = getattr(self._module, self._base.__name__)
        return None if found is self._base else found

    def put(self, replacement: Any) -> None:
        """Let the factory make `replacement`."""
        setattr(self._module, self._base.__name__, replacement)

    def remove(self) -> None:
        """Let the factory make vLLM's own class again."""
        setattr(self._module, self._base.__name__, self._base)


def oot_registry(layer_class: type) -> dict[str, type]:
    """The out-of-tree registry that constructing this class looks into."""
    for base in layer_class.__mro__:
        if base.__module__ in CUSTOM_OP_MODULES:
            registry: dict[str, type] = vars(importlib.import_module(base.__module__))[
                "op_registry_oot"
            ]
            return registry
    raise TypeError(f"{layer_class} is not one of vLLM's custom operator classes")


def compilation_config() -> Any:
    """The compilation configuration under which layers are being built."""
    from vllm.config import get_cached_compilation_config

    return get_cached_compilation_config()


def is_compiling_model() -> bool:
    """Will vLLM trace the model that is being built?"""
    from vllm.config.compilation import CompilationMode

    mode = getattr(compilation_config(), "mode", None)
    return mode is not None and mode != CompilationMode.NONE


def is_switched_off(layer_class: type) -> bool:
    """Did the user say ``-name`` for this layer?

    Not the same as `enabled()`, which is False for all layers in the compiled modes.
    """
    return f"-{getattr(layer_class, 'name', '')}" in compilation_config().custom_ops


def device_type() -> str:
    """``cpu``, ``cuda``, ``npu``: what the platform in force calls its devices."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def is_ours() -> bool:
    """Does vLLM run on `PlatformFL`?"""
    return hasattr(platform_class(), "fl_device")


def platform_class() -> type:
    """The class of the platform in force."""
    from vllm.platforms import current_platform

    return type(current_platform)


def add_environment_variables(getters: dict[str, Callable[[], Any]]) -> None:
    """Make variables known to vLLM: no warning about unknown names, and their values are part of
    the key of its compile cache."""
    from vllm import envs

    envs.environment_variables.update(getters)


def rotary_classes() -> Iterator[type]:
    """RotaryEmbedding and those of vLLM's subclasses of it whose forward is entirely its own."""
    base = import_attribute("vllm.model_executor.layers.rotary_embedding", "RotaryEmbedding")
    if base is None or mutates_rotary():
        return
    methods = [name for name in dir(base) if name == "forward" or name.startswith("forward_")]
    pending, seen = [base], set()
    while pending:
        each = pending.pop()
        # Replacements, ours and other plugins', are subclasses as well.
        if each in seen or not each.__module__.startswith("vllm."):
            continue
        seen.add(each)
        pending.extend(each.__subclasses__())
        if all(getattr(each, name) is getattr(base, name) for name in methods):
            yield each


def mutates_rotary() -> bool:
    """Do models of this platform drop what a rotary layer returns, and want query and key changed?

    DeepSeek's do on ROCm.
    """
    from vllm.platforms import current_platform

    return bool(current_platform.is_rocm())


def forget_rotary_layers() -> None:
    """Empty the table through which models of one process share rotary layers.

    A layer in it was bound under the selection of its time.
    """
    module = "vllm.model_executor.layers.rotary_embedding"
    shared = import_attribute(module, "_ROPE_DICT")
    if shared is not None:
        shared.clear()


def matched_cache(layer: Any, query: Any) -> Any:
    """The cos/sin table of a rotary layer in the query's dtype and on its device.

    Older releases return nothing and change the layer.
    """
    cache = layer._match_cos_sin_cache_dtype(query)
    return layer.cos_sin_cache if cache is None else cache


def import_path(path: str) -> Any:
    """What a path of the form ``package.module.Class`` names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@contextmanager
def eager_configuration() -> Iterator[None]:
    """Layers built inside are those of a model that vLLM runs eagerly, with its own kernels."""
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(_eager_config()):
        yield


@cache
def _eager_config() -> Any:
    from vllm.config import CompilationConfig, VllmConfig

    config = VllmConfig(compilation_config=CompilationConfig(mode=0, custom_ops=["all"]))
    # Releases with vLLM IR choose kernels by a priority, which workers install.
    priority: Any = getattr(getattr(config, "kernel_config", None), "ir_op_priority", None)
    if hasattr(priority, "set_default"):
        priority.set_default()
    return config
