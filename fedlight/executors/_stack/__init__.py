"""One local step of many clients at once."""
