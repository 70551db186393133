# SPDX-License-Identifier: Apache-2.0
"""Metrics as modules of `evaluate`: the same values, in batches and one by one, from two processes, combined, offline."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_deberta_ext.finetuning import evaluate_metrics
from hf_deberta_ext.finetuning.evaluate_metrics import NAMES, TaskMetric, load_metric
from hf_deberta_ext.finetuning.metrics import METRICS, TASK_METRICS, compute, grouped_accuracy, multirc
from hf_deberta_ext.finetuning.tasks.entity_metrics import entity_scores
from hf_deberta_ext.finetuning.tasks.question_answering_metrics import squad_v2

evaluate = pytest.importorskip("evaluate")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = evaluate_metrics.__file__
PREDICTIONS, REFERENCES = [0, 1, 1, 0, 1], [0, 1, 0, 0, 0]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture
def load(tmp_path):
    """load(name, config): a metric of ours whose files are in a folder of the test."""
    return lambda name, config=None, **options: load_metric(name, config, **{"cache_dir": str(tmp_path), **options})


def answers(*texts):
    return {"text": list(texts), "answer_start": [0] * len(texts)}


# Id, answer, probability of no answer, right answers.
SQUAD = [("a", "x", 0.2, ["x"]), ("b", "y", 0.7, []), ("c", "", 0.9, []), ("d", "z", 0.5, ["w z"])]


def squad_v2_rows(rows):
    """(predictions, references) for `evaluate`."""
    predictions = [{"id": key, "prediction_text": text, "no_answer_probability": odds} for key, text, odds, _ in rows]
    return predictions, [{"id": key, "answers": answers(*texts)} for key, _, _, texts in rows]


def squad_v2_columns(rows):
    """(predictions, references, probabilities) by id."""
    return tuple({row[0]: row[column] for row in rows} for column in (1, 3, 2))


def test_glue_by_hand(load):
    # 3 of 5 hits; F1 of label 1: 1 hit, 3 predicted, 1 right.
    found = load("glue", "mrpc").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert found == {"accuracy": 0.6, "f1": 0.5, "combined_score": 0.55}


@pytest.mark.parametrize("task", [name for name in TASK_METRICS if name not in ("multirc", "record")])
def test_every_task_is_a_config(load, task):
    name = "glue" if task in ("cola", "sst2", "mrpc", "stsb", "qqp", "qnli", "wnli", "ax", "xnli") else "super_glue"
    name = "glue" if task.startswith("mnli") else name
    found = load(name, task).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert found == compute(TASK_METRICS[task], PREDICTIONS, REFERENCES)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_a_module(load, name):
    batch = [PREDICTIONS, REFERENCES] if name != "micro_f1" else [[PREDICTIONS, REFERENCES], [REFERENCES, REFERENCES]]
    metric = load(name)
    assert metric.name == name
    assert metric.compute(predictions=batch[0], references=batch[1]) == {name: METRICS[name](*batch)}


def test_multirc_and_record_take_the_rows_that_evaluate_takes(load):
    rows = [{"idx": {"answer": i, "paragraph": 0, "question": i // 2}, "prediction": i % 2} for i in range(4)]
    found = load("super_glue", "multirc").compute(predictions=rows, references=[0, 1, 1, 1])
    assert found == multirc([0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1])
    where = {"passage": 3, "query": 4}
    found = load("super_glue", "record").compute(
        predictions=[{"idx": where, "prediction_text": "the Ohio"}],
        references=[{"idx": where, "answers": ["x", "Ohio River"]}],
    )
    assert found == {"exact_match": 0.0, "f1": pytest.approx(2 / 3)}


def test_squad_matches_by_id_and_takes_repeated_rows_once(load):
    metric = load("squad")
    metric.add_batch(
        predictions=[{"id": "a", "prediction_text": "x"}, {"id": "b", "prediction_text": "the y"}],
        references=[{"id": "b", "answers": answers("y", "z")}, {"id": "a", "answers": answers("x y")}],
    )
    # What a sampler of several processes adds to fill its last batch.
    metric.add(prediction={"id": "b", "prediction_text": "the y"}, reference={"id": "b", "answers": answers("y", "z")})
    assert metric.compute() == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}


@pytest.mark.parametrize(("threshold", "exact"), [(1.0, 200 / 3), (0.5, 100.0)])
def test_squad_v2_takes_probabilities_and_a_threshold(threshold, exact, load):
    metric = load("squad_v2")
    predictions, references = squad_v2_rows(SQUAD[:3])
    metric.add_batch(predictions=predictions, references=references)
    expected = squad_v2(*squad_v2_columns(SQUAD[:3]), threshold)
    assert metric.compute(no_answer_threshold=threshold) == expected
    assert expected["exact"] == pytest.approx(exact)


def test_entities_of_sentences_of_different_length(load):
    predicted, true = [["B-PER", "I-PER", "O"], ["O"], []], [["B-PER", "I-PER", "O"], ["B-LOC"], []]
    assert load("entities").compute(predictions=predicted, references=true) == entity_scores(predicted, true)


def test_multiple_choice_with_and_without_groups(load):
    assert load("multiple_choice").compute(predictions=[0, 3], references=[0, 2]) == {"accuracy": 0.5}
    groups = ["middle", "high", "high"]
    found = load("multiple_choice", "groups").compute(predictions=[0, 3, 1], references=[0, 2, 1], groups=groups)
    assert found == grouped_accuracy([0, 3, 1], [0, 2, 1], groups)


def test_batches_rows_arrays_and_tensors_are_the_same(load):
    expected = compute(TASK_METRICS["stsb"], PREDICTIONS, REFERENCES)
    metric = load("glue", "stsb")
    metric.add_batch(predictions=np.array(PREDICTIONS[:2], np.float32), references=torch.tensor(REFERENCES[:2]))
    metric.add(prediction=PREDICTIONS[2], reference=REFERENCES[2])
    metric.add_batch(predictions=PREDICTIONS[3:], references=REFERENCES[3:])
    assert metric.compute() == expected
    # It begins anew.
    assert metric.compute(predictions=PREDICTIONS[:3], references=PREDICTIONS[:3])["pearson"] == 1.0
    assert load("glue", "stsb", keep_in_memory=True).compute(predictions=PREDICTIONS, references=REFERENCES) == expected


def test_combined_metrics_keep_their_names_apart(load):
    combined = evaluate.combine([load("accuracy"), load("macro_f1"), load("glue", "sst2")])
    combined.add_batch(predictions=PREDICTIONS[:3], references=REFERENCES[:3])
    combined.add_batch(predictions=PREDICTIONS[3:], references=REFERENCES[3:])
    # F1 of label 0 is 2 * 2 / (2 + 4), of label 1 1/2.
    assert combined.compute() == {
        "accuracy_accuracy": 0.6,
        "macro_f1": pytest.approx((2 / 3 + 1 / 2) / 2),
        "glue_accuracy": 0.6,
    }


WORKER = """
import json, sys
from hf_deberta_ext.finetuning.evaluate_metrics import load_metric
process, cache_dir, rows = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
found = {}
for name, config, predictions, references in rows:
    metric = load_metric(name, config, num_process=2, process_id=process, experiment_id="two", cache_dir=cache_dir)
    for prediction, reference in zip(predictions[process::2], references[process::2]):
        metric.add(prediction=prediction, reference=reference)
    found[name] = metric.compute()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_score_all_rows_together(tmp_path):
    """F1, correlations and thresholds are no means of means."""
    predicted = [["B-A", "I-A"], ["B-A", "O"], ["O", "B-B"], ["B-A", "B-A"]]
    true = [["B-A", "I-A"], ["O", "O"], ["B-B", "B-B"], ["B-A", "O"]]
    rows = [
        ("glue", "mrpc", PREDICTIONS, REFERENCES),
        ("entities", None, predicted, true),
        ("squad_v2", None, *squad_v2_rows(SQUAD)),
    ]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(process), str(tmp_path), json.dumps(rows)],
            cwd=ROOT, env=os.environ | OFFLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process in range(2)
    ]  # fmt: skip
    try:
        (first, first_error), (second, second_error) = (worker.communicate(timeout=150) for worker in workers)
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], first_error + second_error
    expected = {
        "glue": compute(TASK_METRICS["mrpc"], PREDICTIONS, REFERENCES),
        "entities": entity_scores(predicted, true),
        "squad_v2": squad_v2(*squad_v2_columns(SQUAD)),
    }
    assert json.loads(first.splitlines()[-1]) == expected
    assert json.loads(second.splitlines()[-1]) == dict.fromkeys(expected)


OWN_SCRIPT = """
import datasets
import evaluate


class Ratio(evaluate.Metric):
    def _info(self):
        features = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {"ratio": sum(predictions) / sum(references)}
"""


@pytest.mark.criterion("B2.1")
@pytest.mark.slow
def test_scripts_load_offline_and_other_names_are_an_error(tmp_path):
    """From a fresh interpreter with an empty cache: evaluate copies a script and imports the copy."""
    (tmp_path / "ratio.py").write_text(OWN_SCRIPT, encoding="utf-8")
    code = f"""
import evaluate, json
from hf_deberta_ext.finetuning.evaluate_metrics import load_metric
for name in {sorted(NAMES)!r}:
    metric = evaluate.load({SCRIPT!r}, name)
    print(type(metric).__name__, type(metric).__module__.split(".")[0])
metric = evaluate.load({SCRIPT!r}, "glue/mrpc")
print(json.dumps(metric.compute(predictions={PREDICTIONS}, references={REFERENCES})))
print(load_metric("./ratio.py").compute(predictions=[1, 2], references=[3, 3]))
for name in ("rouge", "somebody/something", "./nowhere.py"):
    try:
        load_metric(name)
    except ValueError as error:
        print(error)
"""
    environment = os.environ | OFFLINE | {"HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for name in ("HF_MODULES_CACHE", "HF_METRICS_CACHE", "HF_EVALUATE_CACHE"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    *classes, glue, ratio, rouge, something, nowhere = done.stdout.splitlines()
    assert classes == [f"{TaskMetric.__name__} evaluate_modules"] * len(NAMES)
    assert json.loads(glue) == compute(TASK_METRICS["mrpc"], PREDICTIONS, REFERENCES)
    assert ratio == "{'ratio': 0.5}"
    for name, line in (("rouge", rouge), ("somebody/something", something), ("./nowhere.py", nowhere)):
        assert line.startswith(f"metric {name!r} is none of ours (accuracy, entities, f1, glue,")
        assert "needs the network" in line


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("glue", None, "the config of glue must be one of: cola, sst2.*got none"),
        ("glue", "boolq", "the config of glue must be one of: cola.*got boolq"),
        ("super_glue", "cola", "the config of super_glue must be one of: boolq.*got cola"),
        ("multiple_choice", "race", "must be one of: none, groups; got race"),
        ("accuracy", "mrpc", "the config of accuracy must be one of: none; got mrpc"),
    ],
)
def test_a_config_that_is_not_is_named(load, name, config, message):
    with pytest.raises(ValueError, match=message):
        load(name, config)


@pytest.mark.parametrize(
    ("name", "predictions", "references", "message"),
    [
        (("accuracy",), [0.9, 1], [1, 1], r"predictions must be labels, got 0\.9"),
        (("pearson",), [math.nan, 1], [1, 1], "predictions hold nan at number 1 of 2"),
        (
            ("squad",),
            [{"id": "a", "prediction_text": text} for text in "xy"],
            [{"id": "a", "answers": answers("x")}] * 2,
            "two different entries for id 'a'",
        ),
        (("multiple_choice", "groups"), [1], [1], "groups"),
    ],
)
def test_mistakes_in_the_rows_reach_the_user(name, predictions, references, message, load):
    with pytest.raises(ValueError, match=message):
        load(*name).compute(predictions=predictions, references=references)
