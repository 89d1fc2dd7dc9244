"""What passes between the processes that share local runs."""
