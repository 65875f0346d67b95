"""All that judges an implementation, by name: its cases, and the checks of all calls."""

from __future__ import annotations

from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.kit import Outcome, Result, Subject, run_case
from vllm_fl_dispatch.testing.places import place
from vllm_fl_dispatch.testing.structure import CHECKS

_CHECKS = {check.__name__: check for check in CHECKS}
#: The structural checks as cases without arguments; see `structure`.
STRUCTURAL = {name: Case(name, make=lambda m: ()) for name in _CHECKS}


def run(subject: Subject, case: Case) -> Result:
    """`run_case`, or one of `STRUCTURAL`. Raises nothing."""
    if case.name not in STRUCTURAL:
        return run_case(subject, case)
    try:
        _CHECKS[case.name](subject)
    except AssertionError as error:
        return Result(subject, case, Outcome.FAILED, message=str(error))
    # The compiler's, or the kernel's: as for a case.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        if _lacks_a_compiler(error):
            return Result(subject, case, Outcome.SKIPPED, message="there is no C++ compiler")
        message = f"raised {in_brief(error)}{place(error)}"
        return Result(subject, case, Outcome.FAILED, message=message)
    return Result(subject, case, Outcome.PASSED)


def _lacks_a_compiler(error: BaseException | None) -> bool:
    """Nothing to compile with here is no fault of a kernel."""
    while error is not None:
        # Imported by torch where it compiles, and not before.
        if type(error).__name__ == "InvalidCxxCompiler" or "InvalidCxxCompiler:" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
