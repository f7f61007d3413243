"""Numbers of keys, for tables of a fixed size."""

import operator

import torch
from torch import Tensor


def as_signed(keys: Tensor) -> Tensor:
    """uint64 as int64 of the same bits, which is the same key."""
    if not isinstance(keys, Tensor):
        raise TypeError(f"deeprec_torch: keys must be a tensor (is {type(keys).__name__})")
    return keys.view(torch.int64) if keys.dtype == torch.uint64 else keys


class KeyMap:
    """64-bit keys to numbers in [0, capacity), for nn.EmbeddingBag or any table whose rows have numbers.

        numbers = keys.insert(ids)               # -1 where all numbers are taken
        pooled = bag(numbers, offsets)
        erased = keys.erase(gone)
        bag.weight.data[erased[erased >= 0]] = 0    # their rows start anew

    Keys are int64, int32 or uint64 on the CPU, of any shape; numbers are int64 of that shape. A new key gets the smallest
    number that is free, in the order of the keys: numbers depend on the calls in their order, not on threads. find may
    run beside everything; insert and erase take turns. pickle and deepcopy keep the numbers.

    ValueError for a capacity below 1 or above 2^32 - 2^24 - 1 and for other types, torch.OutOfMemoryError where memory
    is refused; then nothing has changed.
    """

    def __init__(self, capacity: int):
        self.capacity = operator.index(capacity)
        self._map = torch.classes.deeprec.KeyMap(self.capacity)

    def insert(self, keys: Tensor) -> Tensor:
        """Numbers of keys, with new ones for those without; -1 where there is none left."""
        return self._map.insert(as_signed(keys))

    def find(self, keys: Tensor) -> Tensor:
        """Numbers of keys; -1 for those without."""
        return self._map.find(as_signed(keys))

    def erase(self, keys: Tensor) -> Tensor:
        """Erases keys: the number that each had, or -1. Other keys get these numbers from the next insert on, or a later one
        where a find that began before the erasure is not over."""
        return self._map.erase(as_signed(keys))

    def items(self) -> tuple[Tensor, Tensor]:
        """Keys (N) and their numbers (N), in ascending order of the numbers: a copy."""
        keys, numbers = self._map.items()
        return keys, numbers

    def __len__(self) -> int:
        return self._map.size()

    def __getstate__(self):
        return {"capacity": self.capacity, "items": self.items()}

    def __setstate__(self, state):
        self.__init__(state["capacity"])
        self._map.restore(*state["items"])

    def __repr__(self) -> str:
        return f"KeyMap(capacity={self.capacity}, {len(self)} keys)"
