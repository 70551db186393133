# SPDX-License-Identifier: Apache-2.0
"""run_versions.py: the versions that it installs."""

import re

import run_versions


def test_the_oldest_transformers_is_the_lower_bound_of_the_package():
    (bounds,) = [name for name in run_versions.requirements() if name.startswith("transformers")]
    assert re.match(r"transformers>=([\d.]+),", bounds).group(1) + ".0" == run_versions.OLDEST_TRANSFORMERS


def test_another_torch_than_the_pinned_brings_its_own_triton():
    """A CUDA build of torch requires one version of triton: pip could not install torch 2.6 together with triton 3.4 or
    newer.
    """
    pinned = run_versions.pins()
    assert {"torch", "transformers", "numpy"} <= pinned.keys()
    for name in ("oldest", "newest"):
        constraints, packages = run_versions.what_to_install(name, "2.6.0")
        assert constraints["torch"] == "2.6.0" and "triton" not in constraints
        assert [line for line in packages if line.startswith("triton")] == ['triton; platform_system == "Linux"']
    assert run_versions.what_to_install("newest", pinned["torch"]) == (pinned, run_versions.requirements())
    oldest = {name: pinned[name] for name in ("torch", "triton")} | {"transformers": run_versions.OLDEST_TRANSFORMERS}
    assert run_versions.what_to_install("oldest", pinned["torch"]) == (oldest, run_versions.requirements())
    assert run_versions.what_to_install("latest", "2.6.0") == ({}, run_versions.requirements())
