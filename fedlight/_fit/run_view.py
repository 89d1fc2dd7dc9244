"""What one sees of the run of a `FedTrainer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlight._support.interrupts import Interrupt
from fedlight.types import Metrics

if TYPE_CHECKING:
    from lightning import LightningModule
    from lightning.fabric.loggers.logger import Logger
    from torch import Tensor

    from fedlight.run import Run
    from fedlight.types import Federation, RoundRecord, ServerState


class RunView:
    """The run's figures and the module, under the names that `FedTrainer` has for them."""

    loggers: list[Logger]

    def __init__(self) -> None:
        self._module: LightningModule | None = None
        self._run: Run | None = None
        self.newest_metrics = Metrics()
        self._interrupt = Interrupt()

    @property
    def module(self) -> LightningModule:
        """The module; after ``fit`` it holds the server's model.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        if self._module is None:
            raise RuntimeError("this trainer has no module yet; call fit(module, datamodule)")
        if self._run is not None and self._run.module is self._module:
            self._run.show()
        return self._module

    @property
    def run(self) -> Run:
        """All that the fit changes: schedule, server, clients, history.

        Raises:
            RuntimeError: Nothing was fitted yet.
        """
        if self._run is None:
            raise RuntimeError("this trainer has no model yet; call fit(module, datamodule)")
        return self._run

    @property
    def version(self) -> int:
        """Server updates so far."""
        return 0 if self._run is None else self._run.version

    @property
    def now(self) -> float:
        """Virtual time."""
        return 0.0 if self._run is None else self._run.schedule.now

    @property
    def num_updates(self) -> int:
        """Client updates that have arrived."""
        return 0 if self._run is None else self._run.num_updates

    @property
    def num_failures(self) -> int:
        """Tasks that failed or were lost so far."""
        return 0 if self._run is None else self._run.num_failures

    @property
    def history(self) -> list[RoundRecord]:
        """One record for each round."""
        return [] if self._run is None else self._run.history

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM asked for the end of the run."""
        return self._interrupt.signal is not None

    @property
    def federation(self) -> Federation:
        """Who takes part, as the strategies know it."""
        return self.run.federation

    @property
    def state(self) -> ServerState:
        """The newest version of the server's model, as flat vectors."""
        return self.run.state

    @property
    def logger(self) -> Logger | None:
        """The first logger, or None."""
        return self.loggers[0] if self.loggers else None

    def client_state(self, client_id: int) -> Tensor | None:
        """c_i as the client keeps it, shape ``[P]``; None if it never changed."""
        return self.run.clients.state(client_id)

    def client_memory(self, client_id: int) -> Tensor | None:
        """What error feedback in the channel has kept of a client, ``[P]``; None for nothing."""
        return self.run.clients.memory(client_id)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of the server's model: equal exactly if all its bits are."""
        return self.run.fingerprint()
