"""What an implementation that overwrites its arguments offers for compiled code."""

from __future__ import annotations

from dataclasses import replace

from vllm_fl_dispatch.testing.kit import Outcome, Subject, run_case
from vllm_fl_dispatch.testing.subjects import manager_of


def functional_form(subject: Subject) -> Subject | None:
    """What `load_functional` gives, as an implementation of its own; None if it has none.

    Raises:
        ImplementationFailed: it cannot be loaded.
    """
    if subject.impl.load_functional is None:
        return None
    impl = subject.impl.functional
    fn = manager_of(subject).load(subject.spec, impl, strict=True)
    assert fn is not None
    return replace(subject, impl=impl, fn=fn)


def functional_form_is_right(subject: Subject) -> None:
    """It serves the same cases, and overwrites nothing.

    Raises:
        AssertionError: with the first case that fails.
        ImplementationFailed: it cannot be loaded.
    """
    form = functional_form(subject)
    if form is None:
        return
    for case in form.cases():
        if not case.heavy:
            result = run_case(form, case)
            assert result.outcome is not Outcome.FAILED, f"{case.name}: {result.message}"
