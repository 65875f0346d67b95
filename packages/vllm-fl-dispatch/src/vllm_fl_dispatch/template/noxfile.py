"""Everything that is run on this distribution."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, conformance included."""
    session.install("torch")
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)
