"""Adapters from FlagGems' functions to the contracts, one module per family.

Each `make_<operator>` runs where the kernels run, imports FlagGems, and returns the function.
"""
