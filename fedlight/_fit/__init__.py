"""A fit, as a Lightning user knows it: arguments, hooks, their order, names and messages."""
