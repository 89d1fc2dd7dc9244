"""The models of the papers' experiments as ordinary LightningModules."""

from fedlight.models.char_lstm import CharLSTM
from fedlight.models.classifier import Classifier
from fedlight.models.cnn import CNN
from fedlight.models.logistic_regression import LogisticRegression

__all__ = ["CNN", "CharLSTM", "Classifier", "LogisticRegression"]
