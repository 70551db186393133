# SPDX-License-Identifier: Apache-2.0
"""The build of the native CPU kernel, a library for any Python and torch of a platform; all else is in setup.cfg."""

import os
import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    """Builds no module of one Python, but a library that ctypes opens."""

    def get_ext_filename(self, fullname):
        return f"{fullname.replace('.', '/')}.so"


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


kernel = Extension(
    "hf_deberta_ext.native.libdisentangled_attention",
    ["hf_deberta_ext/native/disentangled_attention.cpp"],
    language="c++",
    # The source chooses instruction sets itself, when it runs.
    extra_compile_args=["-O3", "-std=gnu++17", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi", "-g0"],
    libraries=["dl"],
    # Without a compiler, the package serves with its other backends.
    optional=True,
)
readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
# Set by .ci/release: the package index shows README alone, where relative links lead nowhere.
if links := os.environ.get("README_LINKS"):
    readme = re.sub(r"\]\((?!https?://|#)", f"]({links}/", readme)
setup(ext_modules=[kernel], cmdclass=dict(build_ext=BuildLibrary, bdist_wheel=Wheel), long_description=readme)
