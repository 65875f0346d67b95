"""Cases that an implementation is known to fail, each with its reason.

A line of the file: ``operator[pattern]: reason``. The pattern matches names of cases as a shell
matches file names; lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.testing.kit import Subject
from vllm_fl_dispatch.testing.subjects import Absent

_LINE = re.compile(r"(?P<op>\w+)\[(?P<pattern>[^\]]+)\]\s*:\s*(?P<reason>\S.*)")


@dataclass(frozen=True)
class Xfail:
    """One line of the file."""

    op: str
    pattern: str
    reason: str

    def matches(self, op: str, case: str) -> bool:
        return op == self.op and fnmatchcase(case, self.pattern)


def read_xfails(path: Path) -> tuple[Xfail, ...]:
    """The known failures of a file.

    Raises:
        PolicyError: a line is not of the form above, with file and line.
    """
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise PolicyError(
                f"{path}, line {number}: {text!r} is not of the form 'operator[pattern]: reason'"
            )
        found.append(Xfail(**match.groupdict()))
    return tuple(found)


def check_used(
    xfails: Iterable[Xfail], subjects: Iterable[Subject], absent: Iterable[Absent] = ()
) -> None:
    """Raise PolicyError for lines that match no case: the file says something that is not so.

    Args:
        absent: of operators that cannot be tested here nothing is said.
    """
    known = [(subject.spec.name, case.name) for subject in subjects for case in subject.cases()]
    unknown = {each.impl.op_name for each in absent}
    idle = [
        f"{each.op}[{each.pattern}]"
        for each in xfails
        if each.op not in unknown and not any(each.matches(op, case) for op, case in known)
    ]
    if idle:
        raise PolicyError(
            f"known failures: no case matches {', '.join(idle)}; tested here: "
            f"{', '.join(dict.fromkeys(op for op, _ in known)) or '(nothing)'}"
        )
