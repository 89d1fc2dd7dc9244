"""Callbacks: they observe a run, log, stop it early, and save it."""

from fedlight.callbacks.base import Callback
from fedlight.callbacks.checkpoint import FedCheckpoint
from fedlight.callbacks.client_evaluation import ClientEvaluation
from fedlight.callbacks.csv_metrics import CSVMetrics
from fedlight.callbacks.early_stopping import EarlyStopping
from fedlight.callbacks.event_log import EventLog
from fedlight.callbacks.learning_rate import LearningRateMonitor
from fedlight.callbacks.progress import ProgressBar
from fedlight.callbacks.tensorboard_extras import TensorBoardMetrics

__all__ = [
    "CSVMetrics",
    "Callback",
    "ClientEvaluation",
    "EarlyStopping",
    "EventLog",
    "FedCheckpoint",
    "LearningRateMonitor",
    "ProgressBar",
    "TensorBoardMetrics",
]
