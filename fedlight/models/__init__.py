"""The models of the papers' experiments as ordinary LightningModules, and a small GPT."""

from fedlight.models.char_lstm import CharLSTM
from fedlight.models.classifier import Classifier
from fedlight.models.cnn import CNN
from fedlight.models.language_model import LanguageModel
from fedlight.models.logistic_regression import LogisticRegression
from fedlight.models.tiny_gpt import TinyGPT

__all__ = ["CNN", "CharLSTM", "Classifier", "LanguageModel", "LogisticRegression", "TinyGPT"]
