"""Many embedding tables in one call, their rows on huge pages, stepped in the backward pass or by an optimizer."""

import copy
import io
import weakref
import zlib
from dataclasses import asdict, replace
from multiprocessing.reduction import ForkingPickler

import torch
from torch import Tensor, distributed, nn
from torch.autograd import forward_ad

from .batches import JaggedTensor, KeyedTensor, inverse_of, padded_offsets, refuse_tracers, varies
from .configs import FORMATS, POOLINGS, table_of
from .growth import CountingBloom, growth_floats, growth_integers, policy_numbers, whole
from .key_map import as_signed
from .optimizers import RULES
from .row_gradients import EachRow, RowGradients, merge
from .serving import ServedTables

_lookup = torch.ops.deeprec.tables_lookup.default
_lookup_or_insert = torch.ops.deeprec.tables_lookup_or_insert.default
_each = torch.ops.deeprec.tables_lookup_each.default
_step = torch.ops.deeprec.tables_step.default
_GROWN = ("keys", "weight", "state", "steps", "frequencies", "filter")  # as `contents` of csrc/embedding_tables.cpp


# The gradient that the parameter of a fused collection is left with: who scales gradients scales it too. A power of 2, which
# all types hold; its square is 0 in float32, so that it is no part of a norm.
_LEFT = 2.0**-100


def _expect_left(hook: Tensor):
    if hook.grad is not None and float(hook.grad) not in (0.0, _LEFT):
        raise RuntimeError(
            "EmbeddingBagCollection: gradients must not be scaled between two backward passes, which step the rows (were: by "
            "GradScaler, clip_grad_norm_ or the like). Take fused=False with a TableOptimizer; or scale the loss by no GradScaler "
            "and clip the other parameters only"
        )


def seed_of(seed: int | None) -> int:
    """By default torch's generator draws it."""
    if seed is None:
        return int(torch.randint(2**62, (), device="cpu"))
    return whole("EmbeddingBagCollection: seed", "None or an integer of 64 bits", seed, -(2**63))


def _number_tensor(value, dtype: torch.dtype = torch.int64) -> Tensor:
    """Whatever the default device is."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _lies_at(parameter: Tensor | None, address: int) -> bool:
    try:
        return parameter.data_ptr() == address and forward_ad.unpack_dual(parameter).tangent is None
    except (RuntimeError, AttributeError):
        return False


class _Contents(dict):
    """Tensors that are sent to another process by their values: those sent by reference would be gone before they arrive."""


def _contents_of(saved: bytes) -> _Contents:
    return _Contents(torch.load(io.BytesIO(saved)))


def _by_value(contents: _Contents):
    saved = io.BytesIO()
    torch.save(dict(contents), saved)
    return _contents_of, (saved.getvalue(),)


ForkingPickler.register(_Contents, _by_value)


class RowsParameter(nn.EmbeddingBag):
    """The rows of one table as a parameter, whose gradients are sparse; DistributedDataParallel knows by the class that they are.
    The collection's state dict has the rows."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        pass

    def _load_from_state_dict(self, *_):
        pass


class EmbeddingBagCollection(nn.Module):
    """Tables that one call looks up, all features side by side: out (B, sum of the features' widths), float32.

    Fused, the default: the backward pass steps the rows that the batch used, each once with the sum of its gradients. The rows
    are no parameters. The module's one parameter has one element that nothing reads: requires_grad_(False), of a module above
    too, freezes the tables. A batch of weights has no gradient of them. In eval mode, under no_grad, frozen and without an
    optimizer nothing is stepped. A step of its own is each lookup that a backward pass comes through. What a training loop does to
    gradients between the backward pass and a step comes too late and is refused: a second backward pass through one lookup, a
    GradScaler, clip_grad_norm_ over the module's parameter, several processes (process_local=True: each trains its own tables).

    fused=False: the rows are parameters, embedding_bags.NAME.weight, and the backward pass makes their sparse gradients, which
    accumulate and are scaled, clipped and reduced (DistributedDataParallel) as those of nn.EmbeddingBag(sparse=True). A
    TableOptimizer steps them by the collection's rule; without a rule, any of PyTorch's optimizers for sparse gradients. Weights of
    a batch have gradients. No table may grow. torch.compile runs the lookup between two graphs. Lookups read the tables: a parameter that is
    replaced by another tensor (p.data, vector_to_parameters, torch.func) is refused; assign(), load_state_dict() and writes in place set rows.

    docs/pytorch.md has a list of what a training loop may do with both.

    stochastic_rounding: a step rounds rows of f16 and bf16 up or down at random, right on average; to the nearest value, steps
    of less than 2^-9 (bf16) of a weight would be lost. weight_decay of such rows needs it. The words depend on the names of the
    tables, the row and the step: the same in each process and run.

    The state dict has a tensor for the rows of each table (uint8 for int8 and int4: FBGEMM's fused rows) and one for
    the optimizer's state, both views of the tables' own memory, the step, the learning rate and the optimizer's name. Another
    number of rows, and state of another optimizer, are refused, and nothing is changed. Concurrent lookups are
    safe; a backward pass excludes them. Errors name the table and the bag.

    Tables of num_embeddings=None grow: a lookup that a backward pass can come through inserts keys, others only find.
    Keys are int64, int32 or, where a table grows, uint64, whose bits are those of an int64. The state dict has copies of
    their keys, weight, state, steps and frequencies, in ascending order of the keys, the seed of first values and the
    counters of CountingBloom; one of any size may be loaded, and training goes on with the same bits. What an integer
    admission has counted of keys that wait is not in it: they begin again. keys, rows, size, statistics, erase and evict
    are for these tables; erase, evict and inserting lookups take turns, beside lookups. A fault of a batch leaves the
    keys that were inserted before it was found.

    seed: of the first weights; by default torch's generator draws it.
    """

    _version = 3  # of the state dict: 2 has the learning rate, 3 the name of the optimizer

    def __init__(
        self,
        tables,
        optimizer=None,
        seed: int | None = None,
        *,
        process_local: bool = False,
        fused: bool = True,
        stochastic_rounding: bool = False,
    ):
        super().__init__()
        self.tables = tuple(map(table_of, tables))
        if not self.tables:
            raise ValueError("EmbeddingBagCollection: tables must not be empty")
        names = [table.name for table in self.tables]
        if len(set(names)) != len(names):
            raise ValueError(f"EmbeddingBagCollection: names of tables must differ (are {', '.join(names)})")
        for table in self.tables:
            if not table.grows and table.num_embeddings < 1:
                raise ValueError(f"EmbeddingBagCollection: table {table.name} must have rows and columns (has {table.num_embeddings} rows)")
        if optimizer is not None and type(optimizer) not in RULES:
            raise ValueError(f"EmbeddingBagCollection: optimizer must be SGD, Adagrad, RowwiseAdagrad or Adam (is {optimizer!r})")
        self.optimizer = optimizer
        self.process_local = process_local
        self.fused = fused
        self.stochastic_rounding = stochastic_rounding
        self._check_options()
        # Which of the two forms of the rule steps the rows.
        self._decays = optimizer is not None and (stochastic_rounding or optimizer.weight_decay > 0)
        hook = torch.zeros(1, dtype=torch.float32, device="cpu")
        self._hook = nn.Parameter(hook, optimizer is not None) if fused else hook
        self._frozen: tuple[int, ...] = ()  # with fused=False, numbers of tables; while the module is copied
        self._make()
        self._initialize(seed_of(seed))

    def _check_options(self):
        for table in self.tables:
            if not self.fused and (table.grows or FORMATS[table.format] is None):
                kind = "grows" if table.grows else f"is {table.format}"
                raise NotImplementedError(
                    f"EmbeddingBagCollection: with fused=False table {table.name} must be dense, of f32, f16 or bf16 ({kind}): its rows are "
                    "a parameter"
                )
        if self.optimizer is None:
            if self.stochastic_rounding:
                raise ValueError("EmbeddingBagCollection: stochastic_rounding must be with an optimizer (has none)")
        elif self.optimizer.weight_decay and not self.stochastic_rounding:
            rounded = [table.name for table in self.tables if table.format in ("f16", "bf16")]
            if rounded:
                raise ValueError(
                    f"EmbeddingBagCollection: weight_decay of rows of 16 bits must be with stochastic_rounding=True (tables {', '.join(rounded)}): "
                    "steps that small are lost where they are rounded to the nearest value"
                )

    def _initialize(self, seed: int):
        for number, table in enumerate(self.tables):
            numbers = self.part(table.name)
            self._tables.initialize(number, (seed + number + 2**63) % 2**64 - 2**63, table.first_bound, numbers.start, numbers.step)

    def part(self, name: str) -> range:
        """The numbers of the rows that the collection holds of a table that does not grow: all of them."""
        return range(self.tables[self._number_of(name)].num_embeddings or 0)

    def _make(self):
        if self.optimizer is not None and self.fused:
            wanted = self._hook.requires_grad
            me = weakref.ref(self)
            self._hook.requires_grad_(True).register_post_accumulate_grad_hook(lambda hook: me()._leave(hook) if me() else None)
            self._hook.requires_grad_(wanted)
        # Stands for the rows: ops read and write it, so that a compiler keeps their order.
        self._rows_written = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._tables = torch.classes.deeprec.EmbeddingTables(
            RULES.get(type(self.optimizer), ""),
            [t.name for t in self.tables],
            [len(self.part(t.name)) for t in self.tables],
            [t.embedding_dim for t in self.tables],
            [t.format for t in self.tables],
            [[POOLINGS[t.pooling]] * len(t.feature_names) for t in self.tables],
            [growth_integers(t) for t in self.tables],
            [growth_floats(t) for t in self.tables],
            self._decays,
        )
        self._grows = any(t.grows for t in self.tables)
        self._number = self._tables.number()
        self._width = self._tables.total_width()
        self.feature_names = [name for t in self.tables for name in t.feature_names]
        self.feature_widths = [t.embedding_dim for t in self.tables for _ in t.feature_names]
        self._positions = self._first_positions()
        self._handle = self._passes = None  # a TableOptimizer, and the backward passes since its step
        if not self.fused:
            self.embedding_bags = self._row_parameters()
            self._rows_at = [parameter.data_ptr() for parameter in self._stepped_parameters()]
        self._set_options()

    def _row_dtype(self, number: int) -> torch.dtype:
        return FORMATS[self.tables[number].format]

    def _row_parameters(self) -> nn.Module:
        """The rows of the tables as parameters; those with a name that no module may have are known by their number."""
        made, names = nn.Module(), {table.name for table in self.tables}
        for number, table in enumerate(self.tables):
            name = table.name
            if "." in name or not name or hasattr(made, name):
                name = str(number)
                while name in names:
                    name += "_"
            bag = RowsParameter(table.num_embeddings, table.embedding_dim, mode=table.pooling, sparse=True, _weight=self.weight(table.name))
            bag.weight.register_post_accumulate_grad_hook(merge)
            bag.weight.requires_grad_(number not in self._frozen)
            made.add_module(name, bag)
        return made

    def _stepped_parameters(self) -> list[nn.Parameter]:
        """What a TableOptimizer has as its parameters."""
        return [self._hook] if self.fused else [bag.weight for bag in self.embedding_bags.children()]

    def _attach(self, handle):
        self._handle, self._passes = weakref.ref(handle), 0
        self._set_options()

    @torch.no_grad()
    def _leave(self, hook: Tensor):
        """After a backward pass of a fused collection."""
        hook.data.zero_()
        if hook.grad is None:  # frozen since the lookup
            return
        _expect_left(hook)
        hook.grad.fill_(_LEFT)
        if self._handle is not None and self._handle() is not None:
            self._passes += 1
            if self._passes > 1:
                raise RuntimeError(
                    "EmbeddingBagCollection: a fused collection must have one backward pass before each step() of its TableOptimizer (has "
                    f"{self._passes}): each steps the rows. Take fused=False to accumulate gradients, or add the losses"
                )

    def _step_by_handle(self):
        """TableOptimizer.step()."""
        if self.fused:
            self._passes = 0
            _expect_left(self._hook)
            return
        ids, gradients, none = [], [], torch.empty(0, dtype=torch.int64, device="cpu")
        parameters = self._stepped_parameters()
        for table, parameter in zip(self.tables, parameters):
            given, rows, width = parameter.grad, table.num_embeddings, table.embedding_dim
            if given is None:
                named, values = none, torch.empty(0, width, dtype=torch.float32, device="cpu")
            elif given.is_sparse:
                named, values = given._indices()[0], given._values()
            else:
                named, values = torch.arange(rows, dtype=torch.int64, device="cpu"), given
            others = len(table.feature_names) - 1
            ids += [named, *[none] * others]
            gradients += [values, *[torch.empty(0, width, dtype=torch.float32, device="cpu")] * others]
        if any(parameter.grad is not None for parameter in parameters):
            _step(self._rows_written, self._number, ids, gradients)
            torch.autograd.graph.increment_version(parameters)

    def _rows_changed(self):
        """Tells autograd that the parameters have other values, which ops wrote."""
        if not self.fused:
            torch.autograd.graph.increment_version(self._stepped_parameters())

    def _expect_own_rows(self):
        """Lookups read the tables: with fused=False the parameters must be their rows still, not tensors in their place."""
        if self.fused or torch.compiler.is_compiling():
            return
        bags = self.embedding_bags._modules
        try:
            same = [bag._parameters["weight"].data_ptr() for bag in bags.values()] == self._rows_at
        except (KeyError, RuntimeError, AttributeError):  # another module, or a tensor of torch.func
            same = False
        if same and forward_ad._current_level < 0:
            return
        for (name, bag), address in zip(bags.items(), self._rows_at):
            if not _lies_at(getattr(bag, "weight", None), address):
                raise RuntimeError(
                    f"EmbeddingBagCollection: parameter embedding_bags.{name}.weight must be the rows of its table, which lookups read (is another "
                    "tensor, by p.data, vector_to_parameters, torch.func or the like). Set rows by assign(), load_state_dict() or in place: "
                    "p.copy_(values) under no_grad"
                )

    def _change_rule(self, **values):
        """Of the collection's rule, as a handle or learning_rate sets it."""
        changed = replace(self.optimizer, **values)
        if changed.weight_decay and not self._decays:
            must = "not be 0 when the collection is made, or stay 0"
            raise ValueError(f"EmbeddingBagCollection: weight_decay must {must} (becomes {changed.weight_decay})")
        self.optimizer = changed
        self._set_options()

    def _set_options(self):
        given = asdict(self.optimizer) if self.optimizer is not None else {}
        betas = given.get("betas", (0.9, 0.999))
        self._tables.set_options(
            given.get("lr", 0.0),
            given.get("eps", 1e-8),
            given.get("initial_accumulator_value", 0.0),
            *betas,
            given.get("weight_decay", 0.0),
            zlib.crc32(",".join(table.name for table in self.tables).encode()),
        )
        handle = self._handle and self._handle()
        if handle is not None:
            for key, value in given.items():
                handle.param_groups[0].kept(key, value)

    @property
    def learning_rate(self) -> float | None:
        """None without an optimizer."""
        return None if self.optimizer is None else self.optimizer.lr

    @learning_rate.setter
    def learning_rate(self, lr: float):
        if self.optimizer is None:
            raise ValueError("EmbeddingBagCollection: a collection with a learning rate must have an optimizer (has none)")
        self._change_rule(lr=lr)

    def _first_positions(self) -> dict[tuple[str, ...], list[int]]:
        """None are needed of the features' own order; a feature of two tables is one key of a batch."""
        names = tuple(self.feature_names)
        return {names: []} if len(set(names)) == len(names) else {}

    def _positions_of(self, keys) -> list[int]:
        keys = tuple(keys)
        known = self._positions.get(keys)
        if known is None:
            missing = [name for name in self.feature_names if name not in keys]
            if missing:
                raise ValueError(f"EmbeddingBagCollection: the batch must have the keys {', '.join(missing)} (has {', '.join(keys)})")
            if len(set(keys)) != len(keys):
                raise ValueError(f"EmbeddingBagCollection: the batch's keys must differ (are {', '.join(keys)})")
            if len(self._positions) > 64:  # batches whose keys differ from one to the next
                self._positions = self._first_positions()
            known = self._positions[keys] = [keys.index(name) for name in self.feature_names]
        return known

    def forward(self, features) -> Tensor:
        """features: a KeyedJaggedTensor, of this module or torchrec's, with the collection's features among its keys."""
        if varies(features):
            return self._expanded(features)
        return self._pooled(features)

    def _pooled(self, features, offsets: Tensor | None = None) -> Tensor:
        trains, batch = self._checked(features, offsets)
        if not self.fused:
            return self._lookup_with_gradients(features, batch) if trains else self._looked_up(batch)
        return (_lookup_or_insert if trains and self._grows else _lookup)(
            self._hook if trains else self._hook.detach(), self._rows_written, self._number, self._width, *batch
        )

    def by_feature(self, features) -> dict[str, Tensor]:
        """The pooled rows of each feature, (B of its key, D): of a batch whose keys have their own numbers of bags (strides)."""
        parts = self.split(self._pooled(features, padded_offsets(features) if varies(features) else None))
        strides = dict(zip(features.keys(), features.stride_per_key()))
        return {name: part[: strides[name]] for name, part in parts.items()}

    def _expanded(self, features) -> Tensor:
        """Of a batch that varies: the row of each sample, by the batch's inverse."""
        inverse = inverse_of(features)
        parts = self.by_feature(features)
        return torch.cat([parts[name][inverse[name]] for name in self.feature_names], dim=1)

    def keyed(self, out: Tensor) -> KeyedTensor:
        """The output with its features' names and widths."""
        return KeyedTensor(list(self.feature_names), list(self.feature_widths), out)

    @torch.compiler.disable
    def unpooled(self, features) -> dict[str, JaggedTensor]:
        """The row of each id, for each feature: values (N_f, D), offsets of its bags. Trains as forward does: a step, or gradients,
        of its own. Batches without weights. float32."""
        trains, (values, offsets, weights, bags, keys, positions) = self._checked(features, padded_offsets(features) if varies(features) else None)
        if weights is not None:
            raise NotImplementedError("EmbeddingBagCollection.unpooled: the batch must have no weights, which are for pooling (has)")
        for what, given in (("values", values), ("offsets", offsets)):
            if given.dtype not in (torch.int64, torch.int32) or given.dim() != 1:
                raise ValueError(f"deeprec: {what} must be int64 or int32, of 1 dimension (are {given.dtype} {tuple(given.shape)})")
        count = offsets.numel() - 1
        if count != keys * bags:
            raise ValueError(f"deeprec: offsets must have keys ({keys}) * bags ({bags}) + 1 elements (have {count + 1})")
        self._expect_own_rows()
        decreasing = offsets.diff().lt(0)
        if int(offsets[0]) != 0 or bool(decreasing.any()) or int(offsets[-1]) > values.numel():
            raise ValueError(f"deeprec: offsets must ascend from 0 to at most {values.numel()}, the number of values")
        strides = dict(zip(features.keys(), features.stride_per_key())) if varies(features) else {}
        lists, jagged = [], []
        for feature, name in enumerate(self.feature_names):
            key = positions[feature] if positions else feature
            own = offsets[key * bags : (key + 1) * bags + 1]
            lists.append(values[int(own[0]) : int(own[-1])].to(torch.int64))
            jagged.append((own - own[0])[: strides.get(name, bags) + 1])
        if trains:
            hook = self._hook if self.fused else None
            outs = EachRow.apply(self, self._grows and self.fused, lists, hook, *([] if self.fused else self._stepped_parameters()))
        else:
            outs = _each(self._rows_written, self._number, lists, False)
        return {name: JaggedTensor(out, own) for name, out, own in zip(self.feature_names, outs, jagged)}

    def _looked_up(self, batch) -> Tensor:
        self._expect_own_rows()
        return _lookup(self._hook.detach(), self._rows_written, self._number, self._width, *batch)

    @torch.compiler.disable
    def _lookup_with_gradients(self, features, batch) -> Tensor:
        self._expect_own_rows()
        return RowGradients.apply(self, batch, features.weights_or_none(), *self._stepped_parameters())

    def _trains(self, weights: Tensor | None) -> bool:
        """Whether a backward pass comes through a lookup."""
        if not torch.is_grad_enabled():
            return False
        if self.fused:
            return self.training and self.optimizer is not None and self._hook.requires_grad
        return any(p.requires_grad for p in self._stepped_parameters()) or (weights is not None and weights.requires_grad)

    def _checked(self, features, offsets: Tensor | None = None) -> tuple[bool, tuple]:
        """Whether a lookup trains, and its batch: values, offsets, weights, bags, number of keys, positions of the features."""
        values, keys = features.values(), features.keys()
        if offsets is None:
            offsets = features.offsets()
            if varies(features):
                raise NotImplementedError("EmbeddingBagCollection: the batch must have the same number of bags for each key (varies)")
        refuse_tracers(values)
        if not values.device == offsets.device == self._hook.device:
            name, given = ("values", values) if values.device != self._hook.device else ("offsets", offsets)
            raise NotImplementedError(f"EmbeddingBagCollection: {name} must be on the CPU (is on {given.device})")
        trains = self._trains(features.weights_or_none())
        if trains and self.fused:
            self._expect_one_process()
            if not torch.compiler.is_compiling():
                _expect_left(self._hook)
            self._hook.data.zero_()  # an optimizer moved it by the gradient that it was left with: a penalty would see that
        if self._grows:
            values = as_signed(values)
        weights = features.weights_or_none()
        return trains, (values, offsets, weights, features.stride(), len(keys), self._positions_of(keys))

    def _expect_one_process(self):
        if not self.process_local and distributed.is_available() and distributed.is_initialized():
            if distributed.get_world_size() > 1:
                raise RuntimeError(
                    "EmbeddingBagCollection: a fused collection that is trained must be in one process, or process_local=True (there "
                    f"are {distributed.get_world_size()}): each steps its own rows by its own batches, and nothing makes "
                    "them equal, DistributedDataParallel neither. Take fused=False, whose gradients it reduces, or a "
                    "ShardedEmbeddingBagCollection"
                )

    def split(self, out: Tensor) -> dict[str, Tensor]:
        """The columns of each feature, as views."""
        if len(set(self.feature_names)) != len(self.feature_names):
            raise ValueError(f"EmbeddingBagCollection.split: features must differ (are {', '.join(self.feature_names)})")
        return dict(zip(self.feature_names, out.split(self.feature_widths, dim=1)))

    def __prepare_scriptable__(self):
        """What torch.jit.script calls first."""
        raise NotImplementedError("EmbeddingBagCollection: torch.jit.script must be given no collection, whose tables it can't save")

    def _apply(self, fn, recurse=True):
        """The tables stay on the CPU and in their formats, and the parameter with them."""
        kept = [(owner, name, owner.pop(name)) for owner, name in ((self._parameters, "_hook"), (self._modules, "embedding_bags")) if name in owner]
        try:
            return super()._apply(fn, recurse)
        finally:
            for owner, name, value in kept:
                others = dict(owner)
                owner.clear()
                owner.update({name: value, **others})

    def _stored(self, number: int, rows: Tensor) -> Tensor:
        dtype = FORMATS[self.tables[number].format]
        return rows if dtype is None else rows.view(dtype)

    def weight(self, name: str) -> Tensor:
        """The rows of a table as they are stored: (R, D), or of int8 and int4 FBGEMM's fused bytes. A view; of a table that
        grows a copy, in the order of keys(name)."""
        return self._part(name, "weight")

    def optimizer_state(self, name: str) -> Tensor:
        """(R, floats of state), of Adam m, then v. A view; of a table that grows a copy, in the order of keys(name)."""
        return self._part(name, "state")

    def _part(self, name: str, part: str) -> Tensor:
        number = self._number_of(name)
        if self.tables[number].grows:
            return self._contents_of(number)[part]
        return self._stored(number, self._tables.bytes(number)) if part == "weight" else self._tables.state(number)

    def dequantized(self, name: str) -> Tensor:
        """The values that lookups read, a copy in float32; of a table that grows in the order of keys(name)."""
        number = self._number_of(name)
        return self.rows(name, self.keys(name)) if self.tables[number].grows else self._tables.values(number)

    def assign(self, name: str, values: Tensor, keys: Tensor | None = None):
        """Sets the rows of a table, which converts them to its format; of a table that grows those of `keys` (N), with new
        rows for keys that have none, whatever its admission. The optimizer's state stays. ValueError where the capacity is
        not enough: keys before have their rows."""
        number = self._number_of(name)
        if self.tables[number].grows != (keys is not None):
            must = "given for" if self.tables[number].grows else "absent for"
            kind = "grows" if self.tables[number].grows else "is dense"
            raise ValueError(f"EmbeddingBagCollection.assign: keys must be {must} table {name}, which {kind}")
        if keys is None:
            self._tables.assign(number, values)
            self._rows_changed()
        else:
            self._tables.assign_to(number, as_signed(keys), values)

    # --- tables that grow ------------------------------------------------------------------------

    def _grown(self, method: str, name: str) -> int:
        number = self._number_of(name)
        if not self.tables[number].grows:
            raise ValueError(f"EmbeddingBagCollection.{method}: table {name} must be one that grows (is dense)")
        return number

    def size(self, name: str) -> int:
        """The number of rows."""
        return self._tables.size(self._grown("size", name))

    def keys(self, name: str) -> Tensor:
        """The keys that have rows (R), int64 in ascending order: a copy."""
        return self._tables.keys(self._grown("keys", name))

    def rows(self, name: str, keys: Tensor) -> Tensor:
        """The values that lookups read for keys (N): (N, D) in float32, the default row for keys without one."""
        return self._tables.rows_of(self._grown("rows", name), as_signed(keys))

    def erase(self, name: str, keys: Tensor) -> int:
        """Erases the rows of keys (N), and what was counted of keys that wait; returns how many rows. A key that comes
        again has a new row. A backward pass whose lookup was before does not step them."""
        return self._tables.erase(self._grown("erase", name), as_signed(keys))

    def evict(self, name: str, policy) -> int:
        """Erases the rows that StepTTL, L2Below, LeastRecent or LeastFrequent chooses, and returns how many. Rows that were
        made since the last backward pass stay."""
        number = self._grown("evict", name)
        return self._tables.evict(number, *policy_numbers(policy))

    def statistics(self, name: str) -> dict[str, int]:
        """rows; candidates: keys that wait for an integer admission; index_bytes, row_bytes, filter_bytes; waiting_rows:
        erased, and still kept for readers; refused: keys for which the table was full, each time that they came; evicted:
        rows, since the table was made or loaded."""
        return dict(self._tables.statistics(self._grown("statistics", name)))

    def _number_of(self, name: str) -> int:
        for number, table in enumerate(self.tables):
            if table.name == name:
                return number
        raise KeyError(f"EmbeddingBagCollection: there is no table {name!r}")

    def quantize(self, format: str) -> "EmbeddingBagCollection":
        """The same tables for lookups only, in another format."""
        made = EmbeddingBagCollection([replace(t, format=format) for t in self.tables], seed=0)
        for table in self.tables:
            keys = self.keys(table.name) if table.grows else None
            made.assign(table.name, self.dequantized(table.name) if keys is None else self.rows(table.name, keys), keys)
        return made

    def served(self, format: str | None = None, keys=None) -> ServedTables:
        """A copy of the tables, in another format where one is given, as a module that torch.export and TorchScript save. keys:
        those of its batches, in their order; by default the features. Of tables that do not grow."""
        growing = [table.name for table in self.tables if table.grows]
        if growing:
            raise NotImplementedError(f"EmbeddingBagCollection.served: tables must not grow ({', '.join(growing)}): keys are no rows of a matrix")
        return ServedTables(self if format is None else self.quantize(format), keys)

    def save(self, path: str):
        """Rows, state, step and learning rate in one of deeprec's table files, which replaces the one at path as a whole."""
        self._tables.save(str(path))

    def load(self, path: str):
        """Fills the tables from such a file; a file that does not fit is refused and nothing is changed."""
        self._tables.load(str(path))
        self._after_loading()

    def _after_loading(self):
        """After ops loaded the tables, whose learning rate is taken."""
        self._rows_changed()
        if self.optimizer is not None:
            self.learning_rate = self._tables.learning_rate()

    # --- the state dict, copies and pickles ------------------------------------------------------

    def _contents_of(self, number: int) -> dict[str, Tensor]:
        """What a table that grows holds, by the names of _GROWN: copies."""
        contents = dict(zip(_GROWN, self._tables.contents(number)))
        contents["weight"] = self._stored(number, contents["weight"])
        contents["seed"] = _number_tensor(self._tables.seed(number))
        return contents

    def _restore(self, number: int, contents: dict[str, Tensor]):
        rows = contents["weight"]
        if rows.dim() > 0:
            contents = {**contents, "weight": rows.contiguous().view(torch.uint8)}
        parts = [contents[part] for part in _GROWN]
        self._tables.restore(number, parts, int(contents["seed"]), self.tables[number].first_bound)

    def _grown_names(self, number: int) -> dict[str, str]:
        """Names in the state dict of the parts of a table that grows."""
        table = self.tables[number]
        parts = [*_GROWN, "seed"]
        if self.optimizer is None:
            parts.remove("state")
        if not isinstance(table.admission, CountingBloom):
            parts.remove("filter")
        return {part: f"{table.name}.{part}" for part in parts}

    def _views(self) -> dict[str, Tensor]:
        """What the state dict has of the memory of dense tables."""
        views = {}
        for number, table in enumerate(self.tables):
            if table.grows:
                continue
            views[f"{table.name}.weight"] = self.weight(table.name)
            if self.optimizer is not None:
                views[f"{table.name}.state"] = self._tables.state(number)
        return views

    def _copies(self) -> dict[str, Tensor]:
        """What the state dict has of tables that grow."""
        copies = {}
        for number, table in enumerate(self.tables):
            if table.grows:
                contents = self._contents_of(number)
                copies.update({name: contents[part] for part, name in self._grown_names(number).items()})
        return copies

    def _load_copies(self, given, missing: list[str], errors: list[str], prefix: str = ""):
        """Replaces the tables that grow, each as a whole or not at all."""
        for number, table in enumerate(self.tables):
            if not table.grows:
                continue
            names = {part: prefix + name for part, name in self._grown_names(number).items()}
            absent = [name for name in names.values() if name not in given]
            missing += absent
            if absent:
                continue
            contents = {part: given[name] for part, name in names.items()}
            wrong = [names[part] for part, value in contents.items() if not isinstance(value, Tensor)]
            if wrong:
                errors.append(f"{', '.join(wrong)} must be tensors")
                continue
            dtype = FORMATS[table.format] or torch.uint8
            if contents["weight"].dtype != dtype:
                errors.append(f"{names['weight']} must be {dtype} (is {contents['weight'].dtype})")
                continue
            contents.setdefault("state", torch.empty(contents["keys"].numel(), 0, dtype=torch.float32, device="cpu"))
            contents.setdefault("filter", torch.empty(0, dtype=torch.uint8, device="cpu"))
            try:
                self._restore(number, contents)
            except (ValueError, RuntimeError, NotImplementedError) as refused:
                errors.append(f"{prefix}{table.name}: {refused}")

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(f"{prefix}_hook", None)
        for name, part in {**self._views(), **self._copies()}.items():
            destination[prefix + name] = part
        destination[f"{prefix}step"] = _number_tensor(self._tables.step())
        if self.optimizer is not None:
            destination[f"{prefix}learning_rate"] = _number_tensor(self.learning_rate, torch.float64)
            destination[f"{prefix}optimizer"] = _number_tensor(list(RULES[type(self.optimizer)].encode()), torch.uint8)

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        ours = self._views()
        step, rate = state_dict.get(prefix + "step"), state_dict.get(prefix + "learning_rate")
        rule = None if self.optimizer is None else RULES[type(self.optimizer)]
        wrong, saved = [], state_dict.get(prefix + "optimizer")
        if rule is not None and saved is not None and bytes(saved.tolist()).decode(errors="replace") != rule:
            wrong.append(f"{prefix}optimizer must be {rule}, whose state it is (is {bytes(saved.tolist()).decode(errors='replace')})")
        fitting = []
        for name, to in ours.items():
            given = state_dict.get(prefix + name)
            if given is None:
                missing_keys.append(prefix + name)
            elif given.shape != to.shape or given.dtype != to.dtype:
                wrong.append(f"{prefix}{name} must be {to.dtype} {tuple(to.shape)} (is {given.dtype} {tuple(given.shape)})")
            else:
                fitting.append((to, given))
        if wrong:  # nothing is changed
            error_msgs += wrong
            return
        for to, given in fitting:
            to.copy_(given)
        self._rows_changed()
        self._load_copies(state_dict, missing_keys, error_msgs, prefix)
        if step is None:
            missing_keys.append(prefix + "step")
        elif torch.as_tensor(step).is_floating_point() or int(step) < 1:
            error_msgs.append(f"{prefix}step must be an integer from 1 on (is {step})")
        else:
            self._tables.set_step(int(step))
        if self.optimizer is not None:
            if rate is not None:
                self.learning_rate = float(rate)
            elif (local_metadata.get("version") or 1) >= 2:
                missing_keys.append(prefix + "learning_rate")
            if saved is None and (local_metadata.get("version") or 1) >= 3:
                missing_keys.append(prefix + "optimizer")
        known = {prefix + name for name in [*ours, "step"]}
        for number, table in enumerate(self.tables):
            if table.grows:
                known |= {prefix + name for name in self._grown_names(number).values()}
        if self.optimizer is not None:
            known |= {prefix + "learning_rate", prefix + "optimizer"}
        others = {key: value for key, value in state_dict.items() if key not in known}
        if self.fused:
            others[prefix + "_hook"] = self._hook
        super()._load_from_state_dict(others, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def __getstate__(self):
        made = ("_tables", "_rows_written", "_number", "_handle", "_passes", "_rows_at")
        kept = {key: value for key, value in self.__dict__.items() if key not in made}
        if not self.fused:
            kept["_frozen"] = tuple(n for n, p in enumerate(self._stepped_parameters()) if not p.requires_grad)
            kept["_modules"] = {name: module for name, module in self._modules.items() if name != "embedding_bags"}
        kept["_contents"] = _Contents((name, view.clone()) for name, view in self._views().items())
        kept["_contents"].update(self._copies())
        kept["_contents"]["step"] = _number_tensor(self._tables.step())
        return kept

    def __setstate__(self, state):
        contents = state.pop("_contents")
        super().__setstate__(state)
        self._make()
        for name, view in self._views().items():
            view.copy_(contents[name])
        refused = []
        self._load_copies(contents, refused, refused)
        if refused:
            raise ValueError(f"EmbeddingBagCollection: what is copied must fit ({'; '.join(refused)})")
        self._tables.set_step(int(contents["step"]))

    def __deepcopy__(self, memo):
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        state = self.__getstate__()
        contents = state.pop("_contents")
        made.__setstate__({**copy.deepcopy(state, memo), "_contents": contents})
        if not self.fused:
            memo.update((id(one), other) for one, other in zip(self._stepped_parameters(), made._stepped_parameters()))
        return made

    def extra_repr(self) -> str:
        lines = [f"{t.name}: ({'grows' if t.grows else t.num_embeddings}, {t.embedding_dim}), {t.format}, {t.pooling}" for t in self.tables]
        return "\n".join([*lines, f"optimizer: {self.optimizer}"])


class UnpooledEmbeddingCollection(EmbeddingBagCollection):
    """An EmbeddingBagCollection whose call gives the row of each id, not pooled, for each feature: torchrec's EmbeddingCollection."""

    def forward(self, features) -> dict[str, JaggedTensor]:
        return self.unpooled(features)
