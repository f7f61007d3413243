"""What the builds of the packages for frameworks share: folders of headers, when to compile again, the framework that is recorded."""

import os
import re
import subprocess
from pathlib import Path

import setuptools
from version_check import local_version

packages = Path(__file__).resolve().parent
root = packages.parents[1]


def folders(build):
    """Those of deeprec, of what its packages share, and of xsimd: the one named by DEEPREC_XSIMD, the system's, or what
    CMake fetches into `build` at deeprec's version."""
    return [str(root / "include"), str(packages), _xsimd(build)]


def _xsimd(build):
    named = os.environ.get("DEEPREC_XSIMD")
    for folder in [named] if named else ["/usr/include", "/usr/local/include"]:
        if Path(folder, "xsimd", "xsimd.hpp").exists():
            return folder
    if named:
        raise SystemExit(f"deeprec: DEEPREC_XSIMD must have xsimd/xsimd.hpp (is {named})")
    options = ["-DDEEPREC_BUILD_TESTS=OFF", "-DDEEPREC_BUILD_BENCHMARKS=OFF", "-DDEEPREC_BUILD_EXAMPLES=OFF", "-DDEEPREC_CUDA=OFF"]
    subprocess.run(["cmake", "-S", root, "-B", build, *options], check=True)
    return str(build / "_deps" / "xsimd-src" / "include")


def check_setuptools(package):
    """pyproject.toml has its licence as setuptools reads it from 77 on; --no-build-isolation takes the one that is there."""
    if int(setuptools.__version__.split(".")[0]) < 77:
        raise SystemExit(f'{package}: setuptools must be 77 or newer (is {setuptools.__version__}): pip install "setuptools>=77"')


def version(label, framework):
    """That of a wheel for one version of a framework: 0.2.0+tf2.21.0, as both packages have the version of deeprec."""
    return f"{_deeprec()}+{local_version(label, framework)}"


def _deeprec():
    found = re.search(r"project\(\s*deeprec\s+VERSION\s+([0-9.]+)", (root / "CMakeLists.txt").read_text())
    if not found:
        raise SystemExit(f"deeprec: {root / 'CMakeLists.txt'} must have the version of the project (has none)")
    return found[1]


def depends(csrc, build, framework):
    """What an extension is compiled again for: a header of its own, of deeprec or of what the packages share, or another version of the
    framework, which is kept in a file in `build`."""
    stamp = build / "framework.txt"
    if not stamp.exists() or stamp.read_text() != framework:
        build.mkdir(parents=True, exist_ok=True)
        stamp.write_text(framework)
    headers = [h for folder in (csrc, packages, root / "include") for h in folder.rglob("*") if h.suffix in (".hpp", ".inl", ".map")]
    return [str(stamp), *map(str, sorted(headers))]


def recording(build_ext, version):
    """A build_ext that leaves the framework's version beside the library, for the package to compare when it is imported."""

    class Recording(build_ext):
        def build_extension(self, ext):
            super().build_extension(ext)
            Path(self.get_ext_fullpath(ext.name)).with_name("_built_with.txt").write_text(version)

    return Recording
