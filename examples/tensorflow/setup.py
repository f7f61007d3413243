"""Builds the ops of deeprec_tf against the TensorFlow that is installed: pip install --no-build-isolation . (or pip wheel)."""

import os
import sys
from pathlib import Path

import tensorflow as tf
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

here = Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "packages"))
import building  # noqa: E402


building.check_setuptools("deeprec_tf")


def of_tensorflow():
    """TensorFlow's own flags, but for the language, and its headers as those of a system: their warnings are its own."""
    compile_flags = [f for f in tf.sysconfig.get_compile_flags() if "std=" not in f]
    compile_flags = [f.replace("-I", "-isystem", 1) if f.startswith("-I") else f for f in compile_flags]
    # The library of hash functions that TensorFlow links: its headers lie beside TensorFlow's.
    compile_flags.append(f"-isystem{tf.sysconfig.get_include()}/external/farmhash_archive/src")
    return compile_flags, tf.sysconfig.get_link_flags()


class BuildOps(build_ext):
    """A library of ops is no module of Python: it has no suffix of one."""

    def get_ext_filename(self, name):
        return name.replace(".", os.sep) + ".so"

    def build_extensions(self):
        # As many compilers as processors.
        self.compiler.compile = parallel(self.compiler)
        super().build_extensions()


def parallel(compiler):
    from concurrent.futures import ThreadPoolExecutor

    one_by_one = compiler.compile

    def compile_all(sources, **options):
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [o for objects in pool.map(lambda s: one_by_one([s], **options), sources) for o in objects]

    return compile_all


# The linker exports nothing: ops are found by registration, and no symbol of deeprec, or of a library that TensorFlow
# has too, can meet another version of itself.
compile_flags, link_flags = of_tensorflow()
flags = ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas", *compile_flags]
links = [*link_flags, f"-Wl,--version-script={here / 'csrc' / 'exports.map'}"]
links += [f"-Wl,-rpath,{tf.sysconfig.get_lib()}"]

setup(
    version=building.version("tf", tf.__version__),
    ext_modules=[
        Extension(
            "deeprec_tf._ops",
            sorted(str(source.relative_to(here)) for source in (here / "csrc").glob("*.cpp")),
            include_dirs=building.folders(here / "build" / "dependencies"),
            depends=building.depends(here / "csrc", here / "build", f"tensorflow {tf.__version__}"),
            extra_compile_args=flags,
            extra_link_args=links,
            language="c++",
        )
    ],
    cmdclass={"build_ext": building.recording(BuildOps, tf.__version__)},
)
