"""The folders of headers that the packages for frameworks are built with."""

import os
import subprocess
from pathlib import Path

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
