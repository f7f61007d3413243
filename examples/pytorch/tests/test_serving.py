"""Collections that are exported, scripted and compiled ahead, and run in Python and in C++."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import deeprec_torch
from deeprec_torch import Adagrad, EmbeddingBagCollection, KeyedJaggedTensor, TableConfig

SEED = 3
TABLES = [TableConfig("u", 40, 8), TableConfig("v", 20, 6, feature_names=("a", "b"), pooling="mean")]
FORMATS = ["f32", "f16", "bf16", "int8", "int4"]


def batch_of(seed, keys=3, bags=5):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (keys * bags,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return torch.randint(20, (int(offsets[-1]),), generator=draw), offsets


def made(format, keys=None):
    tables = EmbeddingBagCollection(TABLES, Adagrad(), seed=SEED)
    other = tables if format == "f32" else tables.quantize(format)
    return other, tables.served(None if format == "f32" else format, keys)


@pytest.mark.parametrize("format", FORMATS)
def test_lookups_are_those_of_the_collection(format):
    tables, served = made(format)
    for seed in range(3):
        values, offsets = batch_of(seed)
        weights = torch.rand(values.shape) + 0.5
        for by in (None, weights):
            assert torch.equal(served(values, offsets, by), tables(KeyedJaggedTensor(["u", "a", "b"], values, offsets, by)).detach())
    assert served(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)).shape == (0, 20)
    assert served.to(torch.float16).to("meta").tables[0].rows.dtype == (tables.weight("u").dtype) and len(served.state_dict()) == 2


def test_keys_in_another_order():
    tables, served = made("f32", ["b", "x", "u", "a"])
    values, offsets = batch_of(1, keys=4)
    assert torch.equal(served(values, offsets), tables(KeyedJaggedTensor(["b", "x", "u", "a"], values, offsets)).detach())
    with pytest.raises(ValueError, match="must have the keys u"):
        tables.served(keys=["a", "b"])


@pytest.mark.parametrize("format", FORMATS)
def test_a_script_and_an_exported_program(format, tmp_path):
    _, served = made(format)
    values, offsets = batch_of(1)
    saved = io.BytesIO()
    torch.jit.save(torch.jit.script(served), saved)
    saved.seek(0)
    script = torch.jit.load(saved)
    many, bags = torch.export.Dim("many", min=2), torch.export.Dim("bags", min=1)
    shapes = {"values": {0: many}, "offsets": {0: 3 * bags + 1}}
    torch.export.save(torch.export.export(served, (values, offsets), dynamic_shapes=shapes), tmp_path / "tables.pt2")
    exported = torch.export.load(tmp_path / "tables.pt2").module()
    for seed in range(1, 4):
        values, offsets = batch_of(seed, bags=seed + 2)
        for program in (script, exported):
            assert torch.equal(program(values, offsets), served(values, offsets))
    with pytest.raises(IndexError, match="id out of range: lookup: feature 1, bag 0, position 1, value 20"):
        served(torch.tensor([1, 20, 2]), torch.arange(4))


@pytest.mark.parametrize("format", FORMATS)
def test_a_trained_model_under_inductor(format):
    _, served = made(format)
    torch._dynamo.reset()
    compiled = torch.compile(lambda v, o: served(v, o) * 2, fullgraph=True)
    values, offsets = batch_of(2)
    assert torch.equal(compiled(values, offsets), served(values, offsets) * 2)


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="served: tables must not grow .g"):
        EmbeddingBagCollection([TableConfig("g", None, 4)], Adagrad()).served()
    _, served = made("f32")
    values, offsets = batch_of(1)
    rows = [table.rows for table in served.tables]

    def call(rows=rows, values=values, offsets=offsets, formats=(0, 0), widths=(8, 6), of=(0, 1, 1), poolings=(0, 1, 1), keys=3):
        return torch.ops.deeprec.pooled_lookup(rows, values, offsets, None, list(formats), list(widths), list(of), list(poolings), keys, [])

    assert torch.equal(call(), served(values, offsets))
    for options, text in (
        ({"formats": (0, 3)}, "rows must be contiguous, of Byte and 14 bytes"),
        ({"formats": (0, 5)}, "formats must be from 0 to 4"),
        ({"formats": (0,)}, "formats and widths must be those of 2 tables"),
        ({"widths": (8, 5)}, "rows must be contiguous, of Float and 20 bytes"),
        ({"widths": (8, 0)}, "widths must be positive"),
        ({"of": (0, 1, 2)}, "tables of features must be below 2"),
        ({"keys": 0}, "keys must be positive"),
        ({"keys": 4}, "offsets must have keys|must have the collection's 3 features"),
        ({"rows": [rows[0].t(), rows[1]]}, "rows must be contiguous"),
        ({"values": values.float()}, "values must be int64 or int32"),
    ):
        with pytest.raises(ValueError, match=text):
            call(**options)


def test_gradients_are_refused():
    """They would be 0."""
    _, served = made("f32")
    values, offsets = batch_of(1)
    weights = torch.rand(values.shape, requires_grad=True)
    with pytest.raises(NotImplementedError, match="weights of a batch must not require a gradient"):
        served(values, offsets, weights)
    with torch.no_grad():
        out = served(values, offsets, weights)
    assert torch.equal(served(values, offsets, weights.detach()), out) and not out.requires_grad
    rows = [table.rows.clone().requires_grad_() for table in served.tables]
    with pytest.raises(NotImplementedError, match="rows must not require a gradient"):
        torch.ops.deeprec.pooled_lookup(rows, values, offsets, None, [0, 0], [8, 6], [0, 1, 1], [0, 1, 1], 3, [])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weights.detach(), torch.ones_like(weights))
        with pytest.raises(NotImplementedError, match="weights of a batch must have no tangent"):
            served(values, offsets, dual)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """examples/pytorch/serving, built as its README has it."""
    source = Path(__file__).resolve().parents[1] / "serving" / "serve.cpp"
    program = tmp_path_factory.mktemp("serving") / "serve"
    library = Path(torch.__file__).parent / "lib"
    flags = ["-std=c++20", "-O1", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    flags += [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
    links = [f"-L{library}", f"-Wl,-rpath,{library}", "-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch", "-lc10", "-ldl"]
    compiler = os.environ.get("CXX", "g++")
    built = subprocess.run([compiler, *flags, str(source), "-o", str(program), *links], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


@pytest.mark.parametrize("format", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_program_in_cpp(runner, kind, format, tmp_path):
    _, served = made(format)
    values, offsets = batch_of(4)
    path = tmp_path / f"tables.{kind}"
    if kind == "pt":
        torch.jit.script(served).save(path)
    else:
        bags = torch.export.Dim("bags", min=1)
        shapes = {"values": {0: torch.export.Dim("many", min=2)}, "offsets": {0: 3 * bags + 1}}
        program = torch.export.export(served, (values, offsets), dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    text = [",".join(map(str, part.tolist())) for part in (values, offsets)]
    ran = subprocess.run([runner, deeprec_torch.ops_library(), path, *text], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = torch.tensor([[float(number) for number in line.split()] for line in ran.stdout.splitlines()])
    assert torch.equal(rows, served(values, offsets))
    wrong = subprocess.run([runner, deeprec_torch.ops_library(), path, "1,20,2", "0,1,2,3"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "id out of range" in wrong.stderr, (wrong.stdout, wrong.stderr)


def test_the_program_refuses_what_is_not_there(runner, tmp_path):
    for arguments, code in (([], 2), (["none.so", "none.pt", "1", "0,1"], 1), ([deeprec_torch.ops_library(), "none.pt", "1", "0,1"], 1)):
        ran = subprocess.run([runner, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == code and ran.stderr, sys.version
