"""What arguments that are numbers may be: of Python and of NumPy, no bools."""

import math
import numbers

import numpy as np

MOST_INT = 2**63 - 1
_MOST_FLOAT = float(np.finfo(np.float32).max)


def is_whole(value, least, most=MOST_INT):
    return not isinstance(value, bool) and hasattr(value, "__index__") and least <= value <= most


def is_number(value, least=-math.inf):
    """Finite as float32, which it is used as."""
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        return False
    return abs(value) <= _MOST_FLOAT and value >= least
