"""Stacks: the local runs of many clients as one computation.

Read in this order: `local_runs` (from jobs to results), `start` (the state before the first step),
`step` (the gradients of a local step), `step_log` and `log_recorder` (the logged values of a step,
and of each client), `metric_objects` (updated after the steps), `stack_size` (how large a stack may
be), `splitting` (a stack that fails, or that memory has no room for), `blocks` (models as rows of a
block), `batches`, `narrow_layers`, `unused_parameters`. `VectorizedExecutor` forms the stacks.
"""
