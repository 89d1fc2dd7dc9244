"""Callbacks: what looks on while a federation trains."""

from fedlight.callbacks.base import Callback
from fedlight.callbacks.checkpoint import FedCheckpoint
from fedlight.callbacks.progress import ProgressBar

__all__ = ["Callback", "FedCheckpoint", "ProgressBar"]
