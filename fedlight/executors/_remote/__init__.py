"""Local runs in other processes: forked ones, and actors of a Ray cluster."""
