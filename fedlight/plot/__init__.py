"""Figures of runs and partitions for papers; needs matplotlib.

Each function draws on the given axes, or on new ones, and returns them:
``plot.curves(trainer.history, "val_acc").figure.savefig("curve.pdf")``. The colours can be
distinguished with every kind of colour vision; lines also differ in their dashes.
"""

from fedlight.plot.figures import (
    COLOURS,
    DASHES,
    X_AXES,
    History,
    curve,
    curves,
    partition,
    timeline,
)

__all__ = ["COLOURS", "DASHES", "X_AXES", "History", "curve", "curves", "partition", "timeline"]
