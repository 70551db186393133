# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder are published: a model's own, those that are asked for, and never one unexplained."""

import pytest

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.model.configuration_deberta_ext import CODE_MARK as MARK_OF_THE_MODEL
from hf_deberta_ext.runs.published_files import CODE_MARK, published_files

CODE = f"# SPDX-License-Identifier: Apache-2.0\n{CODE_MARK}\n"
MODEL = (
    "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "spm.model", "vocab.json", "merges.txt", "chat_template.jinja", "README.md", "LICENSE", "LICENSE.txt", "curves.png",
    "seeds.svg", "all_results.json", "eval_mm_results.json", ".gitattributes",
    "discriminator/config.json", "discriminator/model.safetensors", "generator/README.md", "onnx/model.onnx",
    "onnx/model.onnx.data",
)  # fmt: skip
LEFT_OUT = {
    "checkpoint-5/model.safetensors": ("checkpoint-5/", "checkpoint"),
    "checkpoint-5/config.json": ("checkpoint-5/", "checkpoint"),
    "training_args.bin": ("training_args.bin", "arguments"),
    "optimizer.pt": ("optimizer.pt", "state"),
    "scheduler.pt": ("scheduler.pt", "state"),
    "rng_state_0.pth": ("rng_state_0.pth", "state"),
    "trainer_state.json": ("trainer_state.json", "log"),
    "run_arguments.json": ("run_arguments.json", "flags"),
    "run_report.json": ("run_report.json", "report"),
    "tokenizer/tokenizer.json": ("tokenizer/", "copy"),
    "runs/Jan01/events.out.tfevents.1": ("runs/", "logs"),
    "training.log": ("training.log", "logs"),
    "predict_results.tsv": ("predict_results.tsv", "predictions"),
    "eval_nbest_predictions.json": ("eval_nbest_predictions.json", "predictions"),
    "eval_answers.json": ("eval_answers.json", "predictions"),
    ".cache/huggingface/x": (".cache/", "hidden"),
    ".env": (".env", "hidden"),
    "notes.txt": ("notes.txt", "--include notes.txt"),
    "figures/a.png": ("figures/", "--include figures/*"),
    "train.py": ("train.py", "--include train.py"),
    "discriminator/notes.txt": ("discriminator/notes.txt", "--include discriminator/notes.txt"),
    "discriminator/checkpoint-1/config.json": ("discriminator/checkpoint-1/", "checkpoint"),
    "README.md.part": ("README.md.part", "not written to its end"),
}


@pytest.fixture
def folder(tmp_path):
    for name in (*MODEL, *LEFT_OUT):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    for name in ("modeling_deberta_ext.py", "discriminator/modeling_deberta_ext.py"):
        (tmp_path / name).write_text(CODE)
    return tmp_path


def test_a_models_files_are_published_and_everything_else_has_a_reason(folder):
    published, left_out = published_files(folder)
    assert {*published} == {*MODEL, "modeling_deberta_ext.py", "discriminator/modeling_deberta_ext.py"}
    assert [*published] == sorted(published) and [*left_out] == sorted(left_out)
    assert all(file == folder / name for name, file in published.items())
    assert {*left_out} == {name for name, _ in LEFT_OUT.values()}
    for name, word in LEFT_OUT.values():
        assert word in left_out[name]


@pytest.mark.parametrize(
    ("pattern", "added"),
    [
        ("notes.txt", {"notes.txt", "discriminator/notes.txt"}),
        ("discriminator/notes.txt", {"discriminator/notes.txt"}),
        ("figures/*", {"figures/a.png"}),
        ("*.py", {"train.py"}),
        ("run_report.json", {"run_report.json"}),
        (".env", {".env"}),
    ],
)
def test_include_adds_what_fits_by_path_or_name(folder, pattern, added):
    before, _ = published_files(folder)
    published, left_out = published_files(folder, [pattern])
    assert {*published} - {*before} == added and not added & {*left_out}


def test_include_of_everything_leaves_hidden_files_out(folder):
    published, left_out = published_files(folder, ["*"])
    assert {*left_out} == {".cache/", ".env"}
    assert "checkpoint-5/model.safetensors" in published


def test_what_saving_writes_is_published_whole(tmp_path):
    """The code carries the mark that this looks for, and no file of a saved model is forgotten."""
    assert CODE_MARK == MARK_OF_THE_MODEL
    DebertaExtConfig().save_pretrained(tmp_path)
    published, left_out = published_files(tmp_path)
    assert {*published} == {file.name for file in tmp_path.iterdir()} and not left_out


def test_links_are_files(folder, tmp_path_factory):
    """In the Hub's cache every file is one."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "config.json").symlink_to(folder / "config.json")
    (cache / "discriminator").symlink_to(folder / "discriminator")
    published, _ = published_files(cache)
    assert {*published} == {"config.json", *(name for name in published_files(folder)[0] if name.startswith("disc"))}


def test_what_cannot_be_sorted_is_refused(folder):
    with pytest.raises(ValueError, match=r"notes\.text fits no file"):
        published_files(folder, ["*.tsv", "notes.text"])
    with pytest.raises(ValueError, match="is not a folder"):
        published_files(folder / "config.json")
