"""Conformance tests for one implementation of the operators.

usage: pytest --pyargs vllm_fl_dispatch.conformance --impl vendor.acme --device cuda
"""
