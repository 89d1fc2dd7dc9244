"""The choice of an executor."""
