"""The implementations, one module per operator family. Imported only where kernels run."""
