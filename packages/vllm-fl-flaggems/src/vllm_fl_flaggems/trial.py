"""Does `import flag_gems` work here? Tried in a process of its own, for `vllm-fl doctor`.

The import initialises the device, and of a bad installation it may end the process.
"""

from __future__ import annotations

import signal
import subprocess
import sys

from vllm_fl_dispatch import Verdict

_MARK = "flag-gems trial: "
COMMAND = (sys.executable, "-m", "vllm_fl_flaggems.trial")
#: Seconds; the import takes about three, more on a cold file system.
LIMIT = 120


def attempt() -> Verdict:
    """Import flag_gems in a new process: yes with its version, or no with the reason."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603  # our own module
    except subprocess.TimeoutExpired:
        return Verdict.no(f"import flag_gems does not end within {LIMIT} s")
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            said = line.removeprefix(_MARK)
            return Verdict(done.returncode == 0, said)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return Verdict.no(f"import flag_gems ended the process with {name}: {_last(done.stderr)}")
    return Verdict.no(f"import flag_gems ended the process: {_last(done.stderr)}")


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def main() -> int:
    """The new process: the outcome on stdout; 0 where it works."""
    from vllm_fl_dispatch import get_default_manager
    from vllm_fl_flaggems import library

    get_default_manager().ensure_built()
    try:
        library.load()
    except library.FlagGemsUnavailable as error:
        print(f"{_MARK}{' '.join(str(error).split())}")
        return 1
    print(f"{_MARK}{library.version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
