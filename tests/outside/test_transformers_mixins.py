# SPDX-License-Identifier: Apache-2.0
"""outside/run_transformers_mixins.py: which failures it lets pass, and what it puts in place of missing modules."""

import pytest
from outside import run_transformers_mixins as mixins

EXPLAINED = (
    mixins.Explained(("test_untied", "test_resized"), "must be True", "there is one table"),
    mixins.Explained(("test_frozen",), "no gradient", "never read", classes="(?!Masked).*_V3", passes_from=(5, 20)),
)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.setattr(mixins, "EXPLAINED", EXPLAINED)

    def run(outcomes, version="5.4.0"):
        status = mixins.report(outcomes, version)
        return status, capsys.readouterr().out.splitlines()

    return run


def test_failures_with_a_reason_pass_and_are_counted_by_class(report):
    status, lines = report(
        {
            "Model_V3::test_save": ("passed", []),
            "Model_V3::test_untied": ("failed", ["ValueError: False must be True"]),
            "Model_V1::test_gpu": ("skipped", ["no GPU"]),
            "Masked_V3::test_save": ("passed", []),
            "Masked_V3::test_untied": ("skipped", ["no table"]),
        }
    )
    assert status == 0
    cells = [line.split() for line in lines]
    assert ["Model", "1", "0", "1", "1"] in cells and ["Masked", "1", "0", "0", "1"] in cells
    assert ["all", "2", "0", "1", "2"] in cells
    assert "explained: there is one table" in lines and "    test_untied: all 1 classes" in lines


def test_explained_failures_name_their_classes(report):
    frozen = {f"Model_{shape}::test_frozen": ("failed", ["no gradient"]) for shape in ("V3", "x_V3")}
    status, lines = report(frozen | {"Model_Absolute::test_frozen": ("passed", [])})
    assert status == 0 and "    test_frozen: Model_V3, Model_x_V3" in lines


def test_a_failure_without_a_reason_fails(report):
    status, lines = report({"Model_V3::test_save": ("failed", ["AssertionError: 1 != 2\ntraceback"])})
    assert status == 1 and "FAILED: Model_V3::test_save: AssertionError: 1 != 2" in lines


@pytest.mark.parametrize(
    "name, said, version",
    [
        ("Model_V3::test_untied", ["KeyError: 'table'"], "5.4.0"),
        ("Model_V3::test_untied", ["False must be True", "KeyError: 'table'"], "5.4.0"),
        ("Masked_V3::test_frozen", ["no gradient"], "5.4.0"),
        ("Model_V1::test_frozen", ["no gradient"], "5.4.0"),
        ("Model_V3::test_frozen", ["no gradient"], "5.20.1"),
    ],
    ids=["says something else", "one of two says something else", "class", "shape", "version"],
)
def test_a_reason_holds_for_its_message_classes_and_versions_alone(report, name, said, version):
    status, lines = report({name: ("failed", said)}, version)
    assert status == 1 and lines[-1].startswith(f"FAILED: {name}: {said[-1]}")


def test_a_reason_for_a_test_that_passes_fails(report):
    status, lines = report({"Model_V3::test_resized": ("passed", [])})
    assert status == 1 and lines[-1].startswith("PASSES, and is explained: Model_V3::test_resized")
    assert report({"Model_V3::test_frozen": ("passed", [])}, "5.20.0")[0] == 0


def test_no_test_at_all_fails(report):
    assert report({}) == (1, ["no test was found"])


def test_missing_pipeline_modules_are_found_in_both_ways_of_naming_them():
    mixin = (
        "from .pipelines.test_pipelines_fill_mask import FillMaskPipelineTests\n"
        '"zero-shot": {"test": "tests.pipelines.test_pipelines_zero_shot.ZeroShotClassificationPipelineTests"},\n'
    )
    modules = mixins.pipeline_stand_ins(mixin)
    assert modules.keys() == {f"tests/pipelines/test_pipelines_{task}.py" for task in ("fill_mask", "zero_shot")}
    assert 'class FillMaskPipelineTests(PipelineChecks):\n    task = "fill-mask"' in "".join(modules.values())


def test_subtests_belong_to_their_test(tmp_path, monkeypatch):
    (tmp_path / "tests/models/deberta_ext").mkdir(parents=True)
    (tmp_path / "tests/models/deberta_ext/test_ours.py").write_text(
        "import unittest\n\nclass Model_V3(unittest.TestCase):\n"
        "    def test_parts(self):\n        for part in range(3):\n            with self.subTest(part):\n"
        "                self.assertLess(part, 1)\n"
        "    def test_skipped(self):\n        self.skipTest('no GPU')\n"
        "    def test_whole(self):\n        pass\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    outcomes = mixins.run(tmp_path, [], [], slow=False)
    kind, said = outcomes.pop("Model_V3::test_parts")
    assert kind == "failed" and len(said) == 2 and all("not less than" in message for message in said)
    assert outcomes == {"Model_V3::test_skipped": ("skipped", ["no GPU"]), "Model_V3::test_whole": ("passed", [])}


def test_the_package_that_the_tests_need_is_named(monkeypatch, capsys):
    monkeypatch.setattr(mixins.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        mixins.main([])
    assert "pip install parameterized" in capsys.readouterr().err
