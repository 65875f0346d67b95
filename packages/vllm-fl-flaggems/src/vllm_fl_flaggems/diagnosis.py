"""What `vllm-fl doctor` says about FlagGems."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_fl_dispatch import get_default_manager, probing
from vllm_fl_flaggems import library, trial
from vllm_fl_flaggems.probe import HOW_TO_INSTALL, device_present, library_installed


def lines() -> Iterator[str]:
    """Library, device, pins that pip complains about, and a trial of the import."""
    installed, device = library_installed(), device_present()
    for what, verdict in (("FlagGems", installed), ("accelerator", device)):
        yield f"{what}: {'found' if verdict else verdict.reason}"
    pins = list(_unmet_pins())
    if pins:
        yield (
            f"pip check: flag-gems pins {', '.join(pins)}; it runs with these, and was installed "
            f"without its requirements for that reason ({HOW_TO_INSTALL})"
        )
    names = get_default_manager().policy.flagos_aten
    yield (
        f"ATen operators: {', '.join(sorted(names))} replaced in vLLM's workers, where `reference` "
        "then runs on FlagGems too"
        if names
        else "ATen operators: torch's own (flagos_aten is off)"
    )
    if installed and device:
        found = library.outcome() or trial.attempt()
        yield f"import: {'works' if found else 'fails: '}{'' if found else found.reason}"


def _unmet_pins() -> Iterator[str]:
    """The requirements of flag-gems that other versions than those installed would meet."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        declared = importlib.metadata.requires("flag-gems") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in declared:
        requirement = Requirement(text)
        found = probing.version_of(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if found is None or not requirement.specifier.contains(found):
            yield f"{requirement.name}{requirement.specifier} (found {found or 'none'})"
