"""Builds the ops of deeprec_torch against the PyTorch that is installed: pip install --no-build-isolation ."""

import os
import subprocess
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

here = Path(__file__).resolve().parent
root = here.parents[1]


def xsimd():
    """The folder of xsimd's headers: DEEPREC_XSIMD, the system's, or what CMake fetches at deeprec's version."""
    named = os.environ.get("DEEPREC_XSIMD")
    for folder in [named] if named else ["/usr/include", "/usr/local/include"]:
        if Path(folder, "xsimd", "xsimd.hpp").exists():
            return folder
    if named:
        raise SystemExit(f"deeprec_torch: DEEPREC_XSIMD must have xsimd/xsimd.hpp (is {named})")
    build = here / "build" / "dependencies"
    options = ["-DDEEPREC_BUILD_TESTS=OFF", "-DDEEPREC_BUILD_BENCHMARKS=OFF", "-DDEEPREC_BUILD_EXAMPLES=OFF", "-DDEEPREC_CUDA=OFF"]
    subprocess.run(["cmake", "-S", root, "-B", build, *options], check=True)
    return str(build / "_deps" / "xsimd-src" / "include")


# Without -fopenmp at::parallel_for is a serial loop. The linker exports nothing: ops are found by registration, and
# no symbol of deeprec, or of a library that another extension has too, can meet another version of itself.
flags = ["-std=c++20", "-O2", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
links = ["-fopenmp", f"-Wl,--version-script={here / 'csrc' / 'exports.map'}"]

setup(
    ext_modules=[
        CppExtension(
            "deeprec_torch._ops",
            sorted(str(source.relative_to(here)) for source in (here / "csrc").glob("*.cpp")),
            include_dirs=[str(root / "include"), xsimd()],
            depends=[str(header) for header in (here / "csrc").glob("*.hpp")],
            extra_compile_args=flags,
            extra_link_args=links,
        )
    ],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
