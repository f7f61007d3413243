"""SmartStage on TensorFlow's graphs: the cut, the rewritten graph, the same values, and the end of every thread."""

import contextlib
import gc
import os
import random
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import deeprec_tf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import ctr_graphs  # noqa: E402

v1 = tf.compat.v1
SIZES = ctr_graphs.Sizes(batch=32, buckets=200, width=4, hidden=(16, 8))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Criteo's sample, or lines like it."""
    folder = os.environ.get("DEEPREC_DATA_DIR", "")
    sample = Path(folder, "criteo", "criteo_kaggle_merged_24k.tsv")
    if folder and sample.exists():
        return sample
    rng, path = random.Random(1), tmp_path_factory.mktemp("lines") / "lines.tsv"
    with open(path, "w") as file:
        for _ in range(2000):
            numbers = [str(rng.randrange(500)) if rng.random() < 0.8 else "" for _ in range(13)]
            tokens = [f"{rng.randrange(300):08x}" if rng.random() < 0.9 else "" for _ in range(26)]
            file.write("\t".join([str(rng.randrange(2)), *numbers, *tokens]) + "\n")
    return path


def losses(graph, step, steps, puts=None, **options):
    with v1.Session(graph=graph) as session:
        session.run("init")
        if not puts:
            return [session.run(step.fetches)[0] for _ in range(steps)]
        with deeprec_tf.StagedSession(session, puts, **options) as staged:
            return [staged.run(step.fetches)[0] for _ in range(steps)]


@pytest.mark.parametrize("model", ["wdl", "dlrm"])
def test_the_same_losses(model, lines):
    plain = ctr_graphs.build(model, lines, SIZES, staged=False)
    step = ctr_graphs.build(model, lines, SIZES, staged=True)
    made = deeprec_tf.smart_stage(step.graph, step.fetches)
    assert made.changed
    wanted = losses(plain.graph, plain, 30)
    assert len(set(wanted)) == 30  # each step trains
    for capacity in range(1, 9):
        assert losses(step.graph, step, 30, [step.put], capacity=capacity) == wanted
        assert losses(made.graph, step, 30, made.puts, capacity=capacity) == wanted
    farthest = deeprec_tf.smart_stage(step.graph, step.fetches, rule="farthest")
    assert losses(farthest.graph, step, 30, farthest.puts) == wanted


def test_what_moves_and_what_stays(lines):
    step = ctr_graphs.build("wdl", lines, SIZES, staged=True)
    made = deeprec_tf.smart_stage(step.graph, step.fetches, listed=1000)
    before, after = step.graph.as_graph_def(), made.graph.as_graph_def()
    ops = {node.name: node.op for node in after.node}
    # The user's Stage and Unstage are gone, and there is one of each.
    kinds = list(ops.values())
    assert kinds.count("Stage") == kinds.count("Unstage") == 1 and len(made.puts) == len(made.takes) == 1
    assert {n.name for n in before.node} - set(ops) == {"stage/put", "stage/take"}
    # Behind the cut no bucket is computed: every input of the step's own ops comes from it.
    ahead = needed(after, made.puts)
    hashed = [name for name, op in ops.items() if op == "StringToHashBucketFast"]
    assert len(hashed) == 26 and set(hashed) <= ahead
    lookups = [name for name, op in ops.items() if op == "ResourceGather"]
    assert len(lookups) == 52 and not set(lookups) & ahead
    behind = needed(after, [name.split(":")[0] for name in step.fetches])
    assert not set(hashed) & behind and "IteratorGetNext" not in {ops[name] for name in behind}
    for name in lookups:
        assert f"stays: '{name}', it reads a variable" in made.explanation
    assert re.search(r"\d+ ops moved before the cut", made.explanation)
    # And every op that stayed has a reason, also those behind the border.
    for name in behind - {n for n in behind if ops[n] in ("Const", "Unstage")}:
        assert re.match("is reached from '|it (reads|writes) a|a (variable|target)$|no stage leads", made.reasons[name]), name
    assert not ahead & set(made.reasons)
    # A value crosses once.
    put = next(node for node in after.node if node.name == made.puts[0])
    assert len(set(put.input)) == len(put.input) == len(put.attr["dtypes"].list.type)


def needed(graph_def, names):
    inputs = {node.name: [i.lstrip("^").split(":")[0] for i in node.input] for node in graph_def.node}
    seen, open_nodes = set(), list(names)
    while open_nodes:
        name = open_nodes.pop()
        if name not in seen:
            seen.add(name)
            open_nodes += inputs[name]
    return seen


def test_costs_of_traced_steps_choose_the_cut(lines):
    step = ctr_graphs.build("wdl", lines, SIZES, staged=True)
    full = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    traced = []
    with v1.Session(graph=step.graph) as session:
        session.run("init")
        with deeprec_tf.StagedSession(session, step.put) as staged:
            for _ in range(3):
                traced.append(v1.RunMetadata())
                staged.run(step.fetches, options=full, run_metadata=traced[-1])
    made = deeprec_tf.smart_stage(step.graph, step.fetches, traced_steps=traced)
    of = {whose: float(price) for whose, price in re.findall(r"  (.*): stage .*, price (\S+)", made.explanation)}
    chosen = next(price for whose, price in of.items() if whose.startswith("chosen"))
    assert 0 < chosen <= min(of.values())
    # Bytes that are dearer than any op keep what crosses small.
    dear = deeprec_tf.smart_stage(step.graph, step.fetches, traced_steps=traced, cost_per_byte=1.0)
    crossing = [float(re.search(r"of (\S+) bytes", m.explanation).group(1)) for m in (made, dear)]
    assert crossing[1] <= crossing[0]
    assert losses(dear.graph, step, 10, dear.puts) == losses(made.graph, step, 10, made.puts)


# Graphs that TensorFlow's own layers make.


def staged_lines(lines, batch=16):
    """Labels, and 26 tokens, behind the user's stage."""
    columns = ctr_graphs.decode(ctr_graphs.read_lines(lines, batch))
    _, taken = deeprec_tf.stage(columns)
    return taken


def check_both(graph, fetches, steps=12, trains=False):
    """The graph as it is, by its own stage, gives what the rewritten one gives."""
    made = deeprec_tf.smart_stage(graph, fetches)
    assert made.changed, made.explanation
    results = []
    for g, puts in ((graph, ["stage/put"]), (made.graph, made.puts)):
        with v1.Session(graph=g) as session:
            session.run("init_all")
            with deeprec_tf.StagedSession(session, puts) as staged:
                results.append([staged.run(fetches) for _ in range(steps)])
    for ours, users in zip(*results):
        np.testing.assert_array_equal(ours[0], users[0])
    assert not trains or results[0][0][0] != results[0][-1][0]
    return made


def test_a_graph_of_keras(lines):
    """A model of Keras layers, exported as a GraphDef, on the stage's tokens."""
    inputs = [tf.keras.Input([], dtype=tf.string, name=f"c{i}") for i in range(26)]
    ids = [tf.keras.layers.Hashing(100)(x) for x in inputs]
    vectors = [tf.keras.layers.Embedding(100, 4)(x) for x in ids]
    hidden = tf.keras.layers.Dense(8, activation="relu")(tf.keras.layers.Concatenate()(vectors))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    call = tf.function(lambda *tokens: model(list(tokens)))
    concrete = call.get_concrete_function(*[tf.TensorSpec([16], tf.string, name=f"c{i}") for i in range(26)])
    foreign = concrete.graph.as_graph_def()
    captured = [(placeholder.name, variable.numpy()) for placeholder, variable in _captures(concrete, model)]
    graph = tf.Graph()
    with graph.as_default():
        tokens = staged_lines(lines)[14:]
        given = dict(zip([t.name for t in concrete.inputs[:26]], tokens))
        assigned = []
        for i, (name, value) in enumerate(captured):
            variable = v1.get_variable(f"v{i}", initializer=value, use_resource=True)
            given[name] = variable.handle
            assigned.append(variable.initializer)
        (out,) = tf.import_graph_def(foreign, given, [concrete.outputs[0].name], name="keras")
        tf.group(assigned, name="init_all")
    made = check_both(graph, [out.name])
    moved = needed(made.graph.as_graph_def(), made.puts)
    kinds = {node.name: node.op for node in made.graph.as_graph_def().node}
    hashes = [name for name, op in kinds.items() if op.startswith("StringToHashBucket")]
    assert len(hashes) == 26 and set(hashes) <= moved


def _captures(concrete, model):
    handles = {id(v.value.handle): v for v in model.variables}
    return [(internal, handles[id(external)]) for external, internal in concrete.graph.captures]


def test_a_graph_of_feature_columns(lines):
    fc = tf.feature_column
    columns = [
        fc.embedding_column(fc.categorical_column_with_hash_bucket(f"c{i}", 100), 4, combiner="mean") for i in range(25)
    ]
    words = [f"{i:08x}" for i in range(50)]
    columns.append(fc.indicator_column(fc.categorical_column_with_vocabulary_list("c25", words, num_oov_buckets=2)))
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(1)
        taken = staged_lines(lines)
        features = {f"c{i}": token[:, None] for i, token in enumerate(taken[14:])}
        x = v1.feature_column.input_layer(features, columns)
        weights = v1.get_variable("weights", [x.shape[1], 1], initializer=v1.glorot_uniform_initializer(seed=1))
        logits = tf.squeeze(tf.matmul(x, weights), 1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=taken[0], logits=logits), name="loss")
        train = v1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
        tf.group(v1.global_variables_initializer(), v1.tables_initializer(), name="init_all")
    made = check_both(graph, [loss.name, train.name], trains=True)
    definition = made.graph.as_graph_def()
    moved, kinds = needed(definition, made.puts), {node.name: node.op for node in definition.node}
    hashes = [name for name, op in kinds.items() if op == "StringToHashBucketFast"]
    assert len(hashes) >= 25 and set(hashes) <= moved
    # A vocabulary is initialized once, so that its ids are those of any step.
    finds = [name for name, op in kinds.items() if op == "LookupTableFindV2"]
    assert finds and set(finds) <= moved


# Other graphs.


@contextlib.contextmanager
def loops_of_control_flow_v1():
    was = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        yield
    finally:
        if was:
            v1.enable_control_flow_v2()


def counter(limit):
    """Numbers 0 ... limit - 1 behind a stage, squared; a variable adds them up."""
    graph = tf.Graph()
    with graph.as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(limit)).get_next()
        put, taken = deeprec_tf.stage(number)
        squared = tf.square(taken, name="squared")
        total = v1.get_variable("total", initializer=np.int64(0), use_resource=True)
        with tf.control_dependencies([total.assign_add(squared)]):
            tf.identity(squared, name="out")
        v1.global_variables_initializer()
    return graph, put


def test_the_end_of_the_input_comes_after_its_records():
    graph, put = counter(10)
    made = deeprec_tf.smart_stage(graph, ["out"])
    for g, puts in ((graph, [put.name]), (made.graph, made.puts)):
        for capacity in (1, 3, 20):
            with v1.Session(graph=g) as session:
                session.run("init")
                with deeprec_tf.StagedSession(session, puts, capacity=capacity) as steps:
                    assert [steps.run("out:0") for _ in range(10)] == [i * i for i in range(10)]
                    for _ in range(2):
                        with pytest.raises(tf.errors.OutOfRangeError):
                            steps.run("out:0")
                assert session.run("total/Read/ReadVariableOp:0") == sum(i * i for i in range(10))


def test_a_fault_of_the_source_is_raised_in_its_turn():
    graph = tf.Graph()
    with graph.as_default():
        texts = tf.data.Dataset.from_tensor_slices(["1", "2", "three", "4"])
        put, taken = deeprec_tf.stage(v1.data.make_one_shot_iterator(texts).get_next())
        number = tf.strings.to_number(taken, tf.int64, name="number")
        weight = v1.get_variable("w", initializer=np.int64(10), use_resource=True)
        tf.multiply(number, weight.read_value(), name="out")
        v1.global_variables_initializer()
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert "'number'" in made.explanation
    for _ in range(3):
        with v1.Session(graph=made.graph) as session:
            session.run("init")
            with deeprec_tf.StagedSession(session, made.puts) as steps:
                assert [steps.run("out:0"), steps.run("out:0")] == [10, 20]
                with pytest.raises(tf.errors.InvalidArgumentError, match="three"):
                    steps.run("out:0")


def test_a_step_that_fails_leaves_the_stage_usable():
    graph, _ = counter(100)
    with graph.as_default():
        wanted = v1.placeholder(tf.int64, [], name="wanted")
        check = v1.assert_equal(graph.get_tensor_by_name("squared:0"), wanted, name="check")
    made = deeprec_tf.smart_stage(graph, ["out", check])
    with v1.Session(graph=made.graph) as session:
        session.run("init")
        with deeprec_tf.StagedSession(session, made.puts, capacity=1) as steps:
            for _ in range(10):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    steps.run(check.name, {"wanted:0": -1})
            values = [int(steps.run("out:0")) for _ in range(5)]
    roots = [round(v**0.5) for v in values]
    assert roots == list(range(roots[0], roots[0] + 5))


def test_sessions_leave_no_thread():
    graph, _ = counter(10**6)
    made = deeprec_tf.smart_stage(graph, ["out"])

    def once(ahead):
        with v1.Session(graph=made.graph) as session:
            session.run("init")
            with deeprec_tf.StagedSession(session, made.puts, capacity=4, threads=ahead) as steps:
                for _ in range(5):
                    steps.run("out:0")

    once(1)
    of_python, of_process = threading.active_count(), len(os.listdir("/proc/self/task"))
    for i in range(40):
        once(1 + i % 3)
    assert threading.active_count() == of_python
    assert len(os.listdir("/proc/self/task")) <= of_process + 2


def test_closing_twice_and_after_the_session():
    graph, put = counter(10**6)
    before = threading.active_count()
    with v1.Session(graph=graph) as session:
        session.run("init")
        steps = deeprec_tf.StagedSession(session, put)
        steps.run("out:0")
        steps.close()
        steps.close()
        with pytest.raises(RuntimeError, match="must be open"):
            steps.run("out:0")
        late = deeprec_tf.StagedSession(session, put)
    late.close()
    assert threading.active_count() == before


def test_a_bounded_stage_of_the_user():
    """tf's own Stage with a capacity: more puts than it has room for would wait on a thread that sessions share."""
    graph = tf.Graph()
    with graph.as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
        tf.raw_ops.Stage(values=[number], capacity=2, shared_name="mine", name="put")
        (taken,) = tf.raw_ops.Unstage(dtypes=[tf.int64], capacity=2, shared_name="mine")
        tf.add(taken, 1, name="out")
    with v1.Session(graph=graph) as session:
        for _ in range(3):
            with deeprec_tf.StagedSession(session, "put", capacity=8) as steps:
                steps.run("out:0")
                with pytest.raises((ValueError, TypeError, RuntimeError)):
                    steps.run("out:0", {"no such tensor": 1})
                steps.run("out:0")
    assert deeprec_tf.smart_stage(graph, ["out"]).changed is True


def run_staged(made, fetches, steps, before=()):
    with v1.Session(graph=made.graph) as session:
        for op in before:
            session.run(op)
        with deeprec_tf.StagedSession(session, made.puts) as staged:
            return [staged.run(fetches) for _ in range(steps)]


def test_what_initializes_and_fills_the_input_waits_for_no_stage():
    graph = tf.Graph()
    with graph.as_default():
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(10))
        queue = tf.queue.FIFOQueue(100, [tf.int64], [[]], name="queue")
        queue.enqueue_many([tf.range(10, dtype=tf.int64)], name="fill")
        _, (a, b) = deeprec_tf.stage([iterator.get_next(), queue.dequeue()])
        weight = v1.get_variable("w", initializer=np.int64(3), use_resource=True)
        tf.add(tf.square(a) * weight, b, name="out")
        initializer = iterator.initializer.name
        v1.global_variables_initializer()
    made = deeprec_tf.smart_stage(graph, ["out"])
    definition = made.graph.as_graph_def()
    assert made.changed and "Square" in {n.op for n in definition.node if n.name in needed(definition, made.puts)}
    for name in (initializer, "fill"):
        assert not {n.name for n in definition.node if n.op == "Unstage"} & needed(definition, [name])
    assert run_staged(made, "out:0", 5, ["init", initializer, "fill"]) == [3 * i * i + i for i in range(5)]


def test_a_stage_that_stays_is_run_as_well():
    graph = tf.Graph()
    with graph.as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(10)).get_next()
        _, one = deeprec_tf.stage(number, name="one")
        _, two = deeprec_tf.stage(one + 1, name="two")
        weight = v1.get_variable("w", initializer=np.int64(2), use_resource=True)
        tf.add(tf.square(two) * weight, 1, name="out")
        v1.global_variables_initializer()
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert made.changed and len(made.puts) == 2 and "one/put" in made.puts
    # One thread for ops: none may wait. Each run closes while a put takes from the first stage, or is about to.
    one_thread = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    for g, puts in ((made.graph, made.puts), (graph, ["two/put", "one/put"])):
        for i in range(20):
            with v1.Session(graph=g, config=one_thread) as session:
                session.run("init")
                with deeprec_tf.StagedSession(session, puts, capacity=1 + i % 3, threads=1) as steps:
                    assert [steps.run("out:0") for _ in range(4)] == [2 * (i + 1) ** 2 + 1 for i in range(4)]
    with v1.Session(graph=graph) as session, pytest.raises(ValueError, match="two/put takes from one"):
        deeprec_tf.StagedSession(session, ["two/put"])


def test_resources_of_a_step_stay_in_it():
    """map_fn of control flow v1: TensorArrays, which live in one step."""
    graph = tf.Graph()
    with loops_of_control_flow_v1(), graph.as_default():
        data = tf.data.Dataset.range(10).map(lambda i: tf.stack([i, i + 1]))
        _, taken = deeprec_tf.stage(v1.data.make_one_shot_iterator(data).get_next())
        weight = v1.get_variable("w", initializer=np.int64(2), use_resource=True).read_value()
        tf.reduce_sum(tf.map_fn(lambda e: e * weight, tf.square(taken)), name="out")
        v1.global_variables_initializer()
    assert "TensorArrayV3" in {node.op for node in graph.as_graph_def().node}
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert made.changed
    assert run_staged(made, "out:0", 4, ["init"]) == [2 * (i * i + (i + 1) ** 2) for i in range(4)]


def test_what_no_target_needs_is_not_run_ahead():
    calls, graph = [], tf.Graph()
    with graph.as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(10)).get_next()
        _, taken = deeprec_tf.stage(number)
        weight = v1.get_variable("w", initializer=np.int64(2), use_resource=True)
        tf.multiply(tf.square(taken), weight, name="out")
        tf.numpy_function(lambda x: calls.append(x) or x, [taken], tf.int64)
        v1.assert_negative(taken)
        v1.global_variables_initializer()
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert made.changed
    assert run_staged(made, "out:0", 4, ["init"]) == [2 * i * i for i in range(4)] and not calls


def test_functions_of_python_outlive_the_first_graph():
    def build():
        with tf.Graph().as_default() as graph:
            number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(10)).get_next()
            _, taken = deeprec_tf.stage(number)
            weight = v1.get_variable("w", initializer=np.int64(2), use_resource=True)
            tf.multiply(tf.numpy_function(lambda x: x + 1, [taken], tf.int64), weight, name="out")
            v1.global_variables_initializer()
        return deeprec_tf.smart_stage(graph, ["out"])

    made = build()
    gc.collect()
    assert made.changed
    assert run_staged(made, "out:0", 3, ["init"]) == [2, 4, 6]


def test_a_step_that_is_refused_takes_no_record():
    graph, put = counter(6)
    with v1.Session(graph=graph) as session:
        session.run("init")
        with deeprec_tf.StagedSession(session, put) as steps:
            for _ in range(3):
                with pytest.raises(ValueError):
                    steps.run("nope:0")
            assert [steps.run("out:0") for _ in range(6)] == [i * i for i in range(6)]


def test_graphs_that_stay():
    with tf.Graph().as_default() as graph:
        tf.add(1, 2, name="out")
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert not made.changed and made.graph is graph and "the graph has no stage" in made.explanation
    with tf.Graph().as_default() as graph:  # what waits for the put itself
        put, taken = deeprec_tf.stage(tf.constant(1) + v1.random_uniform([], maxval=5, dtype=tf.int32))
        with tf.control_dependencies([put]):
            tf.square(taken, name="out")
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert not made.changed and "waits for its put" in made.explanation
    assert made.puts == ["stage/put"]


def test_loops_of_control_flow_are_kept():
    graph = tf.Graph()
    with loops_of_control_flow_v1(), graph.as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(50)).get_next()
        put, taken = deeprec_tf.stage(number)
        doubled = taken * 2
        _, power = tf.while_loop(lambda i, p: i < 3, lambda i, p: (i + 1, p * doubled), [0, tf.constant(1, tf.int64)])
        tf.cond(doubled > 4, lambda: power, lambda: -power, name="chosen")
        tf.identity(graph.get_tensor_by_name("chosen/Merge:0"), name="out")
    assert "NextIteration" in {node.op for node in graph.as_graph_def().node}
    made = deeprec_tf.smart_stage(graph, ["out"])
    assert made.changed
    with v1.Session(graph=made.graph) as session, deeprec_tf.StagedSession(session, made.puts) as steps:
        values = [int(steps.run("out:0")) for _ in range(6)]
    assert values == [(2 * i) ** 3 * (1 if 2 * i > 4 else -1) for i in range(6)]


def test_random_graphs():
    """Random expressions of the input, of a variable and of a placeholder: the same values, wherever the cut is."""
    for seed in range(60):
        rng = random.Random(seed)
        graph = tf.Graph()
        with graph.as_default():
            number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(30)).get_next()
            early = [number, number * 3, tf.constant(7, tf.int64)]
            put, taken = deeprec_tf.stage(rng.sample(early[:2], rng.randint(1, 2)))
            state = v1.get_variable("state", initializer=np.int64(1), use_resource=True)
            fed = v1.placeholder_with_default(np.int64(5), [], name="fed")
            pool = [*taken, tf.constant(2, tf.int64)]
            seeds = [state.read_value(), fed]
            for i in range(rng.randint(3, 25)):
                a, b = rng.choice(pool), rng.choice(pool + seeds if rng.random() < 0.25 else pool)
                with tf.control_dependencies([rng.choice(pool)] if rng.random() < 0.2 else []):
                    pool.append(rng.choice([tf.add, tf.subtract, tf.maximum])(a, b) % 1009)
            total = tf.add_n([*pool[-3:], seeds[0]])
            with tf.control_dependencies([state.assign(total % 101)]):
                tf.identity(total, name="out")
            v1.global_variables_initializer()
        results = []
        made = [deeprec_tf.smart_stage(graph, ["out"], rule=rule) for rule in ("balanced", "farthest")]
        for g, puts in [(graph, [put.name]), *((m.graph, m.puts) for m in made)]:
            with v1.Session(graph=g) as session:
                session.run("init")
                with deeprec_tf.StagedSession(session, puts, capacity=rng.randint(1, 8)) as steps:
                    results.append([int(steps.run("out:0")) for _ in range(8)])
        assert results[0] == results[1] == results[2], f"seed {seed}"


def test_variables_keep_their_names_and_checkpoints(lines, tmp_path):
    step = ctr_graphs.build("wdl", lines, SIZES, staged=True)
    made = deeprec_tf.smart_stage(step.graph, step.fetches)
    names = []
    for graph in (step.graph, made.graph):
        with graph.as_default():
            names.append([v.name for v in v1.global_variables()])
    assert names[0] == names[1] and len(names[0]) > 100
    with made.graph.as_default(), v1.Session(graph=made.graph) as session:
        saver = v1.train.Saver()
        session.run("init")
        with deeprec_tf.StagedSession(session, made.puts) as steps:
            steps.run(step.fetches)
        path = saver.save(session, str(tmp_path / "model"))
        wanted = session.run("deep/0/Read/ReadVariableOp:0")
    with step.graph.as_default(), v1.Session(graph=step.graph) as session:
        v1.train.Saver().restore(session, path)
        np.testing.assert_array_equal(session.run("deep/0/Read/ReadVariableOp:0"), wanted)


def test_a_graph_def_gives_a_graph_def():
    graph, _ = counter(10)
    made = deeprec_tf.smart_stage(graph.as_graph_def(), ["out"])
    assert isinstance(made.graph, v1.GraphDef) and made.changed
    with tf.Graph().as_default() as again, v1.Session(graph=again) as session:
        tf.import_graph_def(made.graph, name="")
        session.run("init")
        with deeprec_tf.StagedSession(session, made.puts) as steps:
            assert steps.run("out:0") == 0 and steps.run("out:0") == 1


def test_a_lookup_reads_its_variable():
    with tf.Graph().as_default() as graph:
        ids = v1.data.make_one_shot_iterator(tf.data.Dataset.range(10).batch(2)).get_next()
        _, taken = deeprec_tf.stage(tf.square(ids))
        table = v1.get_variable("v", initializer=tf.ones([99, 2]), use_resource=True)
        rows = tf.RaggedTensor.from_row_splits(taken + 1, [0, 2])
        tf.reduce_sum(deeprec_tf.safe_embedding_lookup_sparse(table, rows), name="out")
    made = deeprec_tf.smart_stage(graph, ["out"])
    reasons = [reason for name, reason in made.reasons.items() if name.endswith("DeeprecResourceSafeLookup")]
    assert len(reasons) == 1 and "it reads a variable ('v')" in reasons[0]


def test_stages_outside_of_graphs_and_of_composites():
    with pytest.raises(RuntimeError, match="a stage must be made in a graph"):
        deeprec_tf.stage(tf.constant(1.0))
    with tf.Graph().as_default():
        for value in (tf.ragged.constant([[1]]), tf.sparse.from_dense([[1]])):
            with pytest.raises(TypeError, match=f"values of a stage must be tensors .has a {type(value).__name__}"):
                deeprec_tf.stage({"ids": value})
    graph, _ = counter(3)
    with v1.Session(graph=graph) as session:
        for arguments, kind, text in [
            (dict(puts=["stage/put"], capacity=1.5), ValueError, "must be integers from 1 on .are 1.5, 1"),
            (dict(puts=["stage/put"], capacity="a"), ValueError, "must be integers from 1 on .are a, 1"),
            (dict(puts=[tf.constant(1)]), TypeError, "puts must be operations or their names .has a .*Tensor"),
        ]:
            with pytest.raises(kind, match=text):
                deeprec_tf.StagedSession(session, **arguments)


def test_bad_graphs_and_options():
    bad = tf.errors.InvalidArgumentError
    graph, _ = counter(3)
    with pytest.raises(ValueError, match="targets must name"):
        deeprec_tf.smart_stage(graph)
    with pytest.raises(bad, match="a target must be in the graph .'lost' is not"):
        deeprec_tf.smart_stage(graph, ["lost"])
    with pytest.raises((bad, ValueError), match="balanced"):
        deeprec_tf.smart_stage(graph, ["out"], rule="best")
    with pytest.raises(bad, match="cost_per_byte"):
        deeprec_tf.smart_stage(graph, ["out"], cost_per_byte=-1.0)
    with pytest.raises(bad, match="stage_threads"):
        deeprec_tf.smart_stage(graph, ["out"], stage_threads=0)

    def changed(change):
        definition = v1.GraphDef()
        definition.CopyFrom(graph.as_graph_def())
        node = next(n for n in definition.node if n.name == "squared")
        change(definition, node)
        return definition

    def loop(definition, node):
        next(n for n in definition.node if n.name == "out").input.append("^squared")
        node.input.append("^out")

    for change, match in [
        (lambda g, n: n.input.__setitem__(0, "lost"), "'lost' of 'squared' is not"),
        (lambda g, n: n.input.__setitem__(0, "stage/take:9"), "9 of 'stage/take', read by 'squared', is not"),
        (lambda g, n: setattr(n, "op", "NoSuchOp"), "NoSuchOp"),
        (lambda g, n: n.input.append("out"), "must have the inputs of its op .1; 'squared' has 2"),
        (lambda g, n: setattr(n, "name", "out"), "names of nodes must differ"),
        (loop, "must not need its own result"),
    ]:
        with pytest.raises((bad, tf.errors.NotFoundError), match=match):
            deeprec_tf.smart_stage(changed(change), ["out"])
    with v1.Session(graph=graph) as session:
        for arguments, match in [
            (([],), "must name a Stage"),
            ((["squared"],), "must be Stage operations .squared is of Square"),
            ((["stage/put"], 0), "integers from 1 on .are 0, 1"),
            ((["stage/put"], 1, 0), "integers from 1 on .are 1, 0"),
        ]:
            with pytest.raises(ValueError, match=match):
                deeprec_tf.StagedSession(session, *arguments)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="a stage must have a value"):
        deeprec_tf.stage([])
