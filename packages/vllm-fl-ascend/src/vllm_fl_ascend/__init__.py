"""Ascend NPU kernels (torch_npu) as implementations of the dispatched operators."""
