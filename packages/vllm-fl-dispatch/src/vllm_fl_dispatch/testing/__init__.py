"""The conformance kit: proves an implementation against the contract of its operator.

Command line: ``pytest --pyargs vllm_fl_dispatch.conformance --impl vendor.acme --device cuda``
and ``vllm-fl verify``. In tests of your own: `parameters` and `check`.
"""

from __future__ import annotations

from vllm_fl_dispatch.testing.kit import Outcome, Result, Subject, run_case
from vllm_fl_dispatch.testing.reproduce import reproduce
from vllm_fl_dispatch.testing.subjects import Absent, subjects
from vllm_fl_dispatch.testing.xfails import Xfail, read_xfails

__all__ = [
    "Absent",
    "Outcome",
    "Result",
    "Subject",
    "Xfail",
    "read_xfails",
    "reproduce",
    "run_case",
    "subjects",
]
