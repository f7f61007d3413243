"""Builds the ops of deeprec_torch against the PyTorch that is installed: pip install --no-build-isolation ."""

import sys
from pathlib import Path

import torch
from setuptools import setup
from torch import distributed
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "packages"))
import building  # noqa: E402


building.check_setuptools("deeprec_torch")

# Without -fopenmp at::parallel_for is a serial loop. The linker exports nothing: ops are found by registration, and
# no symbol of deeprec, or of a library that another extension has too, can meet another version of itself.
flags = ["-std=c++20", "-O2", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
flags += [f"-isystem{folder}" for folder in include_paths()]  # warnings of PyTorch's headers are not ours
links = ["-fopenmp", f"-Wl,--version-script={here / 'csrc' / 'exports.map'}"]


def has_ranks(source):
    """Tables of many ranks need a PyTorch that has process groups."""
    return distributed.is_available() or not source.name.startswith("sharded")


setup(
    version=building.version("torch", torch.__version__),
    # Of another version pip is told before the import fails. A build of one's own, 2.7.0a0+git, is of no version on an index.
    install_requires=[f"torch=={torch.__version__.split('+')[0]}" if "a0" not in torch.__version__ else "torch"],
    ext_modules=[
        CppExtension(
            "deeprec_torch._ops",
            sorted(str(source.relative_to(here)) for source in (here / "csrc").glob("*.cpp") if has_ranks(source)),
            include_dirs=building.folders(here / "build" / "dependencies"),
            depends=building.depends(here / "csrc", here / "build", f"torch {torch.__version__}"),
            extra_compile_args=flags,
            extra_link_args=links,
        )
    ],
    cmdclass={"build_ext": building.recording(BuildExtension.with_options(no_python_abi_suffix=True), torch.__version__)},
)
