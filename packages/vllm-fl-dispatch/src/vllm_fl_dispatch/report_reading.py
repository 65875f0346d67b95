"""The files that processes left as reports, read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: part of a report ("": the whole) -> what is looked for in it, or in each of its entries
_NEEDED = {
    "": ("host", "pid", "rank", "rows", "failures", "shadow", "unknown_operators"),
    "rows": ("op", "impl_id", "mode", "layers", "calls", "failures"),
    "failures": ("op", "impl_id", "error"),
    "shadow": ("op", "impl_id", "beside", "layer", "mode", "compared", "first", "largest"),
}


def read(
    folder: Path, complain: Callable[[str], object] = lambda text: None
) -> list[dict[str, Any]]:
    """The reports in a folder, by start, rank and process.

    Args:
        complain: called with the name of each file that is no report, and the reason.
    """
    found = []
    for path in sorted(folder.glob("vllm-fl-*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            fault = _fault(report)
        except (OSError, ValueError) as error:
            fault = str(error)
        if fault:
            complain(f"{path} is no report: {fault}")
        else:
            found.append({"run": "", "started": "", **report})
    began = {r["run"]: r["started"] for r in sorted(found, key=_started, reverse=True)}
    return sorted(
        found,
        key=lambda r: (began[r["run"]], r["run"], r["rank"] is None, r["rank"] or 0, r["pid"]),
    )


def by_run(reports: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The same, for each start of a server; the last one is the latest."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        runs.setdefault(report["run"], []).append(report)
    return runs


def _started(report: dict[str, Any]) -> str:
    return str(report["started"])


def _fault(report: Any) -> str:
    """What keeps it from being shown, or nothing."""
    for part, needed in _NEEDED.items():
        entries = report[part] if part else [report]
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            return f"{part or 'it'} is not what a report has there"
        lacking = [name for each in entries for name in needed if name not in each]
        if lacking:
            return f"{part or 'it'} has no {lacking[0]!r}"
    rank, pid = report["rank"], report["pid"]
    if not isinstance(pid, int) or not isinstance(rank, int | None):
        return f"rank {rank!r} or pid {pid!r} is no number"
    return ""
