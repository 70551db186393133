# SPDX-License-Identifier: Apache-2.0
"""Tables of predictions, and the command that predicts the rows of a file; test_tasks.py tests it for all tasks."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from fine_tuning_scripts import save_model
from pyarrow import parquet
from task_files import write_lines
from transformers import AutoConfig, AutoModelForSequenceClassification, PretrainedConfig

from hf_deberta_ext.commands import main
from hf_deberta_ext.data.files import read_rows
from hf_deberta_ext.finetuning.prediction import file_parts, predict_file, task_of
from hf_deberta_ext.finetuning.prediction_tables import prediction_table, write_tables


def test_a_table_has_the_columns_of_the_data_under_own_names_and_csv_lists_as_json_and_nothing_for_none(tmp_path):
    rows = Dataset.from_dict({"text": ["a", "b"], "row": [7, 8], "predicted": ["x", "y"], "input_row": [0, 1]})
    numbers = np.array([3, 9, 11])
    table = prediction_table(rows, numbers, predicted=["p", "q"], gold=[None, "q"], probability=[0.5, 1.0])
    assert table.to_pydict() == {
        "row": [3, 9], "text": ["a", "b"], "input_row": [7, 8], "input_predicted": ["x", "y"], "input_input_row": [0, 1],
        "gold": [None, "q"], "predicted": ["p", "q"], "probability": [0.5, 1.0],
    }  # fmt: skip
    assert "gold" not in prediction_table(rows, predicted=["p", "q"]).column_names
    tables = [pa.table({"words": [["é", 'a "b"']], "n": [1], "gold": ["x\ny"]}), pa.table({"n": ["two"], "words": [[]]})]
    write_tables(tmp_path / "a.csv", iter(tables))
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as lines:
        assert [*csv.reader(lines)] == [["words", "n", "gold"], ['["é", "a \\"b\\""]', "1", "x\ny"], ["[]", "two", ""]]
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("a.csv", {"n": [1], "m": [2]}, "'m'"),
        ("a.parquet", {"n": ["x"]}, "Failed to parse string: 'x'"),
        ("a.parquet", {"m": [1]}, "field names are not matching"),
        ("a.txt", {"n": [1]}, r"must end in .csv or .parquet, got .*a.txt"),
    ],
)
def test_tables_that_do_not_fit_leave_no_file(name, columns, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_tables(tmp_path / name, iter([pa.table({"n": [0, 1]}), pa.table(columns)]))
    assert [*tmp_path.iterdir()] == []


ROWS = [{"text": f"text {number}", "day": number} for number in range(5)]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_file_is_split_into_parts_with_all_rows(kind, tmp_path):
    file = tmp_path / f"rows.{kind}"
    if kind == "json":
        file.write_text(json.dumps({"version": 1, "data": ROWS}), encoding="utf-8")
    elif kind == "jsonl":
        write_lines(file, *ROWS)
    else:
        getattr(Dataset.from_list(ROWS), f"to_{kind}")(file)
    (tmp_path / "parts").mkdir()
    parts = [[row for _, row in read_rows(part)] for part in file_parts(file, tmp_path / "parts", 2)]
    assert [len(part) for part in parts] == [2, 2, 1]
    texts = [row["text"] for part in parts for row in part]
    assert texts == [row["text"] for row in ROWS]


def test_sentences_of_conll_stay_whole(tmp_path):
    file = tmp_path / "rows.conll"
    file.write_text("-DOCSTART-\n\na O\nb O\n\n\n \nc O\n\nd O", encoding="utf-8")
    (tmp_path / "parts").mkdir()
    texts = [part.read_text(encoding="utf-8") for part in file_parts(file, tmp_path / "parts", 2)]
    assert texts == ["-DOCSTART-\n\n\na O\nb O\n\n\n", "c O\n\n\nd O\n\n"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Save a classifier with random weights, with a threshold that predicts "rare" for all rows; return its folder."""
    folder = save_model(tmp_path_factory.mktemp("model"), ["text 0 1 2 3 4"] * 5)
    config = AutoConfig.from_pretrained(folder, id2label={0: "rare", 1: "common"}, label2id={"rare": 0, "common": 1})
    config.decision_thresholds = {"rare": 0.0}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return str(folder)


def test_the_command_writes_a_table_with_saved_thresholds_and_tells_its_speed(classifier, tmp_path, capsys):
    file, output = write_lines(tmp_path / "rows.jsonl.gz", *ROWS), tmp_path / "out.parquet"
    words = ["predict", classifier, file, "--output", str(output), "--text_columns", "text", "--use_cpu"]
    assert main(words) == 0
    assert f"{output}: 5 rows in " in capsys.readouterr().out
    table = parquet.read_table(output)
    names = ["row", "text", "day", "predicted", "probability_rare", "probability_common"]
    assert table.column_names == names
    assert table["predicted"].to_pylist() == ["rare"] * 5 and table["day"].to_pylist() == [0, 1, 2, 3, 4]
    assert main(words) == 2
    assert "out.parquet already exists; pass another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "rows", "flags", "message"),
    [
        ("rows.jsonl", ROWS, ["--do_train"], "--do_train cannot be used to predict a file"),
        ("rows.jsonl", ROWS, ["--colour"], "unknown flag --colour"),
        ("rows.jsonl", [*ROWS, {"text": None}], [], r"rows.jsonl, in the 2 rows starting at row 5: row 2 .* has None"),
        ("rows.jsonl", [], [], "rows.jsonl must have at least one row"),
        ("rows.txt", ROWS, [], "rows.txt must end in .*csv"),
    ],
)
def test_wrong_files_and_flags_are_refused_without_an_output(name, rows, flags, message, classifier, tmp_path):
    file, output = write_lines(tmp_path / name, *rows), tmp_path / "out.csv"
    with pytest.raises(ValueError, match=message):
        predict_file(classifier, file, output, ["--text_columns", "text", "--use_cpu", *flags], part_rows=2)
    assert not output.exists()
    with pytest.raises(OSError, match="none"):
        predict_file(classifier, tmp_path / "none.csv", output)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_encoding_and_delimiter_are_those_of_the_flags(encoding, classifier, tmp_path):
    file, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    file.write_text("text|day;hour\ncafé, à la carte|1\n", encoding=encoding)
    flags = ["--text_columns", "text", "--use_cpu", "--encoding", encoding, "--delimiter", "|"]
    assert predict_file(classifier, file, output, flags)[0] == 1
    _, row = next(read_rows(output))
    assert row["text"] == "café, à la carte" and row["day;hour"] == "1"


def test_a_model_of_no_task_is_refused():
    with pytest.raises(ValueError, match=r"x must have an architecture .*ForSequenceClassification.*, got BertForMaskedLM"):
        task_of(PretrainedConfig(architectures=["BertForMaskedLM"]), "x")
