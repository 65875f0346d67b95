"""Kernels of ours in Triton: where FlagGems has none, or a slower one."""
