"""Every operator in plain PyTorch, on any device: bit for bit what vLLM's native layers give."""
