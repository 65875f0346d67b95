"""Helpers that prove an implementation against the contract of its operator."""
