"""A software model of the torch_npu operators that the backend calls, on the CPU.

The calls go through the real dispatcher of the real torch_npu wheel, so names, arguments and types
are checked by it. Behind that stand functions of this package: each enforces every rule that the
operator's documentation states, computes what it documents, and fills what a device leaves
undefined with numbers that cannot go unnoticed. An operator without a function here is refused by
the dispatcher.
"""
