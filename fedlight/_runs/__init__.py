"""The records of a run, its loggers, and the identity of runs."""
