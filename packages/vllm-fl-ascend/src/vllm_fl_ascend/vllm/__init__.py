"""Attention backends of this device as vLLM wants them. Imported by vLLM, by path."""
