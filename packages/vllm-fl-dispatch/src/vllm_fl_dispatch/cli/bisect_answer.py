"""What `vllm-fl bisect` says at the end: the runs, the culprits, and how to avoid them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from vllm_fl_dispatch.bisecting.policies import Choices, Order
from vllm_fl_dispatch.bisecting.search import Culprits
from vllm_fl_dispatch.bisecting.trials import Trial
from vllm_fl_dispatch.cli.app import say, show, styled, table
from vllm_fl_dispatch.config.environment import parsed, read

FOUND, PASSES, FAILS_ANYWAY, UNDECIDED = 0, 1, 3, 4
_OUTCOMES = {
    FOUND: "found", PASSES: "passes", FAILS_ANYWAY: "fails anyway", UNDECIDED: "undecided",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What the runs say.

    Attributes:
        code: exit code.
        found: the culprits, where it is `FOUND`.
        doubt: why it is `UNDECIDED`.
    """

    code: int
    found: Culprits | None
    doubt: str


def line(trial: Trial, everything: tuple[str, ...], against: str) -> Text:
    """What is said when a run is over."""
    names = _spoken(trial.on, everything)
    verdict = ("fails", "red") if trial.failed else ("passes", "green")
    rest = f", {trial.seconds:.1f} s; not on {against}: {names}"
    return styled(f"run {trial.number}: ", verdict, rest)


def _spoken(on: tuple[str, ...], everything: tuple[str, ...]) -> str:
    """The operators of a run, or those that it leaves out where these are fewer."""
    off = [op for op in everything if op not in on]
    if not on or not off:
        return "all" if on else "none"
    return f"all but {', '.join(off)}" if len(off) < len(on) else ", ".join(on)


def print_answer(
    answer: Answer, trials: list[Trial], choices: Choices, folder: Path, as_json: bool
) -> None:
    """Print the runs, and what they say."""
    code, found, doubt = answer.code, answer.found, answer.doubt
    against = "|".join(choices.against)
    made = table(
        "Runs", "run", f"not on {against}", "exit code", "seconds", "verdict", "output",
        wrap=[f"not on {against}"],
    )  # fmt: skip
    for trial in trials:
        made.add_row(
            str(trial.number), _spoken(trial.on, tuple(choices.present)),
            "(timeout)" if trial.code is None else str(trial.code), f"{trial.seconds:.1f}",
            "fails" if trial.failed else "passes", trial.output.name,
            style="red" if trial.failed else "green",
        )  # fmt: skip
    data: dict[str, Any] = {
        "outcome": _OUTCOMES[code],
        "against": against,
        "output": str(folder),
        "runs": [trial.as_dict() for trial in trials],
        "doubt": doubt,
    }
    remedy: list[str] = []
    lines: list[str | Text]
    if found is None:
        lines = [doubt or _nothing_found(code, against)]
    else:
        remedy, settings = _remedy(choices, found.avoid)
        data |= {"culprits": found.sets, "avoid": found.avoid, **settings}
        lines = [styled((_named(each), "bold red"), " makes it fail") for each in found.sets]
        lines.append("This avoids the fault, and the shadow shows the layer where it begins:")
        accused = dict.fromkeys((op for each in found.sets for op in each), choices.against)
        remedy.append(f'VLLM_FL_SHADOW="{_spelled(accused)}"')
    show(as_json, data, made, *lines)
    if not as_json:
        # To be copied: not wrapped.
        say(*remedy, f"output of all runs: {folder}")


def _named(together: tuple[str, ...]) -> str:
    return " together with ".join(together)


def _nothing_found(code: int, against: str) -> str:
    if code == PASSES:
        return "COMMAND passes under the present policy: there is nothing to find"
    return (
        f"COMMAND fails with every operator on {against} as well: the cause is none of these "
        "operators, or COMMAND does not use vllm-fl"
    )


def _remedy(choices: Choices, avoid: tuple[str, ...]) -> tuple[list[str], dict[str, Any]]:
    """What the user adds to his settings, as lines and for JSON.

    A variable, or lines for the policy file where one is in force and replaces the variable.
    """
    orders = choices.orders_avoiding(avoid)
    file = read("VLLM_FL_CONFIG")
    if file is None:
        present: dict[str, Order] = parsed("VLLM_FL_PER_OP") or {}
        spelled = _spelled({**present, **orders})
        return [f'VLLM_FL_PER_OP="{spelled}"'], {"VLLM_FL_PER_OP": spelled}
    settings: dict[str, Any] = {"op_backends": _plain(orders)}
    if choices.policy.compiled:
        compiled = choices.orders_avoiding(avoid, compiled=True)
        settings["compiled"] = {"op_backends": _plain(compiled)}
    return [f"in {file}:", yaml.safe_dump(settings, sort_keys=False).rstrip()], settings


def _spelled(orders: dict[str, Order]) -> str:
    return ";".join(f"{op}={'|'.join(order)}" for op, order in orders.items())


def _plain(orders: dict[str, Order]) -> dict[str, str]:
    return {op: "|".join(order) for op, order in orders.items()}
