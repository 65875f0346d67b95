"""What an implementation that overwrites its arguments offers for compiled code."""

from __future__ import annotations

from dataclasses import replace

from vllm_fl_dispatch.testing.kit import Outcome, Subject, run_case
from vllm_fl_dispatch.testing.subjects import manager_of


def functional_form_is_right(subject: Subject) -> None:
    """What `load_functional` gives serves the same cases, and overwrites nothing.

    Raises:
        AssertionError: with the first case that fails.
        ImplementationFailed: it cannot be loaded.
    """
    if subject.impl.load_functional is None:
        return
    impl = subject.impl.functional
    fn = manager_of(subject).load(subject.spec, impl, strict=True)
    assert fn is not None
    form = replace(subject, impl=impl, fn=fn)
    for case in form.cases():
        if not case.heavy:
            result = run_case(form, case)
            assert result.outcome is not Outcome.FAILED, f"{case.name}: {result.message}"
