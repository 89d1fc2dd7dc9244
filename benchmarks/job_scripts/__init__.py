"""The whole job, a script for each way to do it; `../job.py` runs them."""
