"""Makes the modules of `helpers/` importable for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
