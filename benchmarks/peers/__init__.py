"""Other frameworks timed beside ours; each needs an environment of its own."""
