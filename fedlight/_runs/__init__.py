"""What is kept of a run, and what makes two runs the same."""
