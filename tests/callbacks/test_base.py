import ast
import inspect
from pathlib import Path

import pytest

from fedlight.aggregators import FedAvg
from fedlight.callbacks import Callback
from tests.boring import Point, fitted, points, replay

HOOKS = {
    "setup": ["stage"],
    "on_fit_start": [],
    "on_train_start": [],
    "on_dispatch": ["task"],
    "on_update": ["update"],
    "on_drop": ["update"],
    "on_round_end": [],
    "on_validation_start": [],
    "on_validation_end": [],
    "on_sanity_check_start": [],
    "on_sanity_check_end": [],
    "on_test_start": [],
    "on_test_end": [],
    "on_predict_start": [],
    "on_predict_end": [],
    "on_client_failure": ["task", "error"],
    "on_exception": ["exception"],
    "on_train_end": [],
    "on_fit_end": [],
    "teardown": ["stage"],
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_do_nothing_until_they_are_overridden(name):
    hook = getattr(Callback, name)
    assert list(inspect.signature(hook).parameters) == ["self", "trainer", "module", *HOOKS[name]]
    assert hook(Callback(), None, None, *HOOKS[name]) is None
    assert hook.__doc__.startswith("Called")


def test_callbacks_need_no_private_part_of_the_trainer():
    for path in Path(inspect.getfile(Callback)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "trainer":
                assert not node.attr.startswith("_"), f"{path.name}:{node.lineno}"


def test_there_is_nothing_to_keep():
    assert Callback().state_dict() == {}
    Callback().load_state_dict({})


def test_callbacks_are_called_in_the_order_given():
    order = []

    class Named(Callback):
        def __init__(self, name):
            self.name = name

        def on_round_end(self, trainer, module):
            order.append(self.name)

    callbacks = [Named("first"), Named("second")]
    run = fitted(
        Point(),
        points([1.0]),
        arrivals=replay((0, 0, 1.0, 1)),
        aggregator=FedAvg(buffer_size=1),
        callbacks=callbacks,
    )
    assert order == ["first", "second"]
    assert list(run.callbacks) == callbacks
