"""The random numbers of a local step, as functions of their names."""
