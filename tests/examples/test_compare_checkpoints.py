# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning several checkpoints: scores and noise by hand, files, whole runs of tiny models, going on, and mistakes."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from scripts import module_of

pytest.importorskip("datasets")
pytest.importorskip("matplotlib")

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "compare_checkpoints.py"
GOOD, BAD = ["good", "fine", "lovely"], ["bad", "poor", "awful"]


@pytest.fixture(scope="module")
def script():
    return module_of("compare_checkpoints")


def rows(count, seed=0):
    """(sentence, label) that a word decides."""
    draw = random.Random(seed)
    labels = [draw.randrange(2) for _ in range(count)]
    return [(f'a {draw.choice((BAD, GOOD)[label])} film , {draw.choice(["so", "no"])} "more', label) for label in labels]


def write_tsv(file, pairs, header="sentence\tlabel"):
    file.write_text("\n".join([header, *(f"{text}\t{label}" for text, label in pairs)]) + "\n", encoding="utf-8")


@pytest.fixture
def task(tmp_path, tiny_config):
    """The flags of a task: an RTD model "rtd" and a masked language model "mlm", made-up rows, an output folder."""
    tokenizer = train_byte_level_bpe([text for text, _ in rows(50)] * 5, vocab_size=300)
    config = tiny_config(vocab_size=len(tokenizer), num_hidden_layers=1)
    for name, model_class in (("rtd", DebertaExtForReplacedTokenDetection), ("mlm", DebertaExtForMaskedLM)):
        model_class(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    write_tsv(tmp_path / "train.tsv", rows(160))
    write_tsv(tmp_path / "dev.tsv", rows(40, seed=1))
    return {
        "--checkpoints": [f"RTD={tmp_path / 'rtd'}", f"MLM={tmp_path / 'mlm'}"],
        "--train_file": [tmp_path / "train.tsv"],
        "--validation_file": [tmp_path / "dev.tsv"],
        "--text_columns": ["sentence"],
        "--seeds": [1, 2],
        "--num_train_epochs": [2],
        "--per_device_train_batch_size": [8],
        "--learning_rate": [5e-3],
        "--output_dir": [tmp_path / "out"],
    }


def run(script, flags):
    script.main([str(part) for name, values in flags.items() for part in (name, *values)])


def results(flags):
    return json.loads(Path(flags["--output_dir"][0], "results.json").read_text(encoding="utf-8"))


# ------- by hand


def test_scores_by_hand(script):
    predicted, true = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    # Of label 1: precision 2/3, recall 2/3.
    assert script.scores(predicted, true, 2) == pytest.approx(dict(accuracy=0.6, f1=2 / 3))
    # Label 0: 1 and 1/2; label 1: 1/2 and 1; label 2 is neither found nor there.
    assert script.scores(np.array([0, 1, 1]), np.array([0, 0, 1]), 3) == pytest.approx(dict(accuracy=2 / 3, f1=4 / 9))


@pytest.mark.criterion("P17")
@pytest.mark.parametrize(
    "values, first, expected",
    [
        # Variances 1 and 4, three seeds each: 2 * sqrt(5 / 3) = 2.58.
        ([84.0, 85.0, 86.0], [78.0, 80.0, 82.0], "+5.00 ± 2.58"),
        ([80.0, 81.0, 82.0], [78.0, 80.0, 82.0], "+1.00 ± 2.58 (within noise)"),
        ([80.0, 80.0], [80.0, 80.0], "+0.00 ± 0.00 (within noise)"),
        ([70.0], [80.0], "-10.00 (one seed: noise unknown)"),
    ],
    ids=["more", "noise", "equal", "one_seed"],
)
def test_difference_is_compared_with_two_standard_errors(values, first, expected, script):
    assert script.difference(values, first) == expected


# ------- files


@pytest.mark.parametrize("name", ["rows.tsv", "rows.tsv.gz", "rows.csv", "rows.jsonl", "rows.jsonl.gz"])
def test_read_file_reads_text_as_it_stands(name, script, tmp_path):
    """A lone quotation mark, words that pandas takes for missing values, and the byte order mark of GLUE's MRPC."""
    texts = ['he said " no', "NA", "null", "a , b"]
    lines = {
        "tsv": ["\ufeff#1 String\tQuality\tid", *(f"{text}\t{i % 2}\t{i}" for i, text in enumerate(texts))],
        "csv": ["\ufeff#1 String,Quality", *('"' + text.replace('"', '""') + f'",{i % 2}' for i, text in enumerate(texts))],
        "jsonl": [json.dumps({"#1 String": text, "Quality": i % 2}) for i, text in enumerate(texts)],
    }[name.split(".")[1]]
    data = ("\n".join(lines) + "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    flags = ["--train_file", name, "--validation_file", name, "--output_dir", "out", "--label_column", "Quality"]
    read = script.read_file(tmp_path / name, script.parse_args([*flags, "--text_columns", "#1 String"]))
    assert list(read["#1 String"]) == texts
    assert list(read["Quality"]) == [0, 1, 0, 1]


# ------- whole runs


def test_checkpoints_are_fine_tuned_with_every_seed_and_compared(script, task, tmp_path, capsys):
    run(script, task | {"--random": [f"new weights={tmp_path / 'mlm'}"]})
    printed = capsys.readouterr().out
    made = results(task)
    runs = made["runs"]
    order = [(run["seed"], run["checkpoint"]) for run in runs]
    assert order == [(seed, name) for seed in (1, 2) for name in ("RTD", "MLM", "new weights")]
    assert made["rows"] == dict(train=160, validation=40)
    for entry in runs:
        assert len(entry["accuracy_by_epoch"]) == 2 and entry["accuracy"] == entry["accuracy_by_epoch"][-1]
        assert 0 <= entry["f1"] <= 1 and entry["seconds"] > 0
    # Words decide: it is learned.
    assert max(entry["accuracy"] for entry in runs) > 0.9 > made["majority_class"]["accuracy"]
    labels = [label for _, label in rows(40, seed=1)]
    assert made["majority_class"]["accuracy"] == labels.count(int(made["majority_class"]["label"])) / 40
    # Seeds and weights differ, so losses do.
    assert len({entry["loss"] for entry in runs}) == 6
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert table in printed
    for line in ("| RTD | 2 |", "| MLM | 2 |", "| new weights | 2 |", "| majority class | |", "difference from RTD"):
        assert line in table
    assert (tmp_path / "out" / "results.png").read_bytes()[:4] == b"\x89PNG"


def test_a_stopped_comparison_goes_on_and_gives_what_it_would_have_given(script, task, tmp_path, monkeypatch):
    small = {"--num_train_epochs": [1], "--max_train_samples": [64]}
    run(script, task | small)
    whole = results(task)["runs"]
    elsewhere = task | small | {"--output_dir": [tmp_path / "stopped"]}
    fine_tune, done = script.fine_tune, []

    def stopped_in_the_third(*args):
        done.append(args)
        if len(done) == 3:
            raise KeyboardInterrupt
        return fine_tune(*args)

    monkeypatch.setattr(script, "fine_tune", stopped_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(script, elsewhere)
    assert len(results(elsewhere)["runs"]) == 2
    run(script, elsewhere)
    assert len(done) == 5
    without_time = [[{**entry, "seconds": 0} for entry in runs] for runs in (results(elsewhere)["runs"], whole)]
    assert without_time[0] == without_time[1]
    # Nothing is left to do.
    run(script, elsewhere)
    assert len(done) == 5


def test_two_columns_and_labels_in_words(script, task, tmp_path):
    lines = [{"a": text, "b": text[::-1], "says": ("no", "yes")[label]} for text, label in rows(48)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    pairs = {"--text_columns": ["a", "b"], "--label_column": ["says"], "--seeds": [1], "--num_train_epochs": [1]}
    files = {"--train_file": [tmp_path / "train.jsonl"], "--validation_file": [tmp_path / "dev.jsonl"]}
    run(script, task | pairs | files)
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "F1 of yes" in table and "one seed: noise unknown" in table


# ------- mistakes


def refused(script, flags):
    with pytest.raises(SystemExit) as stop:
        run(script, flags)
    return str(stop.value)


def test_other_settings_or_weights_in_a_folder_are_refused(script, task, tmp_path, tiny_config):
    quick = task | {"--num_train_epochs": [1], "--seeds": [1], "--max_train_samples": [32]}
    run(script, quick)
    message = refused(script, quick | {"--learning_rate": [1e-3]})
    assert "learning_rate = 0.001, there 0.005" in message and "another --output_dir" in message
    write_tsv(tmp_path / "dev.tsv", rows(41, seed=1))
    assert "validation_file_sha256" in refused(script, quick)
    write_tsv(tmp_path / "dev.tsv", rows(40, seed=1))
    config = DebertaExtForMaskedLM.from_pretrained(tmp_path / "mlm").config
    DebertaExtForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    assert "'MLM' is not what it was" in refused(script, quick)


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"--checkpoints": ["nothing"]}, "takes NAME=FOLDER, got 'nothing'"),
        ({"--checkpoints": ["a={mlm}", "a={mlm}"]}, "two checkpoints are named 'a'"),
        ({"--seeds": [1, 1]}, "must differ"),
        ({"--num_train_epochs": [0]}, "--num_train_epochs must be at least 1, got 0"),
        ({"--text_columns": ["a", "b", "c"]}, "one column, or two for pairs, got a, b, c"),
        ({"--train_file": ["{mlm}/nothing.tsv"]}, "nothing.tsv is not there"),
        ({"--train_file": ["{mlm}/config.json"]}, r"must end in .tsv, .csv, .jsonl \(also .gz\)"),
        ({"--text_columns": ["text"]}, "no column 'text'; it has 'sentence', 'label'"),
        ({"--label_column": ["gold"]}, "no column 'gold'; it has"),
        ({"--text_columns": ["label"]}, "the label 'label' is one of --text_columns"),
        ({"--text_columns": ["label"], "--label_column": ["sentence"]}, "row 1 of .* has no text in 'label', but [01]"),
    ],
)
def test_flags_that_are_wrong_are_named(flags, message, script, task, tmp_path):
    flags = {name: [str(value).format(mlm=tmp_path / "mlm") for value in values] for name, values in flags.items()}
    with pytest.raises(SystemExit, match=message):
        run(script, task | flags)
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    "train, validation, message",
    [
        ("", "sentence\tlabel\na\t1\n", "train.tsv is empty"),
        ("sentence\tlabel\n", "sentence\tlabel\na\t1\n", "train.tsv has no rows"),
        ("sentence\tlabel\na\t1\nb\t1\n", "sentence\tlabel\na\t1\n", "the one label 1"),
        ("sentence\tlabel\na\t1\nb\t0\n", "sentence\tlabel\na\t2\n", "dev.tsv has labels that .* has not: 2"),
        ("sentence\tlabel\na\t\nb\t0\n", "sentence\tlabel\na\t0\n", "row 1 of .*train.tsv has no label"),
        ("sentence\tlabel\na\t0.5\nb\t0.1\n", "sentence\tlabel\na\t0.5\n", "has the label 0.5: labels are text or whole"),
        ("sentence\tlabel\nb\t1\na\t0\tx\n", "sentence\tlabel\na\t0\n", "train.tsv cannot be read .* 2 fields .* saw 3"),
    ],
    ids=["empty", "header_alone", "one_label", "unseen_label", "no_label", "score", "ragged"],
)
def test_files_that_are_wrong_are_named(train, validation, message, script, task, tmp_path):
    (tmp_path / "train.tsv").write_text(train, encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(validation, encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        run(script, task)


def test_models_that_do_not_fit_are_named_before_anything_is_trained(script, task, tmp_path, tiny_config, monkeypatch):
    monkeypatch.setattr(script, "fine_tune", None)
    config = json.loads((tmp_path / "mlm" / "config.json").read_text(encoding="utf-8"))

    def change(**fields):
        (tmp_path / "mlm" / "config.json").write_text(json.dumps(config | fields), encoding="utf-8")

    change(vocab_size=100)
    assert "MLM: its tokenizer has" in refused(script, task)
    change(position_biased_input=True)
    assert "MLM has 64 absolute positions: give --max_length 64 or less, got 128" in refused(script, task)
    change(num_hidden_layers=2)
    assert "lacks" in refused(script, task) and "layer.1" in refused(script, task)
