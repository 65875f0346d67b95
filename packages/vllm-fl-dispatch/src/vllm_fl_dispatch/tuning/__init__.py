"""A policy file from measurements: which implementation is right, and which of those is fast."""
