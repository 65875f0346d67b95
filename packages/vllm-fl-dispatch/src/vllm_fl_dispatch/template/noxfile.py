"""Everything that is run on this distribution."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, conformance included."""
    # Or the build of torch that your device needs.
    session.install("torch")
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)
