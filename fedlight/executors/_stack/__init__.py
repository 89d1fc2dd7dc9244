"""Stacks: the local runs of many clients as one computation.

Read in this order: `local_runs` (from jobs to results), `start` (the state before the first step),
`step` (the gradients of a local step), `step_log` and `recorder` (the logged values of a step, and
of each client), `metric_objects` (updated after the steps), `memory` (how large a stack may be),
`blocks` (models as rows of a block), `batches`, `narrow_layers`, `unused`. `VectorizedExecutor`
forms the stacks, and splits those that fail.
"""
