"""smart_stage: moves the user's stage downstream, so that more of a step is computed ahead of it. Values keep their bits.

    lines = iterator.get_next()
    put, columns = deeprec_tf.stage(tf.io.decode_csv(lines, ...))        the user's cut
    loss, train = model(columns)
    staged = deeprec_tf.smart_stage(targets=[loss, train])
    print(staged.explanation)
    with tf.compat.v1.Session(graph=staged.graph) as session:
        session.run("init")                                              names are those of the graph before
        with deeprec_tf.StagedSession(session, staged.puts) as steps:
            value, _ = steps.run([loss.name, train.name])
"""

from dataclasses import dataclass

import tensorflow as tf

from ._library import ops


def stage(values, name="stage"):
    """Puts `values` into a stage and takes them out of it.

    Returns (put, taken): an operation, to be run ahead of the steps by a StagedSession, and values of the same
    structure, of another record in each step. In a graph only, not eagerly.

    The stage has no bound of its own: a Stage op that waits for room holds a thread of the inter-op pool, which all
    sessions share. StagedSession bounds it.
    """
    if tf.executing_eagerly():
        raise RuntimeError("deeprec: a stage must be made in a graph (is made with eager execution)")
    flat = tf.nest.flatten(values)
    for value in flat:
        if isinstance(value, (tf.SparseTensor, tf.RaggedTensor)):
            raise TypeError(f"deeprec: values of a stage must be tensors (has a {type(value).__name__}); put its components")
    flat = [tf.convert_to_tensor(value) for value in flat]
    if not flat:
        raise ValueError("deeprec: a stage must have a value (has none)")
    with tf.name_scope(name) as scope:
        shared = scope.rstrip("/")
        types = [value.dtype for value in flat]
        put = tf.raw_ops.Stage(values=flat, shared_name=shared, name="put")
        taken = tf.raw_ops.Unstage(dtypes=types, shared_name=shared, name="take")
    for value, made in zip(flat, taken):
        made.set_shape(value.shape)
    return put, tf.nest.pack_sequence_as(values, taken)


@dataclass
class StagedGraph:
    graph: object  # a tf.Graph, with the collections of the one before; a GraphDef where one was given
    explanation: str  # what moved, what it costs, and for each op at the border why it stayed
    changed: bool
    puts: list  # names of the operations that a StagedSession runs ahead, those of stages that stayed as well
    takes: list
    reasons: dict  # of each operation that stayed behind the cut, by its name: what keeps it there


def smart_stage(graph=None, targets=(), rule="balanced", cost_per_byte=0.0, stage_threads=1, traced_steps=(), listed=12):
    """Moves the stages of a graph to where a step has the least to do after them, and returns a new graph.

    graph           a tf.Graph (None: the default one), or a GraphDef
    targets         what the steps fetch: tensors, operations or names. They stay in the step
    rule            "balanced": the least max(stage, rest) + cost_per_byte * bytes, "farthest": as far as is legal
    traced_steps    RunMetadata of steps of this graph with RunOptions(trace_level=FULL_TRACE): what ops cost, in
                    seconds. Without them ops cost nothing, and the farthest cut is taken
    cost_per_byte   seconds for a byte that crosses. A stage on the host hands over tensors and copies none: 0
    stage_threads   threads of the StagedSession
    listed          the most ops that a line of the explanation lists

    An op may move if a target needs it, and no variable, placeholder, control flow, target or stateful op behind the
    stage reaches it. Iterators, readers and queues belong to the input. An invalid graph (an input that is no node, a cycle, an op that is not
    registered) raises InvalidArgumentError or NotFoundError with the node's name.
    """
    given = graph if graph is not None else tf.compat.v1.get_default_graph()
    is_def = isinstance(given, tf.compat.v1.GraphDef)
    definition = given if is_def else given.as_graph_def(add_shapes=False)
    names = [t if isinstance(t, str) else t.name for t in tf.nest.flatten(targets)]
    if not names:
        raise ValueError("deeprec: targets must name what the steps fetch (are empty)")
    staged, explanation, changed, stayed, reasons = _run_pass(
        definition,
        names,
        [run.SerializeToString() for run in traced_steps],
        rule=rule,
        cost_per_byte=cost_per_byte,
        stage_threads=stage_threads,
        most_listed=listed,
    )
    reasons = {name.decode(): reason.decode() for name, reason in zip(stayed, reasons)}
    if not changed:
        return StagedGraph(given, explanation.decode(), False, *_ends(definition), reasons)
    new = definition = tf.compat.v1.GraphDef.FromString(staged)
    if not is_def:
        with given.as_default():
            meta = tf.compat.v1.train.export_meta_graph(graph=given, graph_def=given.as_graph_def())
        meta.graph_def.CopyFrom(definition)
        new = tf.Graph()
        with new.as_default():
            tf.compat.v1.train.import_meta_graph(meta)
        # Functions of Python that ops call (tf.py_function, Dataset.from_generator) live as long as their graph.
        new.deeprec_graph_before = given
    return StagedGraph(new, explanation.decode(), True, *_ends(definition), reasons)


def _ends(definition):
    """Names of all Stage and Unstage operations: those that smart_stage did not move must run as well."""
    return [[node.name for node in definition.node if node.op == op] for op in ("Stage", "Unstage")]


def _run_pass(definition, targets, traced_steps, **options):
    """The outputs of the op, in a graph of its own: the caller may be building one, with or without eager execution."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        traced = tf.constant(traced_steps, tf.string, [len(traced_steps)])
        return session.run(list(ops.deeprec_smart_stage(definition.SerializeToString(), targets, traced, **options)))
