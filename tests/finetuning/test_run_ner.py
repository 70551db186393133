# SPDX-License-Identifier: Apache-2.0
"""examples/run_ner.py end to end: entities are learned, saved and found again."""

import itertools
from pathlib import Path

import pytest
from fine_tuning_scripts import TRAIN_AND_EVALUATE, run, save_model
from task_files import DATA, needs_data
from transformers import AutoTokenizer, pipeline

from hf_deberta_ext.finetuning.tasks.labelled_words import read_conll

PEOPLE, PLACES, VERBS = ["Ada Lovelace", "Alan Turing", "Grace"], ["Paris", "New York"], ["likes", "left"]


def sentences():
    """(words, tags): "Ada Lovelace likes New York"."""
    for person, verb, place in itertools.product(PEOPLE, VERBS, PLACES):
        words = [*person.split(), verb, *place.split()]
        people, places = (["B"] + ["I"] * (len(name.split()) - 1) for name in (person, place))
        yield words, [*(f"{prefix}-PER" for prefix in people), "O", *(f"{prefix}-LOC" for prefix in places)]


def write_conll(file, tagged=True):
    lines = [
        "".join(f"{word} {tag}\n" if tagged else f"{word}\n" for word, tag in zip(words, tags, strict=True))
        for words, tags in sentences()
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), [" " + " ".join(words) for words, _ in sentences()] * 10)


def test_entities_are_learned_saved_and_found_again(run_ner, model, tmp_path):
    file, test = write_conll(tmp_path / "rows.conll"), write_conll(tmp_path / "test.conll", tagged=False)
    folder = tmp_path / "out"
    measured = run(
        run_ner, model, folder, *TRAIN_AND_EVALUATE, "--do_predict", "--return_entity_level_metrics", train_file=file,
        validation_file=file, test_file=test, max_steps=60, logging_steps=10,
    )  # fmt: skip
    for name in ("f1", "precision", "recall", "accuracy", "PER_f1", "LOC_recall"):
        assert measured[f"eval_{name}"] == 1.0
    assert "predict_f1" not in measured
    expected = [list(part) for part in zip(*sentences(), strict=True)]
    for stem in ("eval", "predict"):
        read = read_conll(folder / f"{stem}_predictions.txt", source="here")
        assert [read.words, read.tags] == expected
    assert "pipeline_tag: token-classification" in (folder / "README.md").read_text(encoding="utf-8")

    # Of running text, of which the first word has no space before it.
    find = pipeline("token-classification", str(folder), aggregation_strategy="first")
    found = [(entity["entity_group"], entity["word"].strip()) for entity in find("Ada Lovelace left New York")]
    assert found == [("PER", "Ada Lovelace"), ("LOC", "New York")]

    # The checkpoint knows its labels, in its order, where there is nothing to train on.
    again = run(run_ner, folder, tmp_path / "again", "--do_eval", validation_file=file)
    assert again["eval_f1"] == 1.0
    before, after = (AutoTokenizer.from_pretrained(source) for source in (model, folder))
    assert after("Grace")["input_ids"] == before(" Grace")["input_ids"]


@needs_data
def test_a_short_run_on_real_sentences(run_ner, model, tmp_path):
    files = {f"{split}_file": Path(DATA, "wnut17", f"{split}.jsonl.gz") for split in ("train", "validation", "test")}
    measured = run(
        run_ner, model, tmp_path / "out", *TRAIN_AND_EVALUATE, "--do_predict", **files, max_train_samples=50,
        max_eval_samples=40, max_predict_samples=30, per_device_eval_batch_size=16,
    )  # fmt: skip
    assert (measured["eval_samples"], measured["predict_samples"]) == (40, 30)
    read = read_conll(tmp_path / "out" / "predict_predictions.txt", source="here")
    assert len(read.words) == 30 and 0 <= measured["predict_f1"] <= 1
