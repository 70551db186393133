# SPDX-License-Identifier: Apache-2.0
"""Test the cards in model_cards/: metadata, sizes compared with the presets, working snippets and commands."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForPreTraining,
    DebertaExtForReplacedTokenDetection,
    DebertaExtModel,
)
from hf_deberta_ext.checkpoints.presets import PRESETS
from hf_deberta_ext.commands import command_parser
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2, to_deberta_v2_state_dict
from hf_deberta_ext.finetuning.arguments import parse
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

FOLDER = Path(__file__).resolve().parents[2] / "model_cards"
# Preset -> card, in the order of the table in model_cards/README.md.
CARDS = {preset: file for file, preset in re.findall(r"\((.*\.md)\) \| `(.*?)`", (FOLDER / "README.md").read_text("utf-8"))}
# Published parameters of the encoder, in millions (README of microsoft/DeBERTa), and vocabularies.
PUBLISHED = {
    "v2-xxlarge": (1320, 128100), "v2-xlarge": (710, 128100), "xlarge": (700, 50265), "large": (350, 50265),
    "base": (100, 50265), "v3-large": (304, 128100), "v3-base": (86, 128100), "v3-small": (44, 128100),
    "v3-xsmall": (22, 128100), "mdeberta-v3-base": (86, 251000),
}  # fmt: skip
WITH_GENERATOR = {"v3-xsmall", "v3-large", "mdeberta-v3-base"}
every_preset = pytest.mark.parametrize("preset", CARDS)


def text_of(preset):
    return (FOLDER / CARDS[preset]).read_text(encoding="utf-8")


def commands(preset):
    """Return the command lines of a card, each as a list of words."""
    lines = re.findall(r"^    (?:python|deberta-ext) (?:.*\\\n)*.*$", text_of(preset), re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def snippets(preset):
    return re.findall(r"^```python\n(.*?)^```$", text_of(preset), re.MULTILINE | re.DOTALL)


def test_every_preset_of_an_official_checkpoint_has_a_card():
    assert {*CARDS} == {name for name in PRESETS if not name.startswith("electra")}
    assert {file.name for file in FOLDER.iterdir()} == {*CARDS.values(), "README.md"}


@every_preset
def test_the_card_is_valid_names_the_official_checkpoint_and_its_commands_are_taken_by_their_programs(preset):
    text = text_of(preset)
    data = ModelCard(text).data
    assert data.base_model == f"microsoft/{CARDS[preset].removesuffix('.md')}" and data.license == "mit"
    assert data.library_name == "transformers" and "hf_deberta_ext" in data.tags and data.eval_results
    assert data.pipeline_tag == (None if "v3" in preset else "fill-mask")
    assert f'`DebertaExtConfig.from_preset("{preset}")`' in text
    assert [line for line in text.splitlines() if len(line) > 125 and not line.startswith("|")] == []
    assert not re.search(r"\b[0-9a-f]{40}\b", text), "no commit of the official repositories is known here"
    programs = {words[1].rpartition("/")[2]: words for words in commands(preset)}
    assert {*programs} == {"run_glue.py", "convert", *(["run_rtd.py"] if "v3" in preset else [])}
    for _, program, *flags in commands(preset):
        if program.endswith("run_glue.py"):
            _, model, arguments, _ = parse(flags, TextClassificationArguments, description="")
            assert model.model_name_or_path == ModelCard(text_of(preset)).data.base_model and arguments.do_train
    arguments = command_parser("convert").parse_args(programs["convert"][2:])
    assert arguments.source == ModelCard(text_of(preset)).data.base_model and arguments.dtype == "float32"


@every_preset
def test_sizes_on_the_card_and_in_the_index_are_those_of_the_preset_and_of_the_publication(preset):
    config = DebertaExtConfig.from_preset(preset)
    with torch.device("meta"):
        model = DebertaExtModel(config)
    embeddings = sum(parameter.numel() for parameter in model.embeddings.parameters())
    encoder = sum(parameter.numel() for parameter in model.encoder.parameters())
    published, vocabulary = PUBLISHED[preset]
    assert abs(encoder / 1e6 - published) < 0.05 * published and config.vocab_size == vocabulary
    counted = dict(re.findall(r"^\| (.+?) \| (.+?) \|", text_of(preset), re.MULTILINE))
    expected = {
        "layers": f"{config.num_hidden_layers}", "hidden size": f"{config.hidden_size}",
        "width of the feed-forward layers": f"{config.intermediate_size}",
        "vocabulary size": f"{config.vocab_size:,}",
        "parameters of the encoder": f"{encoder / 1e6:,.2f} M", "parameters of the embeddings": f"{embeddings / 1e6:,.2f} M",
        "total parameters": f"{(encoder + embeddings) / 1e6:,.2f} M",
    }  # fmt: skip
    assert {name: counted[name] for name in expected} == expected
    shape = f"{config.num_hidden_layers} x {config.hidden_size}"
    sizes = " | ".join(value for name, value in expected.items() if name.startswith("parameters"))
    assert f"({CARDS[preset]}) | `{preset}` | {shape} | {sizes} |" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def repository(preset, tmp_path):
    """Write a folder like the official repository, but tiny and with random weights."""
    tokenizer = train_byte_level_bpe(["The chef ate the meal that he had cooked.", "Paris is in France."] * 5, 300)
    config = DebertaExtConfig.from_preset(
        preset, vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64, max_relative_positions=-1,
        **({} if preset in ("base", "large", "xlarge") else dict(position_buckets=16)),
    )  # fmt: skip
    model = (DebertaExtForReplacedTokenDetection if "v3" in preset else DebertaExtForMaskedLM)(config)
    save_as_deberta_v2(model, tmp_path / "repository", lossy=True)
    if preset in WITH_GENERATOR:
        config.num_hidden_layers = 1
        generator = to_deberta_v2_state_dict(DebertaExtForMaskedLM(config))
        torch.save(generator, tmp_path / "repository" / "pytorch_model.generator.bin")
    tokenizer.save_pretrained(tmp_path / "repository")
    return tmp_path / "repository"


@pytest.mark.parametrize("preset", ["base", "v2-xlarge", "v3-xsmall", "v3-small"])
def test_snippets_run_one_after_the_other(preset, repository, tmp_path, monkeypatch, capsys):
    code = "\n".join(snippets(preset))
    repo = f'repo = "{ModelCard(text_of(preset)).data.base_model}"'
    assert code.count(f'{repo}\nrevision = "main"  # or a commit id') == 1
    for call in re.findall(r"(?:from_pretrained|from_checkpoints|load_tokenizer)\(repo.*", code):
        assert "revision=revision" in call
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code.replace(repo, f"repo = {str(repository)!r}"), preset, "exec"), names)
    assert names["states"].shape[::2] == (1, 16) and names["model"].dtype == torch.float32
    assert json.loads((tmp_path / "mine" / "config.json").read_text())["model_type"] == "deberta-ext"
    assert json.loads((tmp_path / "stock" / "config.json").read_text())["model_type"] == "deberta-v2"
    if "v3" in preset:
        assert 0 < names["token"].probability < 1 and isinstance(names["pair"], DebertaExtForPreTraining)
        assert names["pair"].generator.config.num_hidden_layers == 1
    else:
        assert names["logits"].ndim == 1 and "newly initialised: lm_predictions" not in capsys.readouterr().out
