"""Kernels of Acme as implementations of vLLM's operators."""
