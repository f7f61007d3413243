"""The rules by which rows are stepped, and the handle that a training loop steps them with."""

import math
from dataclasses import asdict, dataclass, fields

import torch

from .growth import expect, is_real


@dataclass(frozen=True)
class _Rule:
    def __post_init__(self):
        name = type(self).__name__
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "betas":
                fits = isinstance(value, (tuple, list)) and len(value) == 2 and all(is_real(b) and 0 <= b < 1 for b in value)
                expect(fits, f"{name}: betas", "two numbers in [0, 1)", value)
                object.__setattr__(self, "betas", (float(value[0]), float(value[1])))
            else:
                expect(is_real(value) and 0 <= value < math.inf, f"{name}: {field.name}", "a number from 0 on", value)
                object.__setattr__(self, field.name, float(value))


@dataclass(frozen=True)
class SGD(_Rule):
    lr: float = 0.01
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adagrad(_Rule):
    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad(_Rule):
    """One sum for a row, of the mean of its squared gradient."""

    lr: float = 0.01
    eps: float = 1e-8
    initial_accumulator_value: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adam(_Rule):
    """Lazy, as torch.optim.SparseAdam: rows that a batch does not use keep their moments."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


# The names of the rules in the ops. weight_decay: L2, in the gradient of the rows that a step uses; the others keep their
# values.
RULES = {SGD: "sgd", Adagrad: "adagrad", RowwiseAdagrad: "rowwise_adagrad", Adam: "adam"}


class _Group(dict):
    """A parameter group whose values are those of a collection's rule: a schedule that sets one sets the other."""

    def __init__(self, values, collection):
        super().__init__(values)
        self._collection = collection

    def __setitem__(self, key, value):
        if key in asdict(self._collection.optimizer):
            value = tuple(map(float, value)) if key == "betas" else float(value)
            self._collection._change_rule(**{key: value})
        super().__setitem__(key, value)

    def update(self, *args, **values):
        for key, value in dict(*args, **values).items():
            self[key] = value

    def kept(self, key, value):
        """After the collection's rule was set."""
        super().__setitem__(key, value)

    def __reduce__(self):
        return dict, (dict(self),)


class TableOptimizer(torch.optim.Optimizer):
    """The optimizer of a collection, for what a training loop does to optimizers: schedules of rates, GradScaler, zero_grad, a state
    dict.

        tables = EmbeddingBagCollection(configs, Adagrad(lr=0.1), fused=False)
        rows = TableOptimizer(tables)
        loss.backward(); rows.step(); rows.zero_grad()

    Of a collection with fused=False step() steps the rows that have gradients, by the collection's rule, each once with the sum
    of its gradients; accumulated, clipped, reduced and unscaled gradients are the parameters' `grad`, sparse. Where no row has a
    gradient, nothing is stepped and the step's number stays.

    Of a fused collection the backward pass has stepped the rows already: step() raises where gradients were scaled or clipped
    since then, and the backward pass raises where step() has not been called since the one before.

    There is one parameter group; setting a value of it (lr, eps, betas, weight_decay) sets the collection's at once, and
    `learning_rate` of the collection that of the group. The state dict has them and the name of the rule; the rows' state and the
    number of the step are in the collection's state dict. A collection has one handle, the last that was made.
    """

    def __init__(self, collection):
        if getattr(collection, "optimizer", None) is None or not hasattr(collection, "_attach"):
            must = "a collection with an optimizer"
            raise TypeError(f"TableOptimizer: collection must be {must} (is {type(collection).__name__})")
        self.collection = collection
        super().__init__(collection._stepped_parameters(), {**asdict(collection.optimizer), "rule": RULES[type(collection.optimizer)]})
        self._wrap()

    def _wrap(self):
        self.param_groups[:] = [_Group({**self.param_groups[0], "params": self.collection._stepped_parameters()}, self.collection)]
        self.collection._attach(self)

    def add_param_group(self, param_group):
        if self.param_groups:
            raise ValueError("TableOptimizer: there must be one parameter group, the tables of the collection (a second one is added)")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.collection._step_by_handle()
        return loss

    def load_state_dict(self, state_dict):
        """Takes the rates and the other values. Refuses those of another rule."""
        groups = state_dict["param_groups"]
        given = groups[0].get("rule") if len(groups) == 1 else None
        rule = RULES[type(self.collection.optimizer)]
        if given != rule:
            raise ValueError(f"TableOptimizer: the state must be that of a TableOptimizer of {rule} (is of {given or 'another optimizer'})")
        here, there = len(self.param_groups[0]["params"]), len(groups[0]["params"])
        if here != there:
            must = f"that of {here} parameters: one of a fused collection, else one for each table"
            raise ValueError(f"TableOptimizer: the state must be {must} (is of {there})")
        values = {key: value for key, value in groups[0].items() if key in asdict(self.collection.optimizer)}
        self.collection._change_rule(**values)  # refuses before anything is changed
        super().load_state_dict(state_dict)
        self._wrap()

    def __getstate__(self):
        return {**super().__getstate__(), "collection": self.collection}

    def __setstate__(self, state):
        super().__setstate__(state)
        if "collection" in state:
            self._wrap()
