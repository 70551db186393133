# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext card`: what it writes, what it says, and its exit status."""

import pytest
from huggingface_hub import ModelCard

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.commands import main
from hf_deberta_ext.publishing.card_checks import card_problems

SIZES = dict(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)


@pytest.fixture
def folder(tmp_path):
    DebertaExtForMaskedLM(DebertaExtConfig(**SIZES)).save_pretrained(tmp_path / "run")
    return tmp_path / "run"


def card(*arguments):
    return main(["card", *map(str, arguments)])


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_card_is_written_printed_and_what_is_missing_is_said(folder, capsys):
    assert card(folder) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"{folder / 'README.md'} is built",
        "not in the metadata: language (--language en), license (--license apache-2.0)",
        "no problems",
    ]
    assert card(folder, "--print") == 0
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "# run" in text and text in capsys.readouterr().out


def test_metadata_are_set_and_the_text_of_a_card_is_kept(folder, capsys):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n\nText.\n", encoding="utf-8")
    code = card(
        folder, "--language", "en", "de", "--license", "apache-2.0", "--base_model", "org/base", "--datasets", "org/a",
        "org/b", "--tags", "x",
    )  # fmt: skip
    said = capsys.readouterr().out
    mine = ModelCard.load(folder / "README.md")
    assert "# Mine\n\nText." in mine.text and mine.data.license == "apache-2.0" and mine.data.language == ["en", "de"]
    assert (mine.data.base_model, mine.data.datasets, mine.data.tags) == ("org/base", ["org/a", "org/b"], ["x"])
    assert "README.md is completed" in said and "not in the metadata" not in said
    # The card does not say how to load it.
    assert code == 1 and "problem: it has no Python code that loads the model" in said
    assert said.endswith(f"correct it in {folder / 'README.md'}\n") and "--overwrite" not in said


def test_a_card_is_built_anew_when_asked(folder, capsys):
    (folder / "README.md").write_text("# Mine\n\n[More Information Needed]\n", encoding="utf-8")
    before = files_of(folder)
    assert card(folder) == 1 and files_of(folder) == before
    assert "README.md is kept as it was" in capsys.readouterr().out
    assert card(folder, "--overwrite", "--license", "mit", "--language", "en") == 0
    said = capsys.readouterr().out
    assert "README.md is built" in said and "Mine" not in (folder / "README.md").read_text(encoding="utf-8")
    assert f"moved aside: the card that was there is {folder / 'README.md.old-1'} now" in said
    assert (folder / "README.md.old-1").read_bytes() == before["README.md"]
    # A card that we have built ourselves is not kept.
    assert card(folder, "--overwrite", "--language", "de") == 0 and "moved aside" not in capsys.readouterr().out
    assert card_problems((folder / "README.md").read_text(encoding="utf-8"), folder) == []


LOADS = """
```python
model = AutoModelForMaskedLM.from_pretrained("user/name", revision="v1", trust_remote_code=True)
```
"""


@pytest.mark.parametrize(
    ("metadata", "body", "ways_out"),
    [
        ("license: MIT", LOADS, ["to set license and keep its text: deberta-ext card {} --license apache-2.0"]),
        (
            "license: MIT\nlanguage: english\ndatasets: a b", LOADS + "\n## Empty\n",
            ["to set license and language and datasets and keep its text: deberta-ext card {} --license apache-2.0 "
             "--language en --datasets OWNER/NAME", "correct the rest in {}/README.md"],
        ),
        ("license: mit\ntags: [1]", LOADS, ["correct it in {}/README.md"]),
        ("license: mit", "", ["correct it in {}/README.md"]),
        (
            None, LOADS,
            ["to set license and language and keep its text: deberta-ext card {} --license apache-2.0 --language en"],
        ),
        (
            "license: [mit", LOADS,
            ["correct its metadata, or build the card anew: deberta-ext card {} --overwrite keeps this one as "
             "README.md.old-1"],
        ),
    ],
    ids=["licence", "several", "tags", "text", "no metadata", "unreadable"],
)  # fmt: skip
@pytest.mark.parametrize("mode", [["--check"], []])
def test_the_way_out_keeps_what_somebody_has_written(metadata, body, ways_out, mode, folder, capsys):
    """For one unknown licence the advice was --overwrite, which threw the text away."""
    text = f"# Mine\n\nText.\n{body}" if metadata is None else f"---\n{metadata}\n---\n\n# Mine\n\nText.\n{body}"
    (folder / "README.md").write_text(text, encoding="utf-8")
    assert card(*mode, folder) == 1
    lines = capsys.readouterr().out.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith(("problem: ", "not in the metadata: ")))
    assert lines[last + 1 :] == [line.format(folder) for line in ways_out]
    assert (folder / "README.md").read_text(encoding="utf-8") == text


def test_checking_writes_nothing(folder, capsys):
    assert card(folder) == 0
    text = (folder / "README.md").read_text(encoding="utf-8")
    for more, ending in (("", "no problems\n"), ("\n## Empty\n\n![a](gone.png)\n\n## Last\n", "")):
        (folder / "README.md").write_text(text + more, encoding="utf-8")
        before = files_of(folder)
        capsys.readouterr()
        assert card("--check", folder) == bool(more) and files_of(folder) == before
        said = capsys.readouterr().out
        assert said.endswith(ending) and said.count("problem: ") == (2 if more else 0)
    assert "the heading 'Last' has no text" in said and "shows gone.png, which is not in the folder" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}", "--license", "MIT"], "--license: the Hub knows no license 'MIT': is it mit?"),
        (["{}", "--language", "english"], "--language: there is no language 'english'"),
        (["{}", "--base_model", "../base"], "--base_model: '../base' is no id"),
        (["{}", "--datasets", "org/data", "a b"], "--datasets: 'a b' is no id"),
        (["--check", "{}"], "has no README.md: deberta-ext card {} writes it"),
        (["--check", "{}"], "README.md is not UTF-8"),
        (["--check", "{}", "--license", "mit"], "--check sets no metadata: leave --license out"),
        (["{}/nowhere"], "nowhere is no folder"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(arguments, message, folder, capsys):
    if "UTF-8" in message:
        (folder / "README.md").write_bytes(b"\xff\xfe")
    before = files_of(folder)
    assert card(*(argument.format(folder) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("deberta-ext card: error: ") and message.format(folder) in printed.err
    assert printed.err.count("\n") == 1 and printed.out == "" and files_of(folder) == before
