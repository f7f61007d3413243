"""EmbeddingBag against torch.nn.EmbeddingBag: values, gradients, and its places in PyTorch."""

import copy
import itertools
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import deeprec_torch

SEED = 20
CONFIGURATIONS = 1000


class Configuration:
    """A random layer and a batch for it."""

    def __init__(self, number):
        draw = random.Random(SEED * 10_000 + number)
        self.seed = draw.randrange(2**31)
        torch.manual_seed(self.seed)
        self.rows = draw.choice([1, 2, 7, 100, 1000])
        self.width = draw.choice([1, 2, 3, 8, 16, 17, 33, 64, 100, 128])
        self.mode = draw.choice(["sum", "mean", "max"])
        self.dtype = draw.choice([torch.float32] * 4 + [torch.bfloat16, torch.float16])
        self.id_type = draw.choice([torch.int64, torch.int32])
        self.sparse = self.mode != "max" and draw.random() < 0.4
        self.by_frequency = self.mode != "max" and not self.sparse and draw.random() < 0.2
        self.padding = draw.choice([None, None, 0, self.rows - 1, -1])
        # Scaled to one norm, rows of one column are equal, and which is the greatest is a matter of rounding.
        scaled = self.mode != "max" and self.dtype == torch.float32
        self.max_norm = draw.choice([None, None, None, 0.5]) if scaled else None
        self.include_last = draw.random() < 0.3
        self.two_dimensions = draw.random() < 0.3
        bags = draw.choice([0, 1, 2, 5, 33, 300])
        if self.two_dimensions:
            self.ids = torch.randint(self.rows, (bags, draw.choice([1, 2, 9])), dtype=self.id_type)
            self.offsets = None
        else:
            lengths = torch.tensor([draw.choice([0, 1, 1, 2, 5, 40]) for _ in range(bags)], dtype=torch.int64)
            ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            self.ids = torch.randint(self.rows, (int(ends[-1]),), dtype=self.id_type)
            self.offsets = (ends if self.include_last else ends[:-1]).to(self.id_type)
        weighted = self.mode == "sum" and draw.random() < 0.4
        self.sample_weights = torch.rand(self.ids.shape).to(self.dtype) if weighted else None

    def options(self):
        return dict(
            mode=self.mode,
            sparse=self.sparse,
            scale_grad_by_freq=self.by_frequency,
            padding_idx=self.padding,
            max_norm=self.max_norm,
            include_last_offset=self.include_last and not self.two_dimensions,
            dtype=self.dtype,
        )

    def run(self, layer, magnitudes=False):
        """Values, the gradient of the rows and that of the sample weights; of the magnitudes: what bounds their errors."""
        convert = (lambda t: t.detach().to(layer.weight.dtype).abs()) if magnitudes else (lambda t: t.to(layer.weight.dtype))
        sample_weights = None
        if self.sample_weights is not None:
            sample_weights = convert(self.sample_weights).clone().requires_grad_()
        out = layer(self.ids, self.offsets, sample_weights)
        torch.manual_seed(self.seed + 1)
        out.backward(convert(torch.randn(out.shape).to(self.dtype)))
        gradient = layer.weight.grad
        assert gradient.is_sparse == self.sparse
        gradient = gradient.coalesce().to_dense() if gradient.is_sparse else gradient
        if self.by_frequency and not layer.scale_grad_by_freq:
            gradient = gradient / torch.bincount(self.ids.flatten(), minlength=self.rows).clamp_min(1).unsqueeze(1)
        return out.detach(), gradient, None if sample_weights is None else sample_weights.grad

    def exact(self, layer, magnitudes=False):
        """PyTorch's own layer in float64, with the rows of a layer. PyTorch 2.6 computes scale_grad_by_freq wrongly: run() divides."""
        made = nn.EmbeddingBag(self.rows, self.width, **{**self.options(), "dtype": torch.float64, "scale_grad_by_freq": False})
        weight = layer.weight.detach().double()
        made.weight.data.copy_(weight.abs() if magnitudes and self.mode != "max" else weight)
        return made


ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


@pytest.mark.parametrize("block", range(20))
def test_random_configurations(block):
    for number in range(block * CONFIGURATIONS // 20, (block + 1) * CONFIGURATIONS // 20):
        case = Configuration(number)
        torch.manual_seed(case.seed)
        ours = deeprec_torch.EmbeddingBag(case.rows, case.width, **case.options())
        theirs, sizes = case.exact(ours), case.exact(ours, magnitudes=True)
        made, wanted = case.run(ours), case.run(theirs)
        bounds = case.run(sizes, magnitudes=True)
        for what, one, other, size in zip(("values", "gradient", "gradient of the sample weights"), made, wanted, bounds):
            if other is None:
                continue
            assert one.dtype == case.dtype and one.shape == other.shape, (number, what)
            error = (one.double() - other).abs()
            bound = 1e-5 * size.abs() + ROUNDING[case.dtype] * other.abs() + 1e-7
            assert bool((error <= bound).all()), f"{number}, {what}: {float((error / bound).max())} of the bound"
        torch.testing.assert_close(ours.weight.double(), theirs.weight, rtol=1e-5, atol=1e-7)  # max_norm changes rows


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_same_numbers_as_pytorch_in_float32(mode):
    theirs = nn.EmbeddingBag(200, 33, mode=mode)
    ours = deeprec_torch.EmbeddingBag(200, 33, mode=mode)
    ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(200, (400, 7))
    gradient = torch.randn(400, 33)
    for layer in (ours, theirs):
        layer(ids).backward(gradient)
    torch.testing.assert_close(ours(ids), theirs(ids), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-5, atol=1e-4)


def test_a_wrong_gradient_is_caught():
    """The comparison above can fail: the gradient of another mode is not the same."""
    case = next(c for c in map(Configuration, itertools.count()) if c.mode == "sum" and c.two_dimensions and c.ids.numel() > 20)
    case.sample_weights, case.ids = None, case.ids.repeat(1, 2)
    ours = deeprec_torch.EmbeddingBag(case.rows, case.width, **{**case.options(), "mode": "mean"})
    made, wanted = case.run(ours)[1], case.run(case.exact(ours))[1]
    assert float((made.double() - wanted).abs().max()) > 1e-2


def layer_and_batch(**options):
    torch.manual_seed(SEED)
    layer = deeprec_torch.EmbeddingBag(50, 12, mode="sum", **options)
    ids = torch.tensor([1, 2, 3, 3, 49, 0])
    offsets = torch.tensor([0, 2, 2, 5])
    return layer, ids, offsets


def test_gradients_by_differences():
    """The lookup is linear in the rows and in the weights, so float32 differences over a large step are exact enough."""
    layer, ids, offsets = layer_and_batch()
    weights = torch.rand(6).requires_grad_()

    def lookup(rows, by):
        return deeprec_torch.embedding_bag(ids, rows, offsets, mode="sum", per_sample_weights=by)

    small = torch.randn(50, 3).requires_grad_()
    assert torch.autograd.gradcheck(lookup, (small, weights), eps=0.25, atol=1e-3, rtol=1e-3, nondet_tol=0.0)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_opcheck(mode, sparse):
    if mode == 2 and sparse:
        pytest.skip("max has no sparse gradient")
    layer, ids, offsets = layer_and_batch()
    weight = layer.weight.detach().clone().requires_grad_()
    by = torch.rand(6).requires_grad_() if mode == 0 else None
    # opcheck compares gradients as dense tensors; a compiled sparse one: test_compile_with_sparse_gradients.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor") + (() if sparse else ("test_aot_dispatch_dynamic",))
    torch.library.opcheck(
        torch.ops.deeprec.embedding_bag.default,
        (weight, ids, offsets, by, mode, -1, sparse, False, False),
        test_utils=tests,
    )
    gradient = torch.randn(4, 12)
    fixed = weight.detach()
    torch.library.opcheck(
        torch.ops.deeprec.embedding_bag_dense_gradient.default,
        (gradient, fixed if mode == 2 else None, 50, ids, offsets, None, mode, -1, False, False),
    )
    if mode != 2:
        torch.library.opcheck(
            torch.ops.deeprec.embedding_bag_row_gradients.default,
            (gradient, 50, ids, offsets, None, mode, -1, False),
        )
        torch.library.opcheck(
            torch.ops.deeprec.embedding_bag_sparse_gradient.default,
            (gradient, 50, ids, offsets, None, mode, -1, False),
            test_utils=("test_schema", "test_autograd_registration"),
        )
        torch.library.opcheck(
            torch.ops.deeprec.embedding_bag_sample_gradients.default,
            (gradient, fixed, ids, offsets, torch.rand(6), mode, -1, False),
        )


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    layer, ids, offsets = layer_and_batch()
    model = nn.Sequential(nn.Linear(12, 3), nn.ReLU())

    def run(ids, offsets):
        return model(layer(ids, offsets)).sum()

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for times in (1, 2):
        layer.weight.grad = None
        more = ids.repeat(times), torch.cat([offsets + 6 * t for t in range(times)])
        run(*more).backward()
        wanted = layer.weight.grad.clone()
        layer.weight.grad = None
        compiled(*more).backward()
        torch.testing.assert_close(layer.weight.grad, wanted)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_sparse_gradients(backend, dynamic):
    """One graph, as with torch.nn.EmbeddingBag, and a gradient that is marked as coalesced, of one lookup and of two. Inductor cannot add
    two sparse gradients, those of torch.nn.EmbeddingBag either: the two lookups are then outside of its graphs."""
    made = [deeprec_torch.EmbeddingBag(50, 12, mode="mean", sparse=True) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    ids, offsets = torch.tensor([9, 3, 9, 40, 3, 1, 0]), torch.tensor([0, 3, 3, 6])
    torch._dynamo.reset()
    old = torch.__version__.startswith("2.6.")  # there the lookup is outside of the graph
    for lookups in (1, 2):

        def loss_of(bag):
            return lambda ids, offsets: sum(bag(ids + k, offsets).square().sum() for k in range(lookups))

        apart = old or backend == "inductor" and lookups == 2
        eager = loss_of(made[0])
        traced = loss_of(torch.compiler.disable(made[1]) if apart else made[1])
        compiled = torch.compile(traced, fullgraph=not apart, dynamic=dynamic, backend=backend)
        for more in (0, 1):
            given = torch.cat([ids, ids[:more]]), offsets
            for bag, loss in zip(made, (eager, compiled)):
                bag.zero_grad()
                loss(*given).backward()
            gradient = made[1].weight.grad
            assert gradient.is_sparse and gradient.is_coalesced() and gradient.shape == (50, 12)
            torch.testing.assert_close(gradient.to_dense(), made[0].weight.grad.to_dense())
            assert gradient._nnz() == made[0].weight.grad._nnz()


def test_state_dicts_both_ways(tmp_path):
    for huge_pages in (False, True):
        ours = deeprec_torch.EmbeddingBag(100, 16, padding_idx=3, huge_pages=huge_pages)
        theirs = nn.EmbeddingBag(100, 16, padding_idx=3)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        assert torch.count_nonzero(ours.weight[3]) == 0
        ids = torch.randint(100, (20, 4))
        theirs.load_state_dict(ours.state_dict())
        torch.testing.assert_close(ours(ids), theirs(ids))
        torch.save(ours.state_dict(), tmp_path / "state.pt")
        torch.save(ours, tmp_path / "layer.pt")
        ours.reset_parameters()
        ours.load_state_dict(torch.load(tmp_path / "state.pt"))
        torch.testing.assert_close(ours(ids), theirs(ids))
        again = torch.load(tmp_path / "layer.pt", weights_only=False)
        torch.testing.assert_close(again(ids), theirs(ids))
        torch.testing.assert_close(copy.deepcopy(ours)(ids), theirs(ids))


def test_from_pretrained():
    weight = torch.randn(10, 4)
    ours = deeprec_torch.EmbeddingBag.from_pretrained(weight, mode="sum")
    assert isinstance(ours, deeprec_torch.EmbeddingBag) and not ours.weight.requires_grad
    torch.testing.assert_close(ours(torch.tensor([[1, 2]])), (weight[1] + weight[2]).unsqueeze(0))


def test_t10_positional_arguments_as_pytorch():
    weight = torch.randn(10, 3)
    for kind in (nn.EmbeddingBag, deeprec_torch.EmbeddingBag):
        layer = kind(10, 3, None, 2.0, False, "sum", False, weight.clone(), True, 4)
        assert torch.equal(layer.weight, weight) and layer.mode == "sum" and layer.include_last_offset and layer.padding_idx == 4
    with pytest.raises(TypeError, match="positional"):
        deeprec_torch.EmbeddingBag(10, 3, *[None] * 20)


def test_autocast_as_pytorch():
    theirs = nn.EmbeddingBag(50, 12, mode="sum")
    ours = deeprec_torch.EmbeddingBag(50, 12, mode="sum")
    ours.load_state_dict(theirs.state_dict())
    linear = nn.Linear(12, 4)
    ids = torch.randint(50, (30, 5))
    results = []
    for layer in (theirs, ours):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            pooled = layer(ids)
            out = linear(pooled)
        assert pooled.dtype == torch.float32 and out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        results.append(layer.weight.grad.clone())
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_sparse_gradients_train():
    """torch.optim.SparseAdam and Adagrad take them."""
    for optimizer in (torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD):
        theirs = nn.EmbeddingBag(40, 8, mode="mean", sparse=True)
        ours = deeprec_torch.EmbeddingBag(40, 8, mode="mean", sparse=True)
        ours.load_state_dict(theirs.state_dict())
        steps = [optimizer(layer.parameters(), lr=0.1) for layer in (theirs, ours)]
        for seed in range(5):
            torch.manual_seed(seed)
            ids = torch.randint(40, (16, 3))
            for layer, step in zip((theirs, ours), steps):
                step.zero_grad()
                functional.mse_loss(layer(ids), torch.ones(16, 8)).backward()
                step.step()
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)


def test_strided_and_transposed_operands():
    weight = torch.randn(12, 60)[:, ::2].t().contiguous().t()  # neither rows nor columns side by side
    for rows in (weight, torch.randn(30, 40)[:, :12], torch.randn(60, 12)[::2]):
        ids = torch.randint(rows.shape[0], (9, 5)).t()
        torch.testing.assert_close(
            deeprec_torch.embedding_bag(ids, rows, mode="sum"), functional.embedding_bag(ids, rows, mode="sum")
        )


def test_faults_name_the_place_and_the_process_goes_on():
    layer, ids, offsets = layer_and_batch()
    with pytest.raises(IndexError, match="bag 2, position 4, value 50"):
        layer(torch.tensor([1, 2, 3, 3, 50, 0]), offsets)
    with pytest.raises(IndexError, match="bag 0, position 1, value -1"):
        layer(torch.tensor([[1, -1]]))
    with pytest.raises(ValueError, match="offset"):
        layer(ids, torch.tensor([0, 4, 2]))
    with pytest.raises(ValueError, match="offset"):
        layer(ids, torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"offsets\[0\] must be 0"):
        layer(ids, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="offsets must be given"):
        layer(ids)
    with pytest.raises(ValueError, match="must have the shape of the input"):
        layer(ids, offsets, torch.rand(5))
    with pytest.raises(ValueError, match="mode must be"):
        deeprec_torch.embedding_bag(ids, layer.weight, offsets, mode="median")
    with pytest.raises(ValueError, match="padding_idx must be"):
        deeprec_torch.embedding_bag(ids, layer.weight, offsets, padding_idx=50)
    with pytest.raises(NotImplementedError, match="float32, float16 or bfloat16"):
        deeprec_torch.embedding_bag(ids, layer.weight.double(), offsets)
    with pytest.raises(NotImplementedError, match="per_sample_weights"):
        deeprec_torch.embedding_bag(ids, layer.weight, offsets, per_sample_weights=torch.rand(6))
    assert layer(ids, offsets).shape == (4, 12)


DERIVED = [
    {"mode": "sum"},
    {"mode": "mean"},
    {"mode": "max"},
    {"mode": "sum", "padding_idx": 2},
    {"mode": "mean", "padding_idx": 2, "include_last_offset": True},
    {"mode": "sum", "weighted": True},
    {"mode": "sum", "flat": False, "weighted": True},
]


def derivation(options):
    """A function of rows and weights of ids, and the same by hand."""
    options = dict(options)
    weighted, flat = options.pop("weighted", False), options.pop("flat", True)
    ids = torch.tensor([1, 1, 3, 2, 0, 4, 2, 1])
    ends = [0, 3, 3, 7, 8]  # bags of 3, 0, 4 and 1 ids
    if not flat:
        ids, ends = ids.view(2, 4), [0, 4, 8]
    offsets = torch.tensor(ends if options.get("include_last_offset") else ends[:-1]) if flat else None
    torch.manual_seed(3)
    rows, by = torch.randn(5, 3), torch.rand(ids.shape) + 0.5

    def ours(weight, weights_of_ids):
        return deeprec_torch.embedding_bag(ids, weight, offsets, per_sample_weights=weights_of_ids if weighted else None, **options)

    def by_hand(weight, weights_of_ids):
        bags = []
        for first, last in zip(ends, ends[1:]):
            places = [place for place in range(first, last) if ids.flatten()[place] != options.get("padding_idx")]
            own = weight[ids.flatten()[places]]
            if weighted:
                own = own * weights_of_ids.flatten()[places].unsqueeze(1)
            none = torch.zeros(3)
            bags.append({"sum": own.sum(0), "mean": own.sum(0) / max(len(places), 1), "max": own.max(0).values if places else none}[options["mode"]])
        return torch.stack(bags)

    return ours, by_hand, (rows, by)


@pytest.mark.parametrize("options", DERIVED, ids=str)
def test_b01_derivatives_of_any_order(options):
    """Of the rows and of the weights of ids, forward and backward; they were 0 once."""
    ours, by_hand, given = derivation(options)
    draws = torch.randn(2, *given[0].shape)
    of_ids = torch.randn(2, *given[1].shape)

    def loss(function):
        return lambda weight, by: (function(weight, by).tanh() * torch.arange(1.0, 4.0)).square().sum()

    def derivatives(function):
        with torch.autograd.forward_ad.dual_level():  # a tangent
            dual = torch.autograd.forward_ad.make_dual(given[0], draws[0])
            tangent = torch.autograd.forward_ad.unpack_dual(function(dual, given[1])).tangent
        weight, by = (tensor.clone().requires_grad_() for tensor in given)
        first = torch.autograd.grad(loss(function)(weight, by), (weight, by), create_graph=True, allow_unused=True)
        penalty = sum(one.square().sum() for one in first if one is not None)
        second = torch.autograd.grad(penalty, (weight, by), create_graph=True, allow_unused=True)
        third = torch.autograd.grad(second[0].sum(), weight)
        return [tangent, *first, *second, *third]

    for one, other in zip(derivatives(ours), derivatives(by_hand)):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    transforms = [
        lambda f: torch.func.jvp(f, given, (draws[0], of_ids[0]))[1],
        lambda f: torch.func.vjp(f, *given)[1](torch.ones(f(*given).shape))[0],
        lambda f: torch.func.grad(loss(f))(*given),
        lambda f: torch.func.jacrev(f)(*given),
        lambda f: torch.func.jacfwd(f)(*given),
        lambda f: torch.func.hessian(loss(f))(*given),
        lambda f: torch.func.jvp(torch.func.grad(loss(f)), given, (draws[1], of_ids[1]))[1],
    ]
    if options["mode"] == "max":  # a batch of tangents of a maximum is vmap's
        transforms = [transforms[i] for i in (0, 1, 2, 6)]
    for transform in transforms:
        torch.testing.assert_close(transform(ours), transform(by_hand), rtol=1e-4, atol=1e-5)


def test_b01_what_has_no_second_derivative_raises():
    ours, _, (rows, _) = derivation({"mode": "sum", "sparse": True})
    weight = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ours(weight, None).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for deeprec::embedding_bag_sparse_gradient is not implemented"):
        torch.autograd.grad(gradient.to_dense().square().sum(), weight)
    for options in ({"mode": "sum", "sparse": True}, {"mode": "sum", "scale_grad_by_freq": True}):
        ours, _, (rows, _) = derivation(options)
        with pytest.raises(NotImplementedError, match="must be without sparse and scale_grad_by_freq"):
            torch.func.grad(lambda weight: ours(weight, None).sum())(rows)  # noqa: B023


def test_b01_a_gradient_by_frequency_with_a_graph():
    ours, _, (rows, _) = derivation({"mode": "sum", "scale_grad_by_freq": True})
    weight = rows.clone().requires_grad_()
    plain, graphed = (torch.autograd.grad(ours(weight, None).square().sum(), weight, create_graph=graph)[0] for graph in (False, True))
    torch.testing.assert_close(graphed, plain)


def test_vmap_is_refused_by_name():
    ours, _, (rows, _) = derivation({"mode": "sum"})
    with pytest.raises(NotImplementedError, match="embedding_bag: torch.vmap must be given no embedding_bag"):
        torch.func.vmap(lambda weight: ours(weight, None))(rows.expand(2, -1, -1))


def test_b03_types_are_checked_before_they_are_converted():
    layer, ids, _ = layer_and_batch()
    i32 = ids.int()
    for offsets, options in (
        (torch.tensor([0, 2**32 + 1]), {}),
        (torch.tensor([0, 2**32 + 2, 6]), {"include_last_offset": True}),
        (torch.tensor([2**32, 1]), {}),
        (torch.tensor([0.0, 2.7]), {}),
        (torch.tensor([False, True]), {}),
    ):
        with pytest.raises(ValueError, match="offset"):
            deeprec_torch.embedding_bag(i32, layer.weight, offsets, mode="sum", **options)
    for wrong in (ids.float(), ids == 1, ids.to(torch.int16), ids.to(torch.complex64)):
        with pytest.raises(ValueError, match="input must be int64 or int32"):
            layer(wrong, torch.tensor([0]))
    for wrong in (ids, ids == 1, ids.to(torch.complex64)):
        with pytest.raises(ValueError, match="per_sample_weights must be of floating point"):
            layer(ids, torch.tensor([0]), wrong)
    wanted = layer(ids, torch.tensor([0, 4]))
    for one, other in ((ids, i32), (i32, ids)):
        assert torch.equal(layer(one, torch.tensor([0, 4], dtype=other.dtype)), wanted)
    with pytest.raises(ValueError, match="must fit 64 bits"):
        torch.ops.deeprec.empty_on_huge_pages(2**61 + 1, 8, torch.float32)


def faulty_inputs(device):
    """(input, offsets, per_sample_weights) that a layer refuses by their types and shapes."""
    ids, weights = torch.zeros(6, dtype=torch.int64, device=device), torch.zeros(6, device=device)
    offsets = torch.zeros(2, dtype=torch.int64, device=device)
    return [
        (ids, None, None),
        (ids[0], None, None),
        (ids.view(1, 2, 3), None, None),
        (ids.view(2, 3), offsets, None),
        (ids, offsets.view(1, 2), None),
        (ids.float(), offsets, None),
        (ids, offsets.float(), None),
        (ids, offsets, weights[:5]),
        (ids, offsets, ids),
    ]


@pytest.mark.parametrize("number", range(9))
def test_b04_tensors_without_values_are_refused_as_those_with_values_are(number):
    from torch._subclasses import FakeTensorMode

    def refused(device):
        weight = torch.zeros(50, 12, device=device)
        with pytest.raises(ValueError) as caught:
            given, offsets, by = faulty_inputs(device)[number]
            deeprec_torch.embedding_bag(given, weight, offsets, mode="sum", per_sample_weights=by)
        return str(caught.value).splitlines()[0]

    assert refused("cpu") == refused("meta")
    with FakeTensorMode():
        assert refused("cpu") == refused("meta")


def test_b04_shapes_without_values():
    for mode in ("sum", "mean", "max"):
        layer = deeprec_torch.EmbeddingBag(50, 12, mode=mode, device="meta")
        for last in (False, True):
            layer.include_last_offset = last
            offsets = torch.zeros(4, dtype=torch.int32, device="meta")
            out = layer(torch.zeros(6, dtype=torch.int64, device="meta"), offsets)
            assert out.shape == (3 if last else 4, 12)
            out.sum().backward()
            assert layer.weight.grad.shape == (50, 12)
    with pytest.raises(Exception, match="offsets must be given"):
        torch.export.export(deeprec_torch.EmbeddingBag(10, 3), (torch.tensor([1, 2]),))


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"scale_grad_by_freq": True}])
def test_b05_ids_behind_the_last_offset(options):
    """The forward pass leaves them out, whatever they are; so do all gradients."""
    torch.manual_seed(SEED)
    used, offsets = (torch.arange(53) * 7) % 10, torch.tensor([0, 6, 12, 15, 25, 32, 40, 42, 46, 53, 53])
    results = []
    for behind in ([], [3, 3], [99, -5]):
        weight = torch.linspace(-1, 1, 30).view(10, 3).requires_grad_()
        ids = torch.cat([used, torch.tensor(behind, dtype=torch.int64)])
        by = torch.linspace(0.1, 2, 53).resize_(len(ids)).requires_grad_() if not options else None
        out = deeprec_torch.embedding_bag(
            ids, weight, offsets, mode="sum", per_sample_weights=by, include_last_offset=True, **options
        )
        out.square().sum().backward()
        gradient = weight.grad.to_dense() if weight.grad.is_sparse else weight.grad
        results.append((out.detach(), gradient, torch.zeros(53) if by is None else by.grad[:53]))
        assert by is None or (by.grad.shape == ids.shape and torch.count_nonzero(by.grad[53:]) == 0)
    for one in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, results[0]))


def test_b09_the_gradient_of_max_goes_to_the_row_of_the_nan():
    weight = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [5.0, 3.0], [float("nan"), 2.0]])
    for order in itertools.permutations([1, 2, 3]):
        rows = weight.clone().requires_grad_()
        out = deeprec_torch.embedding_bag(torch.tensor(order), rows, torch.tensor([0]), mode="max")
        out.sum().backward()
        first_nan = next(id for id in order if id != 2)
        assert torch.isnan(out[0, 0]) and out[0, 1] == 3.0
        assert rows.grad[:, 0].tolist() == [float(row == first_nan) for row in range(4)]
        assert rows.grad[:, 1].tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_t06_rows_may_change_before_the_backward_pass(mode, sparse):
    """As max_norm changes them: a layer that is looked up twice, and under no_grad in between."""
    gradients = []
    for kind in (nn.EmbeddingBag, deeprec_torch.EmbeddingBag):
        torch.manual_seed(SEED)
        layer = kind(10, 4, mode=mode, max_norm=1.0, sparse=sparse)
        out = layer(torch.tensor([[1, 2]])) + layer(torch.tensor([[3, 1]]))
        with torch.no_grad():
            layer(torch.tensor([[5, 6]]))
            layer.weight.mul_(0.5)
        out.sum().backward()
        gradients.append(layer.weight.grad.to_dense() if sparse else layer.weight.grad)
    assert torch.equal(*gradients)


def test_t08_a_sparse_gradient_is_marked_as_coalesced():
    """Or an optimizer sorts it again. The sum of several is, too."""
    layer = deeprec_torch.EmbeddingBag(50, 4, mode="sum", sparse=True)
    dense = deeprec_torch.EmbeddingBag(50, 4, mode="sum", _weight=layer.weight.detach().clone())
    ids, more = torch.tensor([[9, 3, 9], [40, 3, 1]]), torch.tensor([[40, 2, 9]])
    for run in (
        lambda bag: bag(ids).sum().backward(),
        lambda bag: (bag(ids).sum() * bag(more).sum()).backward(),
        lambda bag: (bag(ids).sum().backward(), bag(more).square().sum().backward()),
    ):
        for bag in (layer, dense):
            bag.zero_grad()
            run(bag)
        gradient = layer.weight.grad
        rows = gradient._indices()[0]
        assert gradient.is_coalesced() and bool((rows[1:] > rows[:-1]).all())
        torch.testing.assert_close(gradient.to_dense(), dense.weight.grad)
    # With a gradient of another kind there, PyTorch's sum is not.
    layer.weight.grad = torch.sparse_coo_tensor([[9, 9]], torch.ones(2, 4), (50, 4))
    wanted = layer.weight.grad.to_dense()
    layer(ids).sum().backward()
    dense.zero_grad()
    dense(ids).sum().backward()
    assert not layer.weight.grad.is_coalesced()
    torch.testing.assert_close(layer.weight.grad.to_dense(), wanted + dense.weight.grad)


# --- what a batch becomes between two calls ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("place, value", [("ids", 50_000_000), ("ids", -1), ("offsets", 90_000_000), ("offsets", -7)])
def test_a_batch_that_is_written_to_before_the_backward_pass(mode, place, value):
    """A loader's buffer: it has the next batch, which may be out of range."""
    layer = deeprec_torch.EmbeddingBag(10, 4, mode=mode)
    ids, offsets = torch.ones(4, dtype=torch.int64).numpy(), torch.tensor([0, 2]).numpy()
    out = layer(torch.from_numpy(ids), torch.from_numpy(offsets))
    (ids if place == "ids" else offsets)[1] = value
    fault = rf"id out of range: .*bag 0, position 1, value {value}$" if place == "ids" else rf"offset.*bag [01].*value {value}$"
    with pytest.raises(IndexError if place == "ids" else ValueError, match=fault):
        out.sum().backward()
    assert layer.weight.grad is None


@pytest.mark.parametrize("ids, offsets", [([10], [0]), ([-1], [0]), ([1], [0, 90_000_000]), ([1, 2], [0, 2, 1])])
def test_the_gradient_of_max_by_itself(ids, offsets):
    ids, offsets, rows = torch.tensor(ids), torch.tensor(offsets), torch.ones(10, 3)
    for last in {len(offsets) > 1, False}:
        bags = len(offsets) - last
        with pytest.raises((IndexError, ValueError), match="out of range|offset"):
            torch.ops.deeprec.embedding_bag_dense_gradient(torch.ones(bags, 3), rows, 10, ids, offsets, None, 2, -1, False, last)
    # What no bag has may be anything.
    made = torch.ops.deeprec.embedding_bag_dense_gradient(
        torch.ones(1, 3), rows, 10, torch.tensor([4, 99]), torch.tensor([0, 1]), None, 2, -1, False, True
    )
    assert made[4].tolist() == [1, 1, 1] and float(made.sum()) == 3
    empty = torch.ops.deeprec.embedding_bag_dense_gradient(
        torch.ones(1, 0), rows[:, :0], 10, torch.tensor([4]), torch.tensor([0]), None, 2, -1, False, False
    )
    assert empty.shape == (10, 0)


@pytest.mark.parametrize("ids, offsets", [([3, 100], [0]), ([3, -1], [0]), ([3, 4], [0, 5]), ([3, 4], [1, 1]), ([3, 4, 5], [0, 2, 1])])
def test_max_norm_writes_nothing_before_a_fault(ids, offsets):
    torch.manual_seed(SEED)
    layer = deeprec_torch.EmbeddingBag(10, 4, max_norm=0.1)
    before, ids, offsets = layer.weight.detach().clone(), torch.tensor(ids), torch.tensor(offsets)
    texts = []
    for norm in (0.1, None):
        layer.max_norm = norm
        with pytest.raises((IndexError, ValueError)) as fault:
            layer(ids, offsets)
        texts.append((fault.type, str(fault.value)))
        assert torch.equal(layer.weight, before)
    assert texts[0] == texts[1]
    layer.max_norm, layer.mode = 0.1, "sum"
    with pytest.raises(ValueError, match="per_sample_weights must have the shape"):
        layer(torch.tensor([1, 2]), torch.tensor([0]), torch.ones(3))
    assert torch.equal(layer.weight, before)


def test_max_norm_and_ids_behind_the_last_offset():
    """As PyTorch's layer, which scales their rows too; those that are out of range have none."""
    torch.manual_seed(SEED)
    theirs = nn.EmbeddingBag(10, 4, max_norm=0.1, include_last_offset=True)
    ours = deeprec_torch.EmbeddingBag(10, 4, max_norm=0.1, include_last_offset=True)
    ours.load_state_dict(theirs.state_dict())
    offsets = torch.tensor([0, 1, 2])
    theirs(torch.tensor([1, 2, 3]), offsets)
    ours(torch.tensor([1, 2, 3, 10, -1]), offsets)
    norms = ours.weight.detach().norm(dim=1)
    assert torch.equal(ours.weight, theirs.weight) and float(norms[3]) < 0.11 < float(norms[4])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_max_norm_is_compiled(backend):
    torch.manual_seed(SEED)
    layer, eager = (deeprec_torch.EmbeddingBag(10, 4, max_norm=0.5, mode="sum") for _ in range(2))
    eager.load_state_dict(layer.state_dict())
    torch._dynamo.reset()
    compiled = torch.compile(lambda ids: layer(ids).square().sum(), fullgraph=True, backend=backend)
    for ids in (torch.tensor([[1, 2], [3, 3]]), torch.tensor([[4, 1], [2, 9]])):
        compiled(ids).backward()
        eager(ids).square().sum().backward()
        assert torch.equal(layer.weight, eager.weight)
        torch.testing.assert_close(layer.weight.grad, eager.weight.grad)
