"""Other frameworks, timed next to ours; each needs an environment of its own."""
