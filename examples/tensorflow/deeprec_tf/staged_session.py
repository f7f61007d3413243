"""Runs the stages of a graph ahead of its steps, on threads of their own.

    with StagedSession(session, staged.puts, capacity=2) as steps:
        while True:
            loss = steps.run("loss:0")           tf.errors.OutOfRangeError at the end of the input

A record is put only where there is room, and a step is run only where a record is, so that neither Stage nor Unstage
ever waits: an op that waits holds a thread of the inter-op pool, which all sessions of a process share.
"""

import threading

import tensorflow as tf

from ._numbers import is_whole


class StagedSession:
    """A session whose steps take what `puts` have computed ahead.

    session    a tf.compat.v1.Session
    puts       the Stage operations, or their names; each step takes one record of each, but for stages that other
               puts take from: those are run first
    capacity   records ahead of the steps, at least 1. Not more than a bound of the Stage op itself
    threads    that compute records. With more than one their order is not that of the input

    What a put raises (the end of the input as well) is raised by run(), after the records before it were used. Not
    thread-safe: one thread calls run().
    """

    def __init__(self, session, puts, capacity=2, threads=1):
        graph = session.graph
        for put in tf.nest.flatten(puts):
            if not isinstance(put, (str, tf.Operation)):
                raise TypeError(f"deeprec: puts must be operations or their names (has a {type(put).__name__})")
        self._puts = [graph.get_operation_by_name(p) if isinstance(p, str) else p for p in tf.nest.flatten(puts)]
        if not self._puts:
            raise ValueError("deeprec: puts must name a Stage operation (are empty)")
        for put in self._puts:
            if put.type != "Stage":
                raise ValueError(f"deeprec: puts must be Stage operations ({put.name} is of {put.type})")
            if put.get_attr("memory_limit") > 0:
                raise ValueError(f"deeprec: a stage must be bounded by records ({put.name} has a memory_limit)")
        if not (is_whole(capacity, 1) and is_whole(threads, 1)):
            raise ValueError(f"deeprec: capacity and threads must be integers from 1 on (are {capacity}, {threads})")
        bounds = [put.get_attr("capacity") for put in self._puts if put.get_attr("capacity") > 0]
        self._room = min([capacity, *bounds])
        # A bounded Stage has room once a step that takes has ended, others once it has begun.
        self._bounded = bool(bounds)
        self._session = session
        self._levels = _in_levels(self._puts)
        self._clear = [_clear_of(graph, put) for put in self._puts]
        taken_by_puts = set().union(*map(_stages_before, self._puts))
        self._clear_last = [
            clear for put, clear in zip(self._puts, self._clear) if _stage_of(put) not in taken_by_puts
        ]
        self._changed = threading.Condition()
        self._ready = 0
        self._running = threads
        self._closed = False
        self._problem = None
        self._threads = [threading.Thread(target=self._put_records, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def run(self, fetches, feed_dict=None, options=None, run_metadata=None):
        """As tf.compat.v1.Session.run, of a step: the fetches must need one record of each stage."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready > 0 or self._running == 0 or self._closed)
            if self._closed:
                raise RuntimeError("deeprec: the staged session must be open (is closed)")
            if self._ready == 0:
                raise self._problem
            self._ready -= 1
            if not self._bounded:
                self._give_room()
        try:
            return self._session.run(fetches, feed_dict, options, run_metadata)
        except (TypeError, ValueError, RuntimeError):  # the session refused the call: no op ran, and none took
            with self._changed:
                self._ready += 1
                self._room -= 1
            raise
        finally:
            if self._bounded:
                with self._changed:
                    self._give_room()

    def close(self):
        """Ends the threads, after what they are computing, and drops the records that no step took.

        A put that waits for its source delays it: close the queue first.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # A step that failed before it took leaves a record that nobody counts, so a bounded Stage may be waiting. What
        # a running put takes must stay until it has ended.
        while any(thread.is_alive() for thread in self._threads):
            self._run_unless_closed(self._clear_last)
            for thread in self._threads:
                thread.join(0.05)
        self._run_unless_closed(self._clear)

    def _run_unless_closed(self, ops):
        try:
            self._session.run(ops)
        except RuntimeError:  # the session was closed first, and its records with it
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _give_room(self):
        self._room += 1
        self._changed.notify_all()

    def _put_records(self):
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._room > 0 or self._closed or self._problem is not None)
                    if self._closed or self._problem is not None:
                        return
                    self._room -= 1
                for level in self._levels:
                    self._session.run(level)
                with self._changed:
                    self._ready += 1
                    self._changed.notify_all()
        except Exception as problem:  # raised by run()
            with self._changed:
                self._problem = self._problem or problem
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


def _stage_of(op):
    """What makes a Stage and an Unstage the ends of one stage."""
    container, shared_name = (tf.compat.as_str(op.get_attr(name)) for name in ("container", "shared_name"))
    return container, shared_name or op.name


def _stages_before(put):
    """The stages that a put takes from."""
    seen, open_ops, stages = set(), [put], set()
    while open_ops:
        op = open_ops.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Unstage":
            stages.add(_stage_of(op))
        open_ops += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return stages


def _in_levels(puts):
    """The puts in lists to be run one after the other: a put of a list takes what earlier lists have put. Together in one
    run an Unstage might wait for its record, and hold the thread that was to make it."""
    waiting, made, levels = {put: _stages_before(put) for put in puts}, set(), []
    while waiting:
        level = [put for put, stages in waiting.items() if stages <= made]
        if not level:
            put, stages = next(iter(waiting.items()))
            missing = ", ".join(sorted(name for _, name in stages - made))
            raise ValueError(f"deeprec: puts must have every stage that they take from ({put.name} takes from {missing})")
        levels.append(level)
        made.update(map(_stage_of, level))
        for put in level:
            del waiting[put]
    return levels


def _clear_of(graph, put):
    """The op that empties a stage: the one of the graph, or a new one."""
    for op in graph.get_operations():
        if op.type == "StageClear" and _stage_of(op) == _stage_of(put):
            return op
    if graph.finalized:
        raise ValueError(f"deeprec: the graph must not be finalized before its stages can be emptied (of {put.name})")
    container, shared_name = _stage_of(put)
    with graph.as_default(), graph.control_dependencies(None), tf.device(put.device or None):
        return tf.raw_ops.StageClear(
            dtypes=put.get_attr("dtypes"),
            container=container,
            shared_name=shared_name,
            capacity=put.get_attr("capacity"),
            memory_limit=put.get_attr("memory_limit"),
            name=put.name + "_clear",
        )
