"""Adapters from torch_npu's operators to the contracts, one module per family.

Each module has a function ``make_<operator>`` that returns the implementation, and
``supports_<operator>`` that states the documented limits of the kernels for Atlas A2 and A3.
"""
