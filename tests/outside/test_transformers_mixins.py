# SPDX-License-Identifier: Apache-2.0
"""outside/run_transformers_mixins.py: the failures that it allows."""

from outside import run_transformers_mixins as mixins

EXPLAINED = (
    mixins.Explained(("test_untied",), "must be True", "there is one table"),
    mixins.Explained(("test_frozen",), "no gradient", "never read", classes="(?!Masked).*_V3", passes_from=(5, 20)),
)


def test_only_explained_failures_pass(monkeypatch, capsys):
    monkeypatch.setattr(mixins, "EXPLAINED", EXPLAINED)
    for name, kind, said, version, printed in (
        ("Model_V3::test_save", "passed", [], "5.4.0", "Every failure is explained."),
        ("Model_V3::test_untied", "failed", ["ValueError: False must be True"], "5.4.0", "explained: there is one table"),
        ("Model_V3::test_save", "failed", ["AssertionError: 1\ntraceback"], "5.4.0", "FAILED: {}: AssertionError: 1\n"),
        ("Model_V3::test_untied", "failed", ["False must be True", "KeyError: 1"], "5.4.0", "FAILED: {}: KeyError: 1"),
        ("Masked_V3::test_frozen", "failed", ["no gradient"], "5.4.0", "FAILED: {}"),
        ("Model_V3::test_frozen", "failed", ["no gradient"], "5.20.1", "FAILED: {}"),
        ("Model_V3::test_untied", "passed", [], "5.4.0", "PASSES although explained: {}"),
    ):
        status = mixins.report({name: (kind, said)}, version)
        output = capsys.readouterr().out
        assert printed.format(name) in output and (status == 0) == ("Every failure is explained." in output)
    assert mixins.report({}, "5.4.0") == 1 and "no test was found" in capsys.readouterr().out
