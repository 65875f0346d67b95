"""``vllm-fl bisect -- COMMAND``: which operators' implementations make a command fail."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.bisecting.policies import Choices
from vllm_fl_dispatch.bisecting.search import Culprits, culprits
from vllm_fl_dispatch.bisecting.trials import Trial, Trials
from vllm_fl_dispatch.cli.app import AsJson, app, asides, console
from vllm_fl_dispatch.cli.bisect_answer import (
    FAILS_ANYWAY,
    FOUND,
    PASSES,
    UNDECIDED,
    Answer,
    line,
    print_answer,
)
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.tokens import parse_order


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
                console.print(line(trial, everything, against))

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
    print_answer(Answer(code, found, doubt), trials.done, choices, folder, as_json)
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
