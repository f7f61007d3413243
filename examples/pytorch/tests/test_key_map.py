"""KeyMap: numbers of keys, for layers whose rows have numbers."""

import copy
import io
import pickle
import random
import threading

import pytest
import torch
from torch import nn

from deeprec_torch import KeyMap

LEAST, MOST = -(2**63), 2**63 - 1


def test_numbers_in_the_order_of_keys():
    keys = KeyMap(10)
    assert len(keys) == 0 and keys.capacity == 10
    given = torch.tensor([7, -1, 7, LEAST, MOST, 0])
    assert keys.insert(given).tolist() == [0, 1, 0, 2, 3, 4] and len(keys) == 5
    assert keys.find(torch.tensor([0, 8, 7])).tolist() == [4, -1, 0]
    assert keys.erase(torch.tensor([-1, 99, -1])).tolist() == [1, -1, -1] and len(keys) == 4
    assert keys.insert(torch.tensor([50, 51])).tolist() == [1, 5]
    found, numbers = keys.items()
    assert found.tolist() == [7, 50, LEAST, MOST, 0, 51] and numbers.tolist() == list(range(6))


def test_a_full_map():
    keys = KeyMap(2)
    assert keys.insert(torch.tensor([5, 6, 7, 5])).tolist() == [0, 1, -1, 0]
    keys.erase(torch.tensor([5]))
    assert keys.insert(torch.tensor([7, 8])).tolist() == [0, -1] and len(keys) == 2


def test_shapes_and_types():
    keys = KeyMap(100)
    given = torch.tensor([[3, -1], [4, 3]])
    numbers = keys.insert(given)
    assert numbers.shape == (2, 2) and numbers.dtype == torch.int64
    assert torch.equal(keys.find(given.int()), numbers) and torch.equal(keys.find(given.view(torch.uint64)), numbers)
    assert torch.equal(keys.find(given.t()), numbers.t()) and keys.find(torch.tensor(4)).item() == 2
    none = torch.zeros(0, 3, dtype=torch.int64)
    for call in (keys.insert, keys.find, keys.erase):
        assert call(none).shape == (0, 3)
        for wrong in (torch.tensor([1.0]), torch.tensor([True]), torch.tensor([1], dtype=torch.int16)):
            with pytest.raises(ValueError, match="keys must be int64 or int32"):
                call(wrong)
        with pytest.raises(NotImplementedError, match=r"keys must be on the CPU \(is on meta\)"):
            call(torch.zeros(1, dtype=torch.int64, device="meta"))
        with pytest.raises(TypeError, match="keys must be a tensor"):
            call([1])
    for capacity in (0, -1, 2**32):
        with pytest.raises(ValueError, match="key_map: capacity must be from 1"):
            KeyMap(capacity)
    with pytest.raises(TypeError):
        KeyMap(1.5)


def test_as_a_dictionary():
    """Random calls against a dictionary and the least number that is free; copies go on as the map does."""
    draw = random.Random(3)
    for capacity in (1, 7, 60):
        keys, known = KeyMap(capacity), {}
        for turn in range(120):
            given = [draw.randrange(-40, 40) for _ in range(draw.randrange(12))]
            call = draw.choice(["insert", "insert", "erase", "find", "copy"])
            wanted = []
            for key in given:
                if call == "insert" and key not in known:
                    free = min(set(range(capacity)) - set(known.values()), default=None)
                    if free is not None:
                        known[key] = free
                wanted.append(known.pop(key, -1) if call == "erase" else known.get(key, -1))
            if call == "copy":
                keys = draw.choice([copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k)), saved_and_loaded])(keys)
            else:
                assert getattr(keys, call)(torch.tensor(given, dtype=torch.int64)).tolist() == wanted
            assert len(keys) == len(known)
        found, numbers = keys.items()
        assert dict(zip(found.tolist(), numbers.tolist())) == known


def saved_and_loaded(keys):
    file = io.BytesIO()
    torch.save(keys, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_copies_share_nothing():
    keys = KeyMap(5)
    keys.insert(torch.tensor([1, 2]))
    copied = copy.deepcopy(keys)
    copied.insert(torch.tensor([3]))
    keys.erase(torch.tensor([1]))
    assert keys.find(torch.tensor([1, 2, 3])).tolist() == [-1, 1, -1] and copied.find(torch.tensor([1, 2, 3])).tolist() == [0, 1, 2]


def test_contents_that_do_not_fit_are_refused():
    for keys, numbers, match in (
        ([1, 1], [0, 1], "keys must differ"),
        ([1, 2], [0, 0], "numbers must differ"),
        ([1, 2], [0, 5], "numbers must be below 5"),
        ([1, 2], [0, -1], "numbers must be below 5"),
        ([1, 2], [0], "as many as keys"),
    ):
        made = KeyMap.__new__(KeyMap)
        with pytest.raises(ValueError, match=match):
            made.__setstate__({"capacity": 5, "items": (torch.tensor(keys), torch.tensor(numbers))})


def test_rows_of_an_embedding_bag():
    """Training over any keys has the bits of a layer over their numbers."""
    torch.manual_seed(1)
    bag, other = nn.EmbeddingBag(8, 4, mode="sum"), nn.EmbeddingBag(8, 4, mode="sum")
    other.load_state_dict(bag.state_dict())
    keys = KeyMap(8)
    ids = torch.tensor([[10**18, -5], [-5, 3], [3, 10**18]])
    numbers = torch.tensor([[0, 1], [1, 2], [2, 0]])
    assert torch.equal(keys.insert(ids), numbers)
    bag(keys.find(ids)).square().sum().backward()
    other(numbers).square().sum().backward()
    assert torch.equal(bag.weight.grad, other.weight.grad)


def test_threads():
    """Finds beside insertions and erasures; each kept key has its number."""
    keys, wrong, end = KeyMap(100_000), [], threading.Event()  # a find may keep all numbers that are erased beside it
    kept = torch.arange(500)
    wanted = keys.insert(kept)

    def read():
        while not end.is_set():
            if not torch.equal(keys.find(kept), wanted):
                wrong.append(1)

    def write(first):
        for turn in range(40):
            given = torch.arange(first, first + 1000)
            numbers = keys.insert(given)
            if (numbers < 500).any() or not torch.equal(keys.erase(given), numbers):
                wrong.append(2)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(first,)) for first in (10**6, 2 * 10**6)]
    for thread in readers + writers:
        thread.start()
    for writer in writers:
        writer.join()
    end.set()
    for reader in readers:
        reader.join()
    assert not wrong and len(keys) == 500


def test_the_same_numbers_for_any_number_of_threads():
    given = torch.randint(-(10**6), 10**6, (50_000,), generator=torch.Generator().manual_seed(1))
    threads, numbers = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            numbers.append(KeyMap(40_000).insert(given))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(numbers[0], numbers[1]) and torch.equal(numbers[0], numbers[2]) and (numbers[0] == -1).any()
