"""Studies: many runs as one call, kept in a folder, shown as tables and figures."""

from fedlight._support.bootstrap import Interval, bootstrap
from fedlight.studies.grid import Cell
from fedlight.studies.ray_runs import RayWorkers
from fedlight.studies.runs import StudyRun
from fedlight.studies.study import Study
from fedlight.studies.sweeping import sweep
from fedlight.studies.tables import Entry, StudyTable
from fedlight.studies.workers import Workers

__all__ = [
    "Cell",
    "Entry",
    "Interval",
    "RayWorkers",
    "Study",
    "StudyRun",
    "StudyTable",
    "Workers",
    "bootstrap",
    "sweep",
]
