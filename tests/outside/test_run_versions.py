# SPDX-License-Identifier: Apache-2.0
"""run_versions.py: what it reads from the output of the tests, and the table that it prints."""

import re

import run_versions


def test_the_last_line_of_pytest_is_counted():
    line = "=== 2 failed, 30 passed, 4 skipped, 1 xfailed, 5 warnings, 3 errors in 4.20s ==="
    assert run_versions.counts_of_pytest(["3 passed", line, "nanobind: leaked 3 types"]) == {
        "failed": 5,
        "passed": 30,
        "skipped": 4,
    }
    assert run_versions.counts_of_pytest(["1 passed in 0.01s"]) == {"passed": 1, "failed": 0}
    assert run_versions.counts_of_pytest(["killed"]) == {"failed": 0}


def test_the_table_of_the_mixins_is_counted():
    lines = ["noise", "transformers 5.4.0  passed  failed  explained  skipped", "DebertaExtModel 3 0 1 4", "all  9  1  2  8"]
    assert run_versions.counts_of_mixins(lines) == {"passed": 9, "failed": 1, "explained": 2, "skipped": 8}
    assert run_versions.counts_of_mixins(["Traceback"]) == {}


def test_the_table_has_a_row_for_each_run():
    counts = {"passed": 3, "failed": 0, "skipped": 12}
    result = run_versions.Result("oldest", ("3.10.13", "2.6.0", "5.4.0", "0.22.2", "1.33.0"), "ours", counts, 61.7, True)
    header, rule, row = run_versions.table([run_versions.HEADER, result.row()]).splitlines()
    assert len(header) == len(rule) == len(row)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["oldest", "3.10.13", "2.6.0", "5.4.0", "0.22.2", "1.33.0", "ours", "3", "0", "0", "12", "62"]


def test_the_oldest_transformers_is_the_lower_bound_of_the_package():
    (bounds,) = [name for name in run_versions.requirements() if name.startswith("transformers")]
    assert re.match(r"transformers>=([\d.]+),", bounds).group(1) + ".0" == run_versions.OLDEST_TRANSFORMERS


def test_the_newest_environment_has_what_constraints_say():
    pins = run_versions.pins()
    assert {"torch", "transformers", "numpy"} <= pins.keys()
    assert all(re.fullmatch(r"[\d.]+(post\d+)?", version) for version in pins.values())


def test_another_torch_than_the_pinned_brings_its_own_triton():
    """A CUDA build of torch requires one version of triton: pip could not install torch 2.6 beside triton 3.4 or newer."""
    for name in ("oldest", "newest"):
        constraints, packages = run_versions.what_to_install(name, "2.6.0")
        assert constraints["torch"] == "2.6.0" and "triton" not in constraints
        assert [line for line in packages if line.startswith("triton")] == ['triton; platform_system == "Linux"']
    pinned = run_versions.pins()
    assert run_versions.what_to_install("newest", pinned["torch"]) == (pinned, run_versions.requirements())
    oldest = {name: pinned[name] for name in ("torch", "triton")} | {"transformers": run_versions.OLDEST_TRANSFORMERS}
    assert run_versions.what_to_install("oldest", pinned["torch"]) == (oldest, run_versions.requirements())
    assert run_versions.what_to_install("latest", "2.6.0") == ({}, run_versions.requirements())
