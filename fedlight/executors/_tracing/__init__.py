"""The tracer: a stacked local step as a program of plain operators, with the same bits.

What it does
    ``vmap(grad(training_step))`` runs Python, functorch and autograd around each operator of each
    step, although the operators that come out are the same every time. `TracedStep` replaces a
    `StackedStep`: a shape of inputs that comes up often is traced with ``make_fx``, the graph is
    simplified, and its operators run as one function. Stacks differ in their number of clients all
    the time; once two sizes were traced, the programs for others are derived from theirs. On a CPU
    TorchScript's interpreter runs the program.

Why it is safe
    No part is trusted. A program is used only after three calls that gave the outputs, the changes
    of its inputs and the state of torch's generator of the untraced step, compared number by number
    on the inputs at hand; otherwise that shape stays untraced. So it changes no result when a shape
    is traced. The constants of a program are watched: if an attribute or a mode of the
    module has changed before a stack, all programs are dropped. A step that itself changes an
    attribute, or draws from the generators of Python or NumPy, stays untraced, and a step that may
    read ``batch_idx`` is traced for each value. The check is made on one input and cannot see a
    branch on the values of tensors; ``vmap`` refuses such a step.

What it costs
    A trace takes 0.1 to 0.16 s of one core, a program for another size 0.01 to 0.03 s. A shape is
    traced after 48 steps, one of another size after 12 or 6, when it is likely to pay.

What each part buys
    Client updates a second as a multiple of a plain PyTorch loop, logistic regression with 784
    inputs and 10 classes. A: 20 clients a stack, batch 64, 5 local steps; B: 100 clients, batch 6,
    5 local steps; also with 1 to 10 local steps a client, and with 1 to 10 clients a stack.

                                   A      B  A steps B steps A clients B clients
    untraced                    2.48   7.57    1.77    5.79      1.21      0.85
    traced with make_fx alone   4.07  12.23    3.24    6.67      2.29      2.07
    + simplified graph          3.93  13.37    3.42    7.36      2.59      2.48
    + programs for other sizes  3.75  13.07    3.35    8.64      2.78      2.74
    + TorchScript's interpreter 4.77  14.26    3.69    9.16      3.28      3.83

    Each row adds a part to the one above; the last has all. ("steps", "clients": 1 to 10 of them.)
    Medians over 40 stacks by CPU time, the variants taking turns stack by stack, on one core of an
    AMD EPYC (family 25, model 17) that other work shared. Such rows differ by 5 % from run to run.
    Left out alone, the simplified graph costs 1 to 6 %. Programs for other sizes save up to half of
    the time of the first 40 stacks, tracing included, and nothing once all sizes are traced.
    ``benchmarks/tracing.py`` makes the tables; ``docs/performance.md`` has all of them, and what
    dropping views and equal operators buys, which these tables do not have yet.

Read in this order
    `traced_step` (when a step is traced, and the check), `constants` (changes that make a
    trace invalid), `program` (from a graph to a function, and to other sizes), `simplify` (fewer
    operators).
"""

from fedlight.executors._tracing.traced_step import TracedStep

__all__ = ["TracedStep"]
