"""The implementations, one module per operator family."""
