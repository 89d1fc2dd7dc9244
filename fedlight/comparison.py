"""The public path of `compare` and its results, which are in `fedlight.studies.comparison`."""

from fedlight.studies.comparison import ComparedRun, Comparison, Summary, compare

__all__ = ["ComparedRun", "Comparison", "Summary", "compare"]
