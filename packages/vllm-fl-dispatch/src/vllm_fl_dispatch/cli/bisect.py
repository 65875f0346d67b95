"""``vllm-fl bisect -- COMMAND``: which operators' implementations make a command fail."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.text import Text

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.bisecting.policies import Choices, Order
from vllm_fl_dispatch.bisecting.search import Culprits, culprits
from vllm_fl_dispatch.bisecting.trials import Trial, Trials
from vllm_fl_dispatch.cli.app import AsJson, app, asides, console, say, show, styled, table
from vllm_fl_dispatch.config.environment import parsed, read
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.tokens import parse_order

FOUND, PASSES, FAILS_ANYWAY, UNDECIDED = 0, 1, 3, 4
_OUTCOMES = {
    FOUND: "found", PASSES: "passes", FAILS_ANYWAY: "fails anyway", UNDECIDED: "undecided",
}  # fmt: skip


@app.command(context_settings={"allow_interspersed_args": False})
def bisect(
    command: Annotated[list[str], typer.Argument(help="Exits with 0 where the result is right.")],
    against: Annotated[
        str, typer.Option(help="Tokens of what an operator is served by instead.")
    ] = "reference",
    ops: Annotated[
        str, typer.Option(help="Only these operators, comma list; the others stay as they are.")
    ] = "",
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a run counts as failed.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for what COMMAND prints; else a temporary one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the smallest set of operators whose implementations make COMMAND fail.

    COMMAND runs again and again, with some operators as the present policy has them and the
    others on --against. Exit codes: 0 found, 1 COMMAND passes under the present policy,
    2 wrong usage, 3 COMMAND fails with every operator on --against as well, 4 undecided: that run
    took longer than --timeout, or COMMAND does not always say the same.
    """
    if timeout is not None and not 0 < timeout < float("inf"):
        raise PolicyError(f"--timeout: {timeout:g} is not accepted; accepted: seconds, such as 600")
    manager = get_default_manager()
    manager.ensure_built()
    order = parse_order(against, "--against")
    choices = Choices.of(manager, order, parse_names(ops) or manager.registry.op_names())
    if not choices.present:
        raise PolicyError(
            f"--against: {against} serves no operator here, or none otherwise than the present "
            "policy: vllm-fl ops"
        )
    folder = _folder(output)
    everything = tuple(choices.present)
    with asides.status("") as status:

        def tell(trial: Trial) -> None:
            if not as_json:
                console.print(_line(trial, everything, against))

        trials = Trials(command, choices, folder, timeout=timeout, tell=tell)

        def fails(on: tuple[str, ...]) -> bool:
            status.update(f"run {len(trials.done) + 1}: {', '.join(on) or 'none'} as at present")
            return trials.fails(on)

        found, code, doubt = None, PASSES, ""
        if fails(everything):
            code = FAILS_ANYWAY if fails(()) else FOUND
        if code == FAILS_ANYWAY and trials.done[-1].code is None:
            code = UNDECIDED
            doubt = (
                f"run 2, with every operator on {against}, took longer than the {timeout:g} s "
                "of --timeout: whether COMMAND passes there is not known; give it more time"
            )
        if code == FOUND:
            found = culprits(everything, fails)
            doubt = _doubt(trials, found, everything)
            found, code = (None, UNDECIDED) if doubt else (found, FOUND)
    _print(trials.done, found, code, choices, folder, as_json, doubt)
    raise typer.Exit(code)


def _folder(output: Path | None) -> Path:
    """Where the output of the runs goes: there now, and not found missing after the first run.

    Raises:
        PolicyError: no files can be made there.
    """
    try:
        if output is None:
            return Path(tempfile.mkdtemp(prefix="vllm-fl-bisect-"))
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            return output
    except OSError as error:
        raise PolicyError(f"--output: {error}; accepted: a folder to be written to") from error


def _doubt(trials: Trials, found: Culprits, everything: tuple[str, ...]) -> str:
    """What speaks against the culprits when the runs that accuse them are repeated, or nothing."""
    without = tuple(op for op in everything if op not in found.avoid)
    for on, failed in (*((each, True) for each in found.sets), (without, False)):
        if not trials.is_confirmed(on, failed=failed):
            first = next(trial for trial in trials.done if set(trial.on) == set(on))
            return (
                f"runs {first.number} and {len(trials.done)} are of the same operators, and only "
                "one of the two fails: COMMAND must say the same each time; no operator is accused"
            )
    return ""


def _line(trial: Trial, everything: tuple[str, ...], against: str) -> Text:
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


def _print(
    trials: list[Trial],
    found: Culprits | None,
    code: int,
    choices: Choices,
    folder: Path,
    as_json: bool,
    doubt: str,
) -> None:
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
