# SPDX-License-Identifier: Apache-2.0
"""outside/run_transformers_mixins.py: which failures it lets pass."""

import pytest
from outside import run_transformers_mixins as mixins

EXPLAINED = (
    mixins.Explained(("test_untied", "test_resized"), "must be True", "there is one table"),
    mixins.Explained(("test_frozen",), "no gradient", "never read", classes="(?!Masked).*_V3", passes_from=(5, 20)),
)


@pytest.mark.parametrize(
    ("name", "kind", "said", "version", "printed"),
    [
        ("Model_V3::test_save", "passed", [], "5.4.0", "Every failure is explained."),
        ("Model_V3::test_untied", "failed", ["ValueError: False must be True"], "5.4.0", "explained: there is one table"),
        ("Model_x_V3::test_frozen", "failed", ["no gradient"], "5.4.0", "explained: never read"),
        ("Model_V3::test_save", "failed", ["AssertionError: 1\ntraceback"], "5.4.0", "FAILED: {}: AssertionError: 1\n"),
        ("Model_V3::test_untied", "failed", ["False must be True", "KeyError: 1"], "5.4.0", "FAILED: {}: KeyError: 1"),
        ("Masked_V3::test_frozen", "failed", ["no gradient"], "5.4.0", "FAILED: {}"),
        ("Model_V1::test_frozen", "failed", ["no gradient"], "5.4.0", "FAILED: {}"),
        ("Model_V3::test_frozen", "failed", ["no gradient"], "5.20.1", "FAILED: {}"),
        ("Model_V3::test_resized", "passed", [], "5.4.0", "PASSES, and is explained: {}"),
        ("Model_V3::test_frozen", "passed", [], "5.20.0", "Every failure is explained."),
    ],
)
def test_only_explained_failures_pass(name, kind, said, version, printed, monkeypatch, capsys):
    monkeypatch.setattr(mixins, "EXPLAINED", EXPLAINED)
    status = mixins.report({name: (kind, said)}, version)
    output = capsys.readouterr().out
    assert printed.format(name) in output and (status == 0) == ("Every failure is explained." in output)


def test_no_test_at_all_fails(capsys):
    assert mixins.report({}, "5.4.0") == 1 and "no test was found" in capsys.readouterr().out


def test_subtests_belong_to_their_test(tmp_path, monkeypatch):
    (tmp_path / "tests/models/deberta_ext").mkdir(parents=True)
    (tmp_path / "tests/models/deberta_ext/test_ours.py").write_text(
        "import unittest\n\nclass Model_V3(unittest.TestCase):\n"
        "    def test_parts(self):\n        for part in range(3):\n            with self.subTest(part):\n"
        "                self.assertLess(part, 1)\n"
        "    def test_skipped(self):\n        self.skipTest('no GPU')\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    outcomes = mixins.run(tmp_path, [], [], slow=False)
    kind, said = outcomes.pop("Model_V3::test_parts")
    assert kind == "failed" and len(said) == 2 and all("not less than" in message for message in said)
    assert outcomes == {"Model_V3::test_skipped": ("skipped", ["no GPU"])}
