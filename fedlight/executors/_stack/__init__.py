"""Stacks: the local runs of many clients as one computation.

Read in this order: `local_runs` (from jobs to results), `step` (the gradients of a local step),
`step_log` and `recorder` (what the step logs, and what of it each client gets), `metric_objects`
(updated after the steps), `memory` (how large a stack may be, and how it is split), `blocks`
(models as rows of a block), `batches`, `narrow_layers`, `unused`.
"""
