"""Adapters from vLLM's compiled operators to the contracts, one module per family."""
