"""Process groups as communicators: interop/c10d_ranks.hpp, on two processes and four."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import HERE, needs_gloo, run_ranks

ROOT = HERE.parents[2]
CASES = ["whole", "empty and long", "in flight", "faults", "no memory", "another step", "another size", "silent", "two threads", "no group"]

BUILD = """
import sys
from pathlib import Path
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths
root, here = map(Path, sys.argv[1:3])
sys.path.insert(0, str(root / "examples" / "packages"))
import building
folders = [*building.folders(here / "dependencies"), str(root / "tests")]
flags = ["-std=c++20", "-O1", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Werror"]
flags += [f"-isystem{folder}" for folder in include_paths()]  # warnings of c10d's headers are not ours
extension = CppExtension("c10d_cases", [str(here / "c10d_cases.cpp")], include_dirs=folders, extra_compile_args=flags)
command = BuildExtension.with_options(no_python_abi_suffix=True, use_ninja=False)
setup(name="c10d_cases", ext_modules=[extension], cmdclass={"build_ext": command}, script_args=["build_ext", "--inplace"])
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not any(Path(folder, "doctest", "doctest.h").exists() for folder in ("/usr/include", "/usr/local/include")):
        pytest.skip("c10d_ranks is NOT tested: doctest was not found (Debian: doctest-dev)")
    folder = tmp_path_factory.mktemp("c10d")
    shutil.copy(HERE / "c10d_cases.cpp", folder)
    built = subprocess.run([sys.executable, "-c", BUILD, ROOT, folder], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return str(folder / "c10d_cases.so")


@needs_gloo
@pytest.mark.parametrize("ranks", [2, 4])
def test_exchanges(library, ranks):
    run_ranks("c10d_ranks.py", ranks, library, *CASES)


@needs_gloo
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_process_that_has_ended(library, ranks):
    run_ranks("c10d_ranks.py", ranks, library, "gone")
