"""Speed and memory; see `run.py`."""
