"""Frozen graphs: convert_variables_to_constants_v2, and what is built on it, on graphs that have ops of this package.

The converter replaces handles of variables by constants, and the ops on handles by those on tensors, for a list of TensorFlow's own
ops. Its public functions take no other ops: there is no registration, and a graph that is rewritten before has no variables left
for the converter to find, in functions that other converters (TensorFlow Lite's) call by themselves. So ops of this package are added where
it looks ops up, a private class of all versions that are tested; where a version has no such class, a warning has what is not possible, and
all else of the package works.
"""

from warnings import warn

import tensorflow as tf

try:
    from tensorflow.python.framework import convert_to_constants

    _Node, _new = convert_to_constants._Node, convert_to_constants._Node.new
except (ImportError, AttributeError) as missing:
    _Node = _new = None
    warn(
        f"deeprec_tf: graphs with safe_embedding_lookup_sparse on variables can't be frozen by TensorFlow {tf.__version__} ({missing}): freeze them with "
        "a TensorFlow that the package is tested with (its README), or serve a SavedModel and this package's library",
        RuntimeWarning,
        stacklevel=2,
    )

_tensor_ops = {}


def freezes_as(resource_op, tensor_op):
    """An op on handles that has, in a frozen graph, the same inputs and attributes as another op on tensors."""
    _tensor_ops[resource_op] = tensor_op


if _Node is not None:

    class _OnHandles(_Node):
        def convert_variable_to_constant(self, incoming_edge, tensor_data):
            del incoming_edge, tensor_data
            self.converted_self().node.op = _tensor_ops[self.node.op]

    def _with_ours(node, function, enclosing_graph):
        made = _OnHandles if node.op in _tensor_ops else _new
        return made(node, function, enclosing_graph)

    _Node.new = staticmethod(_with_ours)
