"""Of a package for a framework: the version that its library was built with, and the wheel for another one. Linked into each package."""

import re
import sys
from pathlib import Path


def local_version(label, version):
    """What a wheel's version has after its plus: torch2.15.0.cpu."""
    return label + re.sub("[^a-z0-9]+", ".", version.lower())


def check(package, label, framework, version):
    """Raises ImportError where the library was built with another version of the framework, or is not there."""
    built = Path(__file__).with_name("_built_with.txt")
    build_it = f"pip install --no-build-isolation --no-deps --force-reinstall <checkout>/examples/{framework.lower()}"
    if not built.exists():
        raise ImportError(f"{package}: the library must be there (this folder has the sources alone): {build_it}")
    built_with = built.read_text()
    if built_with != version:
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        raise ImportError(
            f"{package}: the library must be built with the {framework} that runs it (built with {built_with}, this is {version}): take the wheel "
            f"{package}-*+{local_version(label, version)}-{python}-*.whl, or build it: {build_it}"
        )
