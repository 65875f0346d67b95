"""A vendor of the integration tests."""
