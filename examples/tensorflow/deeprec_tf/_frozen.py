"""Frozen graphs: convert_variables_to_constants_v2, and what is built on it, on graphs that have ops of this package.

The converter replaces handles of variables by constants, and the ops on handles by those on tensors, for a list of TensorFlow's own
ops; there is no registration. Ops of other packages are added where it looks ops up.
"""

from tensorflow.python.framework import convert_to_constants

_tensor_ops = {}


def freezes_as(resource_op, tensor_op):
    """An op on handles that has, in a frozen graph, the same inputs and attributes as another op on tensors."""
    _tensor_ops[resource_op] = tensor_op


class _OnHandles(convert_to_constants._Node):
    def convert_variable_to_constant(self, incoming_edge, tensor_data):
        del incoming_edge, tensor_data
        self.converted_self().node.op = _tensor_ops[self.node.op]


def _with_ours(new):
    def of(node, function, enclosing_graph):
        made = _OnHandles if node.op in _tensor_ops else new
        return made(node, function, enclosing_graph)

    return staticmethod(of)


convert_to_constants._Node.new = _with_ours(convert_to_constants._Node.new)
