# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder are published: a model's own, those that are asked for, and never one unexplained."""

import shutil

import pytest

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.model.checkpoint_files import stale_weights
from hf_deberta_ext.model.remote_code import CODE_MARK
from hf_deberta_ext.publishing.card import render_card
from hf_deberta_ext.publishing.loading_code import LOADING_LINES, published_card
from hf_deberta_ext.publishing.published_files import published_files

CODE = f"# SPDX-License-Identifier: Apache-2.0\n{CODE_MARK}\n"
MODEL = (
    "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
    "model.fp16.safetensors", "pytorch_model.generator.bin", "pytorch_model.bin", "adapter_config.json",
    "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "spm.model", "vocab.json", "merges.txt",
    "chat_template.jinja", "README.md", "LICENSE", "LICENSE.txt", "curves.png", "figures/seeds.svg",
    "discriminator/heads.jpg", "all_results.json", "eval_mm_results.json", "discriminator/config.json",
    "discriminator/model.safetensors", "generator/README.md", "onnx/model.onnx", "onnx/model.onnx.data",
    "discriminator/README.md",
)  # fmt: skip
GRAPHS = ["onnx/a.onnx", "onnx/a.onnx.data", "onnx/a.onnx_data", "onnx/b.onnx", "onnx/b.onnx.data", "a.onnx.data"]
CARDS = {
    "README.md": "![Curves](./curves.png)\n<img width='3' src='figures/seeds.svg'> ![x](none.png) ![y](https://e.org/z.png)",
    "discriminator/README.md": "![Heads](heads.jpg) ![Out](../../outside.png)",
}
STATE = ("optimizer.pt", "scheduler.pt", "rng_state_0.pth")
PREDICTIONS = ("predict_results.tsv", "eval_nbest_predictions.json", "eval_answers.json")
# They fitted patterns of names, as *.safetensors and *_results.json.
STRAY = (
    "train_embeddings.safetensors", "patients_results.json", "LICENSE_KEYS", "chat_template_draft", "adapter_model.pt",
    "spm.model.bak", "sentencepiece_old.model", "pytorch_models.bin",
)  # fmt: skip
# File: the name that is left out for it, and a word of the reason.
LEFT_OUT = {
    **{name: (name, "state") for name in STATE},
    **{name: (name, "predictions") for name in PREDICTIONS},
    **{name: (name, f"--include {name}") for name in ("notes.txt", "train.py", "discriminator/notes.txt")},
    **{f"checkpoint-5/{name}": ("checkpoint-5/", "checkpoint") for name in ("model.safetensors", "config.json")},
    "training_args.bin": ("training_args.bin", "machine"), "trainer_state.json": ("trainer_state.json", "machine"),
    "run_arguments.json": ("run_arguments.json", "machine"), "run_report.json": ("run_report.json", "machine"),
    "tokenizer/tokenizer.json": ("tokenizer/", "copy"), **{name: (name, f"--include {name}") for name in STRAY},
    "training.log": ("training.log", "logs"),
    "runs/Jan01/events.out.tfevents.1": ("runs/", "logs"), ".env": (".env", "hidden"),
    ".cache/huggingface/x": (".cache/", "hidden"), ".gitattributes": (".gitattributes", "the Hub keeps its own"),
    "lost.png": ("lost.png", "add --include lost.png"),
    "1_Pooling/config.json": ("1_Pooling/", "--include 1_Pooling/*"), "figures/a.png": ("figures/", "--include figures/*"),
    "discriminator/checkpoint-1/config.json": ("discriminator/checkpoint-1/", "checkpoint"),
    "README.md.part": ("README.md.part", "not written to its end"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name in (*MODEL, *LEFT_OUT):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CARDS.get(name, name))
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
        assert word in left_out[name] and f"add --include {name}" in left_out[name]


@pytest.mark.parametrize(
    ("pattern", "added"),
    [
        ("notes.txt", {"notes.txt"}),
        ("*.txt", {"notes.txt"}),
        ("*/notes.txt", {"discriminator/notes.txt"}),
        ("discriminator/notes.txt", {"discriminator/notes.txt"}),
        ("figures/*", {"figures/a.png"}),
        ("*.py", {"train.py"}),
        ("run_report.json", {"run_report.json"}),
        ("training_args.bin", {"training_args.bin"}),
        ("checkpoint-5/config.json", {"checkpoint-5/config.json"}),
        (".env", {".env"}),
    ],
)
def test_include_adds_names_in_the_folder_and_paths_below_it(folder, pattern, added):
    before, _ = published_files(folder)
    published, left_out = published_files(folder, [pattern])
    assert {*published} - {*before} == added and not added & {*left_out}


def test_include_of_everything_takes_nothing_that_is_left_out_for_a_reason(folder):
    """A bare pattern was for names in every folder below, and took the state of each checkpoint."""
    (folder / "figures" / "training_args.bin").write_text("x")
    reasons = {name for name, (_, word) in LEFT_OUT.items() if "--include" not in word}
    assert {"training_args.bin", "checkpoint-5/config.json", ".env", "run_arguments.json", "README.md.part"} <= reasons
    published, _ = published_files(folder, ["*", "*/*"])
    assert not reasons & {*published} and "figures/training_args.bin" not in published
    assert {"notes.txt", "train.py", "figures/a.png", "discriminator/notes.txt", "lost.png"} <= {*published}
    published, _ = published_files(folder, ["*"])
    assert "lost.png" in published and not {"figures/a.png", "discriminator/notes.txt"} & {*published}


@pytest.mark.parametrize("pattern", ["training_args*", "*.bin.part", "checkpoint-5/*", ".*", "*/*.log", "optimizer.??"])
def test_a_pattern_does_not_fit_what_has_to_be_named(folder, pattern):
    with pytest.raises(ValueError, match="have to be named by their path"):
        published_files(folder, [pattern])


def test_the_modules_of_sentence_transformers_go_along(tmp_path):
    names = {
        "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json",
        "2_Dense/config.json", "2_Dense/model.safetensors", "config.json",
    }  # fmt: skip
    others = {"1_Pooling/notes.txt", "eval/config.json", "3_x/deep/config.json"}
    for name in names | others:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    published, left_out = published_files(tmp_path)
    assert {*published} == names and {*left_out} == {"1_Pooling/", "eval/", "3_x/"}


def test_what_saving_writes_is_published_whole(tmp_path):
    DebertaExtConfig().save_pretrained(tmp_path)
    published, left_out = published_files(tmp_path)
    assert {*published} == {file.name for file in tmp_path.iterdir()} and not left_out


@pytest.mark.parametrize("link", ["config.json", "curves.png", "notes.txt", "discriminator", "discriminator/config.json"])
def test_a_link_that_leaves_the_folder_is_not_published(link, folder, tmp_path_factory):
    """It was followed: a file of anybody who may be read by this user was sent under an innocent name."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    shutil.rmtree(folder / link) if link == "discriminator" else (folder / link).unlink()
    if link == "discriminator":
        elsewhere.mkdir()
        (elsewhere / "config.json").write_text("{}")
    else:
        elsewhere.write_text("root:x:0:0")
    (folder / link).symlink_to(elsewhere)
    with pytest.raises(ValueError, match=rf"{link} is a link to {elsewhere}, outside of .*copy .* into the folder"):
        published_files(folder, ["notes.txt"])


def test_a_link_that_nobody_publishes_stops_no_push(folder, tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    (data / "train.csv").write_text("x")
    (folder / "data").symlink_to(data)
    (folder / "train.csv").symlink_to(data / "train.csv")
    (folder / "gone.csv").symlink_to(data / "gone.csv")
    _, left_out = published_files(folder)
    assert left_out["data/"] == f"a link to {data}, outside of the folder"
    assert left_out["train.csv"] == f"a link to {data / 'train.csv'}, outside of the folder"
    for pattern in ("data/*", "data/train.csv", "*.csv"):
        with pytest.raises(ValueError, match=r"(data|train\.csv) is a link to"):
            published_files(folder, [pattern])


def test_links_within_the_folder_and_within_one_repository_of_the_hubs_cache_are_files(tmp_path):
    """A snapshot is a folder of links to the blobs of its repository; those of another repository are elsewhere."""
    blobs, snapshot = tmp_path / "models--ann--x" / "blobs", tmp_path / "models--ann--x" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, name in enumerate(["config.json", "discriminator/config.json"]):
        (blobs / f"{number}").write_text("{}")
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).symlink_to(f"{'../' * (1 + name.count('/'))}../blobs/{number}")
    (snapshot / "merges.txt").symlink_to("config.json")
    named = tmp_path / "named"
    named.symlink_to(snapshot)
    for folder in (snapshot, named):
        published, _ = published_files(folder)
        assert {*published} == {"config.json", "discriminator/config.json", "merges.txt"}
    for target in (tmp_path / "models--ann--y" / "blobs" / "1", tmp_path / "models--ann--x" / "refs" / "main"):
        target.parent.mkdir(parents=True)
        target.write_text("{}")
        (snapshot / "vocab.json").symlink_to(target)
        with pytest.raises(ValueError, match=r"vocab\.json is a link to"):
            published_files(snapshot)
        (snapshot / "vocab.json").unlink()
    # Without the layout of a cache a folder named blobs is nothing special.
    other = tmp_path / "runs" / "snapshots" / "a"
    other.mkdir(parents=True)
    (tmp_path / "runs" / "blobs").mkdir()
    (tmp_path / "runs" / "blobs" / "key").write_text("{}")
    (other / "config.json").symlink_to(tmp_path / "runs" / "blobs" / "key")
    with pytest.raises(ValueError, match=r"config\.json is a link to"):
        published_files(other)


def test_what_cannot_be_sorted_is_refused(folder):
    with pytest.raises(ValueError, match=r"notes\.text fits no file"):
        published_files(folder, ["*.tsv", "notes.text"])


@pytest.mark.parametrize(
    ("published", "new", "stale"),
    [
        (GRAPHS, ["onnx/a.onnx", "onnx/a.onnx.data"], ["onnx/a.onnx_data"]),
        (GRAPHS, ["onnx/a.onnx", "model.safetensors"], ["onnx/a.onnx.data", "onnx/a.onnx_data"]),
        (
            ["adapter_config.json", "adapter_model.bin", "adapter_model.safetensors", "model.safetensors"],
            ["adapter_config.json", "adapter_model.bin"],
            ["adapter_model.safetensors"],
        ),
        (
            [
                f"{folder}{name}"
                for folder in ("", "discriminator/", "generator/")
                for name in ("model.safetensors", "a.txt")
            ],
            [f"discriminator/{name}" for name in ("model.safetensors.index.json", "model-00001-of-00001.safetensors")],
            ["discriminator/model.safetensors"],
        ),
    ],
    ids=["graph", "graph alone", "adapter", "part"],
)
def test_new_weights_replace_those_of_their_own_kind_and_folder(published, new, stale):
    assert stale_weights(published, new) == stale


@pytest.mark.parametrize("pinned", [True, False])
def test_the_card_of_a_part_downloads_its_folder(pinned):
    card = render_card(
        title="x", opening="A model.", metadata={}, load=LOADING_LINES.format(repo="discriminator") + "\nload(repo)"
    )
    part = published_card(card, "discriminator/README.md", "ann/x", "v1", pinned=pinned)
    line = 'repo = snapshot_download("ann/x", revision="v1", allow_patterns="discriminator/*") + "/discriminator"'
    assert f"{line}\nrevision = None  # " in part and 'repo = "' not in part
    assert ("for good" in part) != pinned
    assert published_card("# No code\n", "discriminator/README.md", "ann/x", "v1", pinned=pinned) == "# No code\n"
