"""Which operators make a command fail: the search, and the runs that it asks for."""
