"""vLLM's own compiled CUDA operators as implementations of the dispatched operators."""
