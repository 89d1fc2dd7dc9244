"""The tracer."""

from fedlight.executors._tracing.traced_step import TracedStep

__all__ = ["TracedStep"]
