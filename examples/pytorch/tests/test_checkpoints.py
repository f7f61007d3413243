"""Checkpoints: what is restored is what was saved, while training goes on, after crashes, in other processes."""

import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from deeprec_torch import (
    SGD,
    Adagrad,
    Adam,
    Checkpoints,
    EmbeddingBagCollection,
    Follower,
    KeyedJaggedTensor,
    Restored,
    RowwiseAdagrad,
    TableConfig,
)
from trained import OPTIMIZERS, Trained, differ


def grown(width=4, optimizer=SGD(0.5), seed=1, **options):
    return EmbeddingBagCollection([TableConfig("u", None, width, **options)], optimizer, seed=seed)


def step(collection, keys):
    collection(KeyedJaggedTensor.one_hot(["u"], torch.as_tensor(keys).unsqueeze(0))).sum().backward()


def files(folder):
    return sorted(path.name for path in Path(folder).glob("*.drt"))


def restored(folder, optimizer="adam"):
    """Into other first values."""
    model = Trained(optimizer, seed=8)
    with_folder = model.saved_in(folder)
    last = with_folder.restore()
    with_folder.close()
    return model, last


# --- the state of a cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_restored_is_what_was_cut(tmp_path, optimizer):
    """Random histories: full files and deltas, written after more training. After a full file both go on with the same bits."""
    draws, model = random.Random(optimizer), Trained(optimizer)
    saves = model.saved_in(tmp_path)
    for number in range(10):
        model.turn(draws.randint(0, 5))
        full = number in (0, 9) or draws.random() < 0.2
        cut = saves.cut(full, model.turns, {"auc": 0.5 + number, "number": -number})
        then = model.content()
        model.turn(draws.randint(0, 3))
        assert cut.write().bytes == os.path.getsize(cut.path) and cut.done()
        other, last = restored(tmp_path, optimizer)
        assert differ(other.content(), then, full) == []
        assert last.numbers == {"auc": 0.5 + number, "number": -number} and last.passed_over == []
        assert (last.chain, last.number) == saves.position() and last.number == cut.number == number + 1
        assert other.tables.learning_rate == float(then["learning_rate"])
    assert {"u.frequencies", "v.filter", "d.state", "net.1.running_mean", "adam.0.exp_avg"} <= then.keys()
    other.turns = last.step
    assert other.turn(model.turns - last.step + 6).turns == model.turn(6).turns
    assert differ(other.content(), model.content()) == []


def test_a_part_that_is_lost_is_seen(tmp_path):
    """What the comparisons above see: each table, a step, a frequency, a dense value."""
    model = Trained().turn(9)
    model.saved_in(tmp_path).write_full()
    other, _ = restored(tmp_path)
    other.tables.erase("u", other.tables.keys("u")[:1])
    other.tables.weight("d")[7, 1] += 1
    other.net[0].bias.data[0] += 1
    other.tables._tables.set_step(3)
    assert {"u.keys", "u.steps", "u.frequencies", "d.weight", "net.0.bias", "step"} <= set(differ(other.content(), model.content()))


def test_back_to_an_earlier_state(tmp_path):
    """In one process: what comes after is as it was, ages and admissions by the step too."""
    model = Trained()
    saves = model.saved_in(tmp_path)
    saves.write_full(model.turn(20).turns)
    wanted = model.turn(30).content()
    last = saves.restore()
    model.turns = last.step
    assert last.step == 20 and differ(model.content(), wanted) != []
    assert differ(model.turn(30).content(), wanted) == []
    saves.write_delta(model.turns)
    other, last = restored(tmp_path)
    assert last.step == 50 and differ(other.content(), wanted, full=False) == []


def test_deltas_have_what_changed_and_full_files_everything(tmp_path):
    tables = grown(64)
    saves = Checkpoints(tmp_path, tables)
    step(tables, range(20_000))
    full = saves.write_full()
    step(tables, range(50))
    tables.assign("u", torch.full((1, 64), 9.0), torch.tensor([70]))
    delta = saves.write_delta()
    empty = saves.write_delta()
    assert full.bytes > 20_000 * 256 and 51 * 256 < delta.bytes < 51 * 256 + 8192 and empty.bytes < 4096
    other = grown(64, seed=2)
    Checkpoints(tmp_path, other).restore()
    assert torch.equal(other.weight("u"), tables.weight("u")) and other.rows("u", torch.tensor([70]))[0, 0] == 9


@pytest.mark.parametrize("copy_budget", [1, 64 << 20])
def test_training_goes_on_while_a_file_is_written(tmp_path, copy_budget):
    """Each turn changes rows that the cut has: they are copied before, and beyond the budget training waits."""
    tables = grown(32, Adagrad(0.1))
    keys = torch.arange(60_000)
    step(tables, keys)
    saves = Checkpoints(tmp_path, tables, copy_budget=copy_budget)
    for number in range(4):
        cut = saves.cut(number % 2 == 0)
        then = tables.state_dict()
        cut.write(background=True)
        while True:
            step(tables, keys[torch.randint(60_000, (5000,))])
            tables.erase("u", keys[torch.randint(60_000, (50,))])
            if cut.done():
                break
        assert cut.wait() == os.path.getsize(cut.path)
        other = grown(32, Adagrad(0.1), seed=2)
        assert Checkpoints(tmp_path, other).restore().number == number + 1
        assert differ(other.state_dict(), then) == []
        assert differ(tables.state_dict(), then) != []


def test_dense_tensors_are_those_of_the_moment(tmp_path):
    """Parameters that a module got since, other memory of them, a collection that is a part of the module."""
    tables, net = grown(), nn.Linear(3, 2)
    model = nn.ModuleDict({"tables": tables, "net": net})
    saves = Checkpoints(tmp_path, tables, dense=model)
    saves.write_full()
    net.weight = nn.Parameter(torch.full((2, 3), 5.0))
    net.bias.data = torch.full((2,), 6.0)
    gc.collect()
    saves.write_delta()
    values = {"net.weight": torch.zeros(2, 3), "net.bias": torch.zeros(2)}
    Checkpoints(tmp_path, grown(seed=2), dense=values).restore()
    assert values["net.weight"].tolist() == [[5.0] * 3] * 2 and values["net.bias"].tolist() == [6.0, 6.0]
    net.weight = nn.Parameter(torch.zeros(2, 3))
    saves.restore()
    assert net.weight.tolist() == [[5.0] * 3] * 2
    net.weight = nn.Parameter(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="a full file must come before"):
        saves.write_delta()
    saves.write_full()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8])
def test_types_of_dense_tensors(tmp_path, dtype):
    for shape in [(), (5,), (1, 1), (2, 3, 4)]:
        given = torch.randint(0, 200, shape).to(dtype).mT if len(shape) > 2 else torch.randint(0, 200, shape).to(dtype)
        into = torch.zeros_like(given, memory_format=torch.contiguous_format)
        Checkpoints(tmp_path, grown(), dense={"x": given}).write_full()
        Checkpoints(tmp_path, grown(), dense={"x": into}).restore()
        assert torch.equal(given, into)


def test_without_an_optimizer_and_quantized(tmp_path):
    trained = grown(16)
    step(trained, range(100))
    served = trained.quantize("int8")
    Checkpoints(tmp_path, served).write_full(7)
    other = grown(16, None, format="int8")
    follower = Follower(tmp_path, other)
    assert follower.poll() and follower.state().step == 7
    assert torch.equal(other.weight("u"), served.weight("u"))


# --- folders -----------------------------------------------------------------------------------------


def test_an_empty_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "not there"):
        model = Trained().turn(3)
        then = model.content()
        assert model.saved_in(folder).restore() is None and differ(model.content(), then) == []
        follower = Follower(folder, EmbeddingBagCollection(model.tables.tables, model.tables.optimizer))
        assert follower.poll() is False and follower.state() is None
        assert not (tmp_path / "not there").exists()


def test_old_chains_go(tmp_path):
    tables = grown()
    saves = Checkpoints(tmp_path, tables, kept_chains=1)
    for number in range(3):
        step(tables, [number])
        saves.write_full()
        saves.write_delta()
    assert files(tmp_path) == ["delta-000000000006.drt", "full-000000000005.drt"]
    Checkpoints(tmp_path, tables.quantize("f32"), kept_chains=3).write_full()
    assert files(tmp_path)[-1] == "full-000000000007.drt" and len(files(tmp_path)) == 3


def test_a_file_that_is_not_whole_is_passed_over(tmp_path):
    model = Trained()
    saves = model.saved_in(tmp_path)
    saves.write_full(model.turn(4).turns)
    saves.write_delta(model.turn(4).turns)
    then = model.content()
    broken = Path(saves.write_delta(model.turn(4).turns).path)
    damaged = bytearray(broken.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    broken.write_bytes(damaged)
    other, last = restored(tmp_path)
    assert (last.step, last.number) == (8, 2) and differ(other.content(), then, full=False) == []
    assert len(last.passed_over) == 1 and broken.name in last.passed_over[0]
    saves.close()
    goes_on = other.saved_in(tmp_path)
    assert goes_on.restore().number == 2
    with pytest.raises(ValueError, match="a full file must come before"):
        goes_on.write_delta()
    assert goes_on.write_full(other.turn().turns).number == 4
    assert restored(tmp_path)[1].passed_over == []


def test_only_broken_files(tmp_path):
    tables = grown()
    (tmp_path / "full-000000000001.drt").write_bytes(b"no table file")
    with pytest.raises(ValueError, match="full-000000000001.drt"):
        Checkpoints(tmp_path, tables).restore()
    assert tables.size("u") == 0


def child(folder, turns, writes):
    command = [sys.executable, str(Path(__file__).with_name("trained.py")), str(folder), str(turns), writes]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_killed(tmp_path):
    """At any moment, in the midst of writing and training: no less than what was reported."""
    for lines in (1, 4):
        process = child(tmp_path, 10**6, "goes on")
        try:
            reported = [int(process.stdout.readline()) for _ in range(lines)][-1]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()
        model, last = restored(tmp_path)
        assert last.step >= reported and differ(model.content(), Trained().turn(last.step).content(), full=False) == []
        for path in tmp_path.iterdir():
            path.unlink()


LEAVES = """
import atexit, sys, torch

written = []
atexit.register(lambda: print(written[0].done()))  # after those that were registered later
from deeprec_torch import SGD, Checkpoints, EmbeddingBagCollection, TableConfig

tables = EmbeddingBagCollection([TableConfig("u", None, 64)], SGD(0.5), seed=1)
tables.assign("u", torch.ones(200_000, 64), torch.arange(200_000))
saves = Checkpoints(sys.argv[1], tables)
written.append(saves.write_full(background=True))
"""


def test_the_interpreter_ends_while_a_file_is_written(tmp_path):
    ran = subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path)], check=True, timeout=240, capture_output=True, text=True)
    assert ran.stdout.strip() == "True"
    other = grown(64)
    assert Checkpoints(tmp_path, other).restore().number == 1
    assert other.size("u") == 200_000 and bool((other.weight("u") == 1).all())


def test_one_process_saves_and_another_follows(tmp_path):
    served, reference = Trained(seed=5), Trained()
    follower = Follower(tmp_path, served.tables.eval(), dense=served.net)
    seen = []
    with child(tmp_path, 7, "waits") as process:
        for line in process.stdout:
            seen.append(int(line))
            assert follower.poll() and not follower.poll()
            state, then = follower.state(), reference.turn().content()
            ours = {name: value for name, value in then.items() if not name.startswith("adam")}
            full = reference.turns % 3 == 1
            assert differ({n: v for n, v in served.content().items() if not n.startswith("adam")}, ours, full) == []
            assert state.step == state.number == reference.turns and served.tables.learning_rate == reference.tables.learning_rate
            process.stdin.write("\n")
            process.stdin.flush()
    assert seen == list(range(1, 8))


def test_lookups_while_another_thread_follows(tmp_path):
    """A row is as one file or as the next has it."""
    tables = grown(16)
    saves = Checkpoints(tmp_path, tables)
    keys = torch.arange(3000)
    tables.assign("u", torch.full((3000, 16), 0.0), keys)
    saves.write_full()
    served = grown(16).eval()
    follower = Follower(tmp_path, served)
    follower.poll()
    wrong, ended = [], threading.Event()

    def look_up():
        while not ended.is_set():
            out = served(KeyedJaggedTensor.one_hot(["u"], keys.unsqueeze(0)))
            if not torch.equal(out, out[:, :1].expand(-1, 16)) or len(out.unique()) > 2:
                wrong.append(out)

    readers = [threading.Thread(target=look_up) for _ in range(2)]
    for one in readers:
        one.start()
    for value in range(1, 20):
        tables.assign("u", torch.full((3000, 16), float(value)), keys)
        (saves.write_full if value % 7 == 0 else saves.write_delta)()
        assert follower.poll()
    ended.set()
    for one in readers:
        one.join()
    assert wrong == [] and torch.equal(served.rows("u", keys), torch.full((3000, 16), 19.0))


# --- lifetimes, processes ----------------------------------------------------------------------------


def test_the_order_in_which_objects_go(tmp_path):
    tables = grown()
    step(tables, [1, 2])
    saves = Checkpoints(tmp_path, tables)
    del tables
    gc.collect()
    cut = saves.cut(True)
    del saves
    gc.collect()
    assert cut.write().number == 1
    del cut
    other = grown(seed=2)
    Checkpoints(tmp_path, other).restore()
    assert other.size("u") == 2
    saves = Checkpoints(tmp_path, other)
    saves.write_full(background=True)
    del saves  # waits for the file
    assert files(tmp_path) == ["full-000000000001.drt", "full-000000000002.drt"]
    step(other, [3])


def in_a_forked_process(saves, cut, tables, queue):
    told = []
    for call in (saves.write_full, saves.restore, saves.position, cut.write, cut.wait):
        try:
            call()
        except RuntimeError as refused:
            told.append(str(refused))
    step(tables, [7])
    del saves, cut
    gc.collect()
    queue.put((told, tables.size("u")))


@pytest.mark.parametrize("writes", [True, False])
def test_a_process_is_forked(tmp_path, writes):
    """While a file is written, or a cut is taken and not written: the parent's file is whole, the child has its tables."""
    tables = grown(32)
    step(tables, range(50_000))
    saves = Checkpoints(tmp_path, tables)
    cut = saves.cut(True)
    if writes:
        cut.write(background=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked process has no OpenMP threads of its parent
    try:
        context = torch.multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=in_a_forked_process, args=(saves, cut, tables, queue))
        process.start()
        assert cut.done() == writes  # the fork waited for it
        told, size = queue.get(timeout=240)
        process.join(60)
    finally:
        torch.set_num_threads(threads)
    assert process.exitcode == 0 and size == 50_000 and len(told) == 5 and all("forked" in one for one in told)
    if not writes:
        cut.write()
    step(tables, [60_000])
    saves.write_delta()
    other = grown(32, seed=2)
    assert Checkpoints(tmp_path, other).restore().number == 2
    assert differ(other.state_dict(), tables.state_dict()) == []


# --- refusals ----------------------------------------------------------------------------------------


def test_one_cut_at_a_time(tmp_path):
    tables = grown()
    step(tables, [1])
    saves = Checkpoints(tmp_path, tables)
    cut = saves.cut(True)
    for call in (lambda: saves.cut(True), saves.write_delta, saves.restore):
        with pytest.raises(RuntimeError, match="the cut before must be written or dropped first"):
            call()
    with pytest.raises(RuntimeError, match="must be written"):
        cut.wait()
    cut.drop()
    cut.drop()
    for call in (cut.write, cut.wait, lambda: cut.bytes):
        with pytest.raises(RuntimeError, match="Cut"):
            call()
    assert cut.done() and files(tmp_path) == []
    with pytest.raises(ValueError, match="a full file must come before"):
        saves.write_delta()
    cut = saves.write_full()
    with pytest.raises(RuntimeError, match="written once"):
        cut.write()
    step(tables, [2])
    saves.cut(False)  # dropped, as nobody has it
    delta = saves.write_delta()
    other = grown(seed=2)
    assert Checkpoints(tmp_path, other).restore().number == delta.number
    assert other.keys("u").tolist() == [1, 2]


def test_a_write_that_fails(tmp_path):
    """Training goes on, and the next file has the changes."""
    tables = grown()
    step(tables, [1])
    saves = Checkpoints(tmp_path, tables)
    saves.write_full()
    lock = tmp_path / "checkpoint.lock"
    lock.unlink()
    lock.mkdir()
    step(tables, [2])
    with pytest.raises(RuntimeError, match="checkpoint.lock"):
        saves.write_delta()
    step(tables, [3])
    failed = saves.write_delta(background=True)
    with pytest.raises(RuntimeError, match="checkpoint.lock"):
        failed.wait()
    failed = saves.write_delta(background=True)
    while not failed.done():
        pass
    lock.rmdir()
    with pytest.warns(RuntimeWarning, match="a write in the background failed.*checkpoint.lock"):
        saves.write_delta()
    assert files(tmp_path)[0].startswith("delta") and len(files(tmp_path)) == 2
    other = grown(seed=2)
    Checkpoints(tmp_path, other).restore()
    assert other.keys("u").tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="folder"):
        Checkpoints(Path(failed.path).with_name("full-000000000001.drt"), tables.quantize("f32")).write_full()


def test_a_table_is_in_one_folder_and_stays(tmp_path):
    tables = grown()
    step(tables, [1])
    saves = Checkpoints(tmp_path, tables)
    with pytest.raises(ValueError, match="table u: .*one folder only"):
        Checkpoints(tmp_path / "other", tables)
    state, path = tables.state_dict(), tmp_path / "tables.drt"
    tables.save(path)
    follower = Follower(tmp_path / "other", tables)
    for used in (saves, follower):
        for call in (lambda: tables.load_state_dict(state), lambda: tables.load(path)):
            with pytest.raises(RuntimeError, match="table u must be in no Checkpoints and no Follower"):
                call()
        used.close()
    assert tables.load_state_dict(state) and tables.load(path) is None
    step(tables, [2])
    for call in (saves.write_full, saves.restore, saves.position, follower.poll, follower.state):
        with pytest.raises(RuntimeError, match="must be open"):
            call()
    saves.close()
    Checkpoints(tmp_path, tables).write_full()
    copied = copy.deepcopy(tables)
    assert copied.keys("u").tolist() == [1, 2]


@pytest.mark.parametrize(
    "other, refused",
    [
        (lambda: grown(5), ValueError),
        (lambda: grown(optimizer=Adam(0.1)), ValueError),
        (lambda: grown(format="bf16"), ValueError),
        (lambda: grown(capacity=2), ValueError),
        (lambda: EmbeddingBagCollection([TableConfig("u", 9, 4)], SGD(0.5), seed=1), ValueError),
        (lambda: EmbeddingBagCollection([TableConfig("x", None, 4)], SGD(0.5), seed=1), ValueError),
    ],
)
def test_files_that_do_not_fit(tmp_path, other, refused):
    tables = grown()
    step(tables, [1, 2, 3])
    Checkpoints(tmp_path, tables).write_full()
    into = other()
    then = copy.deepcopy(into.state_dict())
    for read in (Checkpoints(tmp_path, into).restore, Follower(tmp_path, into).poll):
        with pytest.raises(refused, match=into.tables[0].name):
            read()
        assert differ(into.state_dict(), then) == []


def narrow(optimizer, seed=1):
    return EmbeddingBagCollection([TableConfig("u", 9, 1)], optimizer, seed=seed)


@pytest.mark.parametrize("saved, other", [(RowwiseAdagrad(0.5), Adagrad(0.1)), (Adagrad(0.5), RowwiseAdagrad(0.1))], ids=["row", "element"])
def test_state_of_another_optimizer(tmp_path, saved, other):
    """Of one column both have one number for each row."""
    tables = narrow(saved)
    step(tables, [1, 2, 3])
    writer = Checkpoints(tmp_path, tables)
    assert writer.write_full(1, {"auc": 0.5}).number == 1
    into, like = narrow(other, 2), narrow(type(saved)(0.25), 2)
    then = copy.deepcopy(into.state_dict())
    follower = Follower(tmp_path, into)
    names = ("rowwise_adagrad", "adagrad") if type(other) is RowwiseAdagrad else ("adagrad", "rowwise_adagrad")
    refused = rf"checkpoints must have state of {names[0]} \(have that of {names[1]}\): .*full-0+1\.drt"
    for read in (Checkpoints(tmp_path, into).restore, follower.poll, follower.poll):
        with pytest.raises(ValueError, match=refused):
            read()
        assert differ(into.state_dict(), then) == []
    assert Checkpoints(tmp_path, like).restore().numbers == {"auc": 0.5} and like.learning_rate == 0.5
    assert differ(like.state_dict(), tables.state_dict()) == []
    looked_up = EmbeddingBagCollection([TableConfig("u", 9, 1)], seed=3)  # without an optimizer: any
    assert Checkpoints(tmp_path, looked_up).restore() and Follower(tmp_path, looked_up).poll()
    # Where the newest full file is the right one, one before it may be another's.
    writer.close()
    ours = Checkpoints(tmp_path, into)
    ours.write_full(2)
    ours.write_delta(3)
    again = narrow(other, 4)
    assert Checkpoints(tmp_path, again).restore().step == 3 and Follower(tmp_path, again).poll()
    assert differ(again.state_dict(), into.state_dict()) == []
    behind = Follower(tmp_path, like)
    with pytest.raises(ValueError, match=rf"have that of {names[0]}"):
        behind.poll()
    # Where it is not whole, the one before is read, and known only then.
    newest = max(tmp_path.glob("full-*.drt"))
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    for read in (Checkpoints(tmp_path, again).restore, Follower(tmp_path, again).poll):
        with pytest.raises(ValueError, match=rf"have that of {names[1]}"):
            read()


def test_dense_parts_that_do_not_fit(tmp_path):
    tables, values = grown(), {"x": torch.zeros(3)}
    step(tables, [1])
    saves = Checkpoints(tmp_path, tables, dense=values)
    saves.write_full()
    into = grown(seed=2)
    adam = torch.optim.Adam([torch.zeros(3, requires_grad=True)])
    for options, match in [({"dense": {"x": torch.zeros(4)}}, "x"), ({"dense": {"y": torch.zeros(3)}}, "y"), ({"optimizer": adam}, "optimizer")]:
        with pytest.raises(ValueError, match=match):
            Checkpoints(tmp_path, into, **options).restore()
        assert into.size("u") == (1 if "optimizer" in options else 0)


def test_arguments_are_refused_by_name(tmp_path):
    tables, net = grown(), nn.Linear(2, 2)
    for make, error, match in [
        (lambda: Checkpoints(tmp_path, net), TypeError, "collection must be an EmbeddingBagCollection"),
        (lambda: Checkpoints(None, tables), TypeError, "NoneType"),
        (lambda: Checkpoints(tmp_path, tables, SGD(0.1)), TypeError, "optimizer must be a torch.optim.Optimizer"),
        (lambda: Checkpoints(tmp_path, tables, kept_chains=0), ValueError, "kept_chains"),
        (lambda: Checkpoints(tmp_path, tables, kept_chains=True), ValueError, "kept_chains"),
        (lambda: Checkpoints(tmp_path, tables, copy_budget=1.5), ValueError, "copy_budget"),
        (lambda: Checkpoints(tmp_path, tables, dense=[torch.zeros(2)]), TypeError, "dense must be a module or a dict"),
        (lambda: Checkpoints(tmp_path, tables, dense={"x": 1.0}), TypeError, "'x'"),
        (lambda: Checkpoints(tmp_path, tables, dense={1: torch.zeros(1)}), TypeError, "dense"),
        (lambda: Checkpoints(tmp_path, tables, dense={"x": torch.zeros(2, dtype=torch.bool)}), ValueError, "x must be float32.*Bool"),
        (lambda: Checkpoints(tmp_path, tables, dense={"x": torch.zeros(0)}), ValueError, "x must be .*not empty"),
        (lambda: Checkpoints(tmp_path, tables, dense={"u": torch.zeros(2)}), ValueError, "table u: .*names of tables.* must differ"),
        (lambda: Checkpoints(tmp_path, tables, dense=net.to("meta")), NotImplementedError, "weight must be on the CPU"),
        (lambda: Checkpoints(tmp_path, tables, dense=nn.ModuleList([grown()])), ValueError, "no other EmbeddingBagCollection"),
        (lambda: Follower(tmp_path, net), TypeError, "Follower: collection"),
        (lambda: Follower(tmp_path, tables, dense={"x": torch.zeros(2, device="meta")}), NotImplementedError, "x must be on the CPU"),
    ]:
        with pytest.raises(error, match=match):
            make()
    saves = Checkpoints(tmp_path, tables)  # none of those has the table
    for call, error, match in [
        (lambda: saves.cut(1), TypeError, "full must be a bool"),
        (lambda: saves.write_full(background=1), TypeError, "background must be a bool"),
        (lambda: saves.write_full(-1), ValueError, "step must be"),
        (lambda: saves.write_full(True), ValueError, "step must be"),
        (lambda: saves.write_full(1.0), ValueError, "step must be"),
        (lambda: saves.write_full(numbers=[1]), TypeError, "numbers must be a dict"),
        (lambda: saves.write_full(numbers={"x": True}), TypeError, "'x' is True"),
        (lambda: saves.write_full(numbers={"x": 2**63}), TypeError, "'x'"),
        (lambda: saves.write_full(numbers={"x": "1"}), TypeError, "'x'"),
        (lambda: saves.write_full(numbers={"u, step": 1}), ValueError, "'u, step'"),
        (lambda: saves.write_full(numbers={"checkpoint, to": 1}), ValueError, "checkpoint, "),
        (lambda: pickle.dumps(saves), TypeError, "Checkpoints: must be made in each process"),
        (lambda: copy.deepcopy(saves), TypeError, "Checkpoints: must be made in each process"),
        (lambda: pickle.dumps(Follower(tmp_path, tables)), TypeError, "Follower: must be made in each process"),
    ]:
        with pytest.raises(error, match=match):
            call()
    assert files(tmp_path) == []
    saves.write_full(numbers={"least": -(2**63), "most": 2**63 - 1, "nothing": float("inf")})
    last = saves.restore()
    assert isinstance(last, Restored) and last.numbers == {"least": -(2**63), "most": 2**63 - 1, "nothing": float("inf")}
    assert last.step == 0
