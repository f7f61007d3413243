"""Runs the stages of a graph ahead of its steps, on threads of their own.

    with StagedSession(session, staged.puts, capacity=2) as steps:
        while True:
            loss = steps.run("loss:0")           tf.errors.OutOfRangeError at the end of the input

A record is put only where there is room, and a step is run only where a record is, so that neither Stage nor Unstage
ever waits: an op that waits holds a thread of the inter-op pool, which all sessions of a process share.
"""

import threading

import tensorflow as tf


class StagedSession:
    """A session whose steps take what `puts` have computed ahead.

    session    a tf.compat.v1.Session
    puts       the Stage operations, or their names; each step takes one record of each
    capacity   records ahead of the steps, at least 1. Not more than a bound of the Stage op itself
    threads    that compute records. With more than one their order is not that of the input

    What a put raises (the end of the input as well) is raised by run(), after the records before it were used. Not
    thread-safe: one thread calls run().
    """

    def __init__(self, session, puts, capacity=2, threads=1):
        graph = session.graph
        self._puts = [graph.get_operation_by_name(p) if isinstance(p, str) else p for p in tf.nest.flatten(puts)]
        if not self._puts:
            raise ValueError("deeprec: puts must name a Stage operation (are empty)")
        for put in self._puts:
            if put.type != "Stage":
                raise ValueError(f"deeprec: puts must be Stage operations ({put.name} is of {put.type})")
            if put.get_attr("memory_limit") > 0:
                raise ValueError(f"deeprec: a stage must be bounded by records ({put.name} has a memory_limit)")
        if capacity < 1 or threads < 1:
            raise ValueError(f"deeprec: capacity and threads must be at least 1 (are {capacity}, {threads})")
        bounds = [put.get_attr("capacity") for put in self._puts if put.get_attr("capacity") > 0]
        self._room = min([capacity, *bounds])
        # A bounded Stage has room once a step that takes has ended, others once it has begun.
        self._bounded = bool(bounds)
        self._session = session
        self._clear = [_clear_of(graph, put) for put in self._puts]
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
        except (TypeError, ValueError, RuntimeError):  # refused before it ran: nothing was taken
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

        Waits for a put whose source waits: close the queue, or end the source, first.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        # A step that failed before it took leaves a record that nobody counts, so a bounded Stage may be waiting.
        while any(thread.is_alive() for thread in self._threads):
            self._drop_records()
            for thread in self._threads:
                thread.join(0.05)
        self._drop_records()

    def _drop_records(self):
        try:
            self._session.run(self._clear)
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
                self._session.run(self._puts)
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


def _clear_of(graph, put):
    """The op that empties a stage: the one of the graph, or a new one."""
    same = ("container", "shared_name", "capacity", "memory_limit", "dtypes")
    wanted = {name: put.get_attr(name) for name in same}
    for op in graph.get_operations():
        if op.type == "StageClear" and all(op.get_attr(name) == wanted[name] for name in ("container", "shared_name")):
            return op
    if graph.finalized:
        raise ValueError(f"deeprec: the graph must not be finalized before its stages can be emptied (of {put.name})")
    with graph.as_default(), graph.control_dependencies(None), tf.device(put.device or None):
        container, shared_name = (tf.compat.as_str(wanted[name]) for name in ("container", "shared_name"))
        shared_name = shared_name or put.name
        return tf.raw_ops.StageClear(
            dtypes=wanted["dtypes"],
            container=container,
            shared_name=shared_name,
            capacity=wanted["capacity"],
            memory_limit=wanted["memory_limit"],
            name=put.name + "_clear",
        )
