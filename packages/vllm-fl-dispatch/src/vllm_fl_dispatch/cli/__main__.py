"""``python -m vllm_fl_dispatch.cli``."""

from vllm_fl_dispatch.cli import main

main()
