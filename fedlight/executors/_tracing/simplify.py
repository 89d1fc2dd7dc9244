"""Simplifies a traced graph: the same bits from fewer operators."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

_aten: Any = torch.ops.aten

_VIEWS = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.expand.default,
    _aten.t.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
    _aten.detach.default,
    _aten.alias.default,
}


def simplify(graph: fx.Graph) -> None:
    """Restore ``nll_loss``, drop views that change nothing, and run equal operators once.

    A view is dropped if an earlier view of the same tensor shows the same; before a softmax, also
    if there is a copy between the two.

    Args:
        graph: The graph, with example values of its nodes as ``make_fx`` leaves them.
    """
    # If a graph writes in place or draws random numbers, the order of operators matters: then
    # nothing is moved or merged.
    pure = not any(_has_effect(node) for node in graph.nodes if node.op == "call_function")
    if pure:
        # Before views are dropped: the patterns of the loss contain views.
        for node in graph.nodes:
            _restore_nll(graph, node)
            _drop_factor(node)
    for node in graph.nodes:
        _drop_view(node, through_copies=pure)
    if pure:  # last, since operators are equal only once their arguments are
        _merge(graph)
    graph.eliminate_dead_code(_has_effect)


def _has_effect(node: fx.Node) -> bool:
    """Whether a node does more than compute a value."""
    target = node.target
    if node.op != "call_function":
        return node.op in ("placeholder", "output")
    if target is operator.getitem:
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _drop_view(node: fx.Node, through_copies: bool) -> None:
    """Use the source of a view in place of the view, if the numbers have the same order."""
    shown, source, path = node.meta.get("val"), node, list[fx.Node]()
    copied = False
    while _is_view(source) or (through_copies and source.target is _aten.clone.default):
        # A copy makes the memory contiguous, which the source may not be: see the check below.
        copied |= not _is_view(source)
        path.insert(0, source)
        source = source.all_input_nodes[0]
        seen = source.meta.get("val")
        if not isinstance(seen, Tensor) or not isinstance(shown, Tensor):
            return
        if (seen.shape, seen.dtype) != (shown.shape, shown.dtype):
            continue
        if copied and not (seen.is_contiguous() and _for_a_softmax(node)):
            continue
        if _in_order(path):
            node.replace_all_uses_with(source)
            return


def _drop_factor(node: fx.Node) -> None:
    """Drop a product with one, as ``addmm`` under ``vmap`` makes it of a bias."""
    if node.target is not _aten.mul.Scalar or node.args[1] != 1:
        return
    source = node.all_input_nodes[0]
    one, other = node.meta["val"], source.meta["val"]
    same = (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
    if same and all(user.op != "output" for user in node.users):  # an output is no input
        node.replace_all_uses_with(source)


def _is_view(node: fx.Node) -> bool:
    return node.target in _VIEWS


def _for_a_softmax(node: fx.Node) -> bool:
    """Whether only softmaxes use a node; they make their input contiguous first.

    Other operators may give other bits for another memory layout, or return the layout.
    """
    return all(user.target is _aten._log_softmax.default for user in node.users)


def _in_order(path: list[fx.Node]) -> bool:
    """Whether a chain of views and copies leaves each number in its place."""
    moved = first = torch.empty(path[0].all_input_nodes[0].meta["val"].shape, device="meta")
    for node in filter(_is_view, path):
        call: Any = node.target
        try:
            moved = call(moved, *node.args[1:], **node.kwargs)
        except RuntimeError:  # a view that only the copy allows
            return False
    steps = zip(first.shape, first.stride(), moved.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in steps)


def _merge(graph: fx.Graph) -> None:
    """Let equal operators with equal arguments run once."""
    known: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        key = (node.target, repr(node.args), repr(node.kwargs))
        if node.op == "call_function" and known.setdefault(key, node) is not node:
            node.replace_all_uses_with(known[key])


# The operators that `vmap` makes of `nll_loss` (`_LOSSES`) and of its gradient (`_GRADIENT`), as
# patterns for `_matches`: the score of each example's class is gathered, or a -1 scattered to its
# place, and examples with the ignored label are masked.
_ZERO = (_aten.scalar_tensor.default, 0)
_COUNTS = (_aten.ne.Scalar, "target", "ignored")
_COLUMN = (_aten.unsqueeze.default, "target", 2)
_COLUMN_COUNTS = (_aten.ne.Scalar, _COLUMN, "ignored")
_CLASS = (_aten.unsqueeze.default, (_aten.where.self, _COUNTS, "target", _ZERO), 2)
_SCORE = (_aten.squeeze.dims, (_aten.gather.default, "scores", 2, _CLASS), [2])
_LOSSES = (_aten.where.self, _COUNTS, (_aten.neg.default, _SCORE), _ZERO)
_HIT = (
    _aten.scatter.value,
    (_aten.zeros_like.default, "scores"),
    2,
    (_aten.where.self, _COLUMN_COUNTS, _COLUMN, _ZERO),
    -1.0,
)
_SHARE = (_aten.where.self, _COLUMN_COUNTS, (_aten.view.default, "weights", "shape"), _ZERO)
_GRADIENT = (_aten.mul.Tensor, _HIT, _SHARE)


def _restore_nll(graph: fx.Graph, node: fx.Node) -> None:
    """Restore ``nll_loss`` of a ``log_softmax`` over the classes of a stack.

    ``vmap`` takes the loss and its gradient apart into a dozen operators. Torch computes either as
    one. Scores of shape ``[n, b, C]`` are n b examples of C classes. For those that narrow layers
    make on a CPU, ``[n, C, b]`` (`NarrowLayers`), it is the loss for images, here n of C channels
    and 1 x b pixels.
    """
    found: dict[str, Any] = {}
    backward = _matches(node, _GRADIENT, found)
    if not backward:
        found = {}
        if not _matches(node, _LOSSES, found):
            return
    turned, target = found["scores"], found["target"].meta["val"]
    logs = turned.all_input_nodes[0] if turned.all_input_nodes else turned
    # Only a softmax: it is contiguous, and it spreads a nan over all classes, so that the operators
    # and the single one agree on it.
    if turned.target is _aten._log_softmax.default:
        logs = turned
    elif turned.target is not _aten.transpose.int or turned.args[1:] != (1, 2):
        return
    if target.dim() != 2 or logs.target is not _aten._log_softmax.default:
        return
    scores = logs.meta["val"]
    if scores.dim() != 3 or (logs is turned and logs.args[1] not in (2, -1)):
        return

    def call(operation: Any, *args: Any, **kwargs: Any) -> fx.Node:
        new = graph.call_function(operation, args, kwargs)
        new.meta["val"] = operation(*fx.map_arg(args, _without_data), **kwargs)
        return new

    n, b = target.shape
    in_rows, rest = logs is turned, (None, 0, found["ignored"])  # no class weights, no reduction
    with graph.inserting_before(node):
        if in_rows:
            kinds = _aten.nll_loss_forward.default, _aten.nll_loss_backward.default
            examples = call(_aten.view.default, logs, [n * b, scores.shape[2]])
            labels = call(_aten.view.default, found["target"], [n * b])
        else:
            kinds = _aten.nll_loss2d_forward.default, _aten.nll_loss2d_backward.default
            examples = call(_aten.unsqueeze.default, logs, 2)
            labels = call(_aten.unsqueeze.default, found["target"], 1)
        if backward:
            middle = [] if in_rows else [1]
            weights = call(_aten.view.default, found["weights"], [n, *middle, 1])
            weights = call(_aten.expand.default, weights, [n, *middle, b])
            if in_rows:
                weights = call(_aten.reshape.default, weights, [n * b])
            # the total weight is read only with a reduction
            kind = {"dtype": scores.dtype, "device": scores.device}
            total = call(_aten.scalar_tensor.default, 0.0, **kind)
            out = call(kinds[1], weights, examples, labels, *rest, total)
            if in_rows:
                out = call(_aten.view.default, out, list(scores.shape))
            else:
                out = call(_aten.transpose.int, call(_aten.squeeze.dims, out, [2]), 1, 2)
        else:
            losses = call(operator.getitem, call(kinds[0], examples, labels, *rest), 0)
            if in_rows:
                out = call(_aten.view.default, losses, [n, b])
            else:
                out = call(_aten.squeeze.dims, losses, [1])
    node.replace_all_uses_with(out)


def _without_data(node: fx.Node) -> Any:
    """The value of a node without data: shape, strides and type."""
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return value
    shape, strides = value.shape, value.stride()
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def _matches(value: Any, pattern: Any, found: dict[str, Any]) -> bool:
    """Whether a value matches a pattern.

    A tuple stands for an operator and its arguments, a string for any value, the same wherever the
    string occurs, and everything else for itself.
    """
    if isinstance(pattern, str):
        return bool(found.setdefault(pattern, value) == value)
    if not isinstance(pattern, tuple):
        return bool(value == pattern)
    if not isinstance(value, fx.Node) or value.target is not pattern[0]:
        return False
    return len(value.args) == len(pattern) - 1 and all(
        _matches(arg, part, found) for arg, part in zip(value.args, pattern[1:], strict=True)
    )
