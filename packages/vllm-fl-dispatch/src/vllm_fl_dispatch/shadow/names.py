"""What a layer is called in its model: ``model.layers.0.input_layernorm``.

A layer does not know its name when it is built. torch tells of each module that becomes part of
another one, from the leaves to the root; the name of a layer is read off that later.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook

#: module -> its places: (the module that it is part of, its name there)
_places: weakref.WeakKeyDictionary[Any, list[tuple[weakref.ref[Any], str]]] = (
    weakref.WeakKeyDictionary()
)
#: Modules that others are part of.
_parents: weakref.WeakSet[Any] = weakref.WeakSet()
_layers: weakref.WeakSet[Any] = weakref.WeakSet()
_installed: list[Any] = []


def watch(layer: Any) -> None:
    """Remember where this layer, and all modules built from now on, become part of others."""
    if isinstance(layer, torch.nn.Module):
        _layers.add(layer)
    if not _installed:
        _installed.append(register_module_module_registration_hook(_registered))


def _registered(parent: Any, name: str, child: Any) -> None:
    if child is not None:
        _parents.add(parent)
        _places.setdefault(child, []).append((weakref.ref(parent), name))


def name_of(layer: Any) -> str:
    """The qualified name of a layer, or "" if it is part of nothing.

    One that is part of several others, as vLLM's rotary embedding is, goes by the first of its
    names, and the number of the others is said.
    """
    names = _names(layer)
    if not names:
        return ""
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more places)"


def _names(layer: Any) -> list[str]:
    found = [
        f"{above}.{name}" if above else name
        for parent, name in _places_of(layer)
        for above in _names(parent) or [""]
    ]
    return list(dict.fromkeys(found))


def _places_of(layer: Any) -> Iterator[tuple[Any, str]]:
    if not isinstance(layer, torch.nn.Module):
        # vLLM's routers are plain attributes, of which torch does not tell.
        for parent in list(_parents):
            yield from ((parent, n) for n, value in vars(parent).items() if value is layer)
        return
    for parent_ref, name in _places.get(layer, ()):
        parent = parent_ref()
        # What was replaced by another module since is no place any more.
        if parent is not None and parent._modules.get(name) is layer:
            yield parent, name


def layer_of(arguments: tuple[Any, ...]) -> Any:
    """The watched layer that owns one of these tensors as a parameter, or None.

    In compiled code all layers call one operator; their weights tell them apart.
    """
    addresses = {
        argument.data_ptr() for argument in arguments if isinstance(argument, torch.Tensor)
    } - {0}
    for layer in list(_layers):
        if any(parameter.data_ptr() in addresses for parameter in layer.parameters()):
            return layer
    return None
