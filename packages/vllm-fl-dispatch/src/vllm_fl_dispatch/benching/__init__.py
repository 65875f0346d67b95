"""How fast each implementation of an operator is, at the sizes of a model."""
