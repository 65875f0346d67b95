"""FlagGems (Triton) kernels as implementations of the dispatched operators."""
