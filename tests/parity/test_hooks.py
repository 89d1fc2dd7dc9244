"""The hooks of a module and of callbacks: which are called, when, and with what effect."""

from tests.boring import Boring


def test_one_client_with_all_data_gets_the_weights_of_lightning(both, executor):
    runs = both(Boring, steps=3, rounds=3, executor=executor)
    runs.same_weights()
    runs.same_metrics("val_loss")
