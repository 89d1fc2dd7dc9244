"""Processes that are forked from this one."""

import os
import signal
import sys

import pytest
import torch

from fedlight.executors._remote.fork import Forked, number_of_workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def doubles(pipe, number):
    pipe.send((2 * number, torch.get_num_threads()))
    pipe.recv()  # until it is ended


def dies(pipe):
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(pipe):
    os._exit(3)


def test_a_process_sends_what_it_computes() -> None:
    forked = Forked.start(doubles, 4, name="the run", daemon=True)
    assert forked.receive() == (8, 1)
    forked.stop()


def raises(pipe):
    raise KeyError("no such key")


@pytest.mark.parametrize(
    ("body", "how"),
    [(dies, "by SIGKILL; .* write fewer workers"), (leaves, "with exit code 3$")],
)
def test_a_process_that_dies_is_an_error(body, how) -> None:
    forked = Forked.start(body, name="the run", daemon=True)
    with pytest.raises(RuntimeError, match=rf"the run \(process \d+\) has died {how}"):
        forked.receive()
    forked.stop()


def test_an_error_is_told_with_its_traceback() -> None:
    forked = Forked.start(raises, name="the run", daemon=True)
    with pytest.raises(RuntimeError, match=r"(?s)in the run:.*in raises.*KeyError: 'no such key'"):
        forked.receive()
    forked.stop()


def test_the_number_of_workers(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5})
    assert number_of_workers(None, "It", "less") == 3
    assert number_of_workers(7, "It", "less") == 7
    with pytest.raises(ValueError, match="workers must be at least 1"):
        number_of_workers(0, "It", "less")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match=r"It forks this process, .* Linux only; write less"):
        number_of_workers(2, "It", "less")


def leaves_a_child(pipe):
    child = os.fork()
    if child == 0:  # it has the end of the pipe, too
        pipe.recv()
        os._exit(0)
    pipe.send(child)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_is_noticed_though_another_process_has_the_end_of_the_pipe() -> None:
    forked = Forked.start(leaves_a_child, name="the run", daemon=True)
    child = forked.receive()
    with pytest.raises(RuntimeError, match="has died by SIGKILL"):
        forked.receive()
    os.kill(child, signal.SIGKILL)
    forked.stop()
