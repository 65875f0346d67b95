"""What the tests of the core share."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from vllm_fl_dispatch import BackendImplKind, OpImpl, OpManager, SelectionPolicy, api, discovery
from vllm_fl_dispatch.config.carried import carry
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.report_files import RUN
from vllm_fl_dispatch.types import Origin

# A shared machine may take any time for one example.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def impl(
    impl_id: str, fn: Callable[..., Any] | None = None, op: str = "silu_and_mul", **more: Any
) -> OpImpl:
    """An implementation whose kind follows from its id; by default it returns its id."""
    head, _, name = impl_id.partition(".")
    kind = {
        "default": BackendImplKind.DEFAULT,
        "vendor": BackendImplKind.VENDOR,
        "reference": BackendImplKind.REFERENCE,
    }[head]
    more.setdefault("empty_ok", True)
    if fn is None and "load" not in more:
        fn = _answers(impl_id)
    vendor = name if kind is BackendImplKind.VENDOR else None
    return OpImpl(op, impl_id, kind, fn, vendor, **more)


def _answers(impl_id: str) -> Callable[..., Any]:
    def answer(x: Any) -> str:
        return impl_id

    return answer


@pytest.fixture(autouse=True)
def no_carried_policy() -> Iterator[None]:
    """What a test sets in code, or begins, must not reach the next test's processes."""
    yield
    carry(None)
    os.environ.pop(RUN, None)


@pytest.fixture
def make_manager() -> Callable[..., OpManager]:
    """A manager with just these implementations, and no discovery."""

    def make(*impls: OpImpl, policy: SelectionPolicy | None = None) -> OpManager:
        manager = OpManager(policy or SelectionPolicy(), sources=())
        manager.ensure_built()
        manager.registry.register_many(impls)
        return manager

    return make


@pytest.fixture
def default_manager(make_manager: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs a manager with these implementations as the process's default."""

    def install(*impls: OpImpl, **more: Any) -> OpManager:
        manager = make_manager(*impls, **more)
        monkeypatch.setattr(api, "_default", manager)
        return manager

    yield install
    discovery.installed.cache_clear()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Writes an importable module (``a.b`` makes packages)."""
    root = tmp_path / "modules"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))

    def write(name: str, text: str) -> Path:
        *packages, leaf = name.split(".")
        folder = root
        for package in packages:
            folder = folder / package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        path = folder / f"{leaf}.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., Path]:
    """Writes the metadata of an installed distribution; returns the folder to put on the path."""

    def write(
        name: str,
        version: str = "1.0",
        entry_points: str = "",
        folder: str = "site",
        suffix: str = "dist-info",
    ) -> Path:
        site = tmp_path / folder
        info = site / f"{name.replace('-', '_')}-{version}.{suffix}"
        info.mkdir(parents=True)
        metadata = "METADATA" if suffix == "dist-info" else "PKG-INFO"
        (info / metadata).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if entry_points:
            (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        return site

    return write


def source(target: str, name: str = "planted") -> Source:
    return Source(name, target, Origin(f"dist-of-{name}", "1.2.3", name))
