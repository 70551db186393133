# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of several checkpoints: seed noise computed by hand, whole runs of tiny models, and resuming."""

import json
import random
from pathlib import Path

import pytest
from scripts import module_of

from hf_deberta_ext import DebertaExtForMaskedLM, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

script = module_of("compare_checkpoints")
GOOD, BAD = ["good", "fine", "lovely"], ["bad", "poor", "awful"]


def rows(count, seed=0):
    """Return (sentence, label) rows; a word decides the label."""
    draw = random.Random(seed)
    labels = [draw.randrange(2) for _ in range(count)]
    return [(f'a {draw.choice((BAD, GOOD)[label])} film , {draw.choice(["so", "no"])} "more', label) for label in labels]


def write_tsv(file, pairs, header="sentence\tlabel"):
    file.write_text("\n".join([header, *(f"{text}\t{label}" for text, label in pairs)]) + "\n", encoding="utf-8")


@pytest.fixture
def task(tmp_path, tiny_config):
    """Return the flags of a task: an RTD model "rtd" and a masked language model "mlm", generated rows, an output folder."""
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


def run(flags):
    script.main([str(part) for name, values in flags.items() for part in (name, *values)])


def results(flags):
    return json.loads(Path(flags["--output_dir"][0], "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "values, first, expected",
    [
        # Variances 1 and 4: t = 5 / sqrt(5 / 3) = 3.873 with 4 degrees of freedom.
        ([84.0, 85.0, 86.0], [78.0, 80.0, 82.0], "+5.00 (p = 0.018)"),
        ([80.0, 81.0, 82.0], [78.0, 80.0, 82.0], "+1.00 (p = 0.48)"),
        ([81.0, 81.0], [80.0, 80.0], "+1.00 (seeds do not differ)"),
        ([70.0], [80.0], "-10.00 (one seed: noise unknown)"),
    ],
    ids=["more", "noise", "constant", "one_seed"],
)
def test_difference_has_the_p_value_of_student_s_test(values, first, expected):
    assert script.difference(values, first) == expected


@pytest.mark.slow
def test_checkpoints_are_fine_tuned_with_every_seed_and_compared(task, tmp_path, capsys):
    task |= {"--random": [f"new weights={tmp_path / 'mlm'}"]}
    run(task)
    printed = capsys.readouterr().out
    scores = results(task)["scores"][""]
    assert [*scores] == ["RTD", "MLM", "new weights"]
    # A word decides the label, so the task is learned. Seeds and weights differ, so the losses differ.
    assert max(of_rate["0.005"]["eval_accuracy"]["mean"] for of_rate in scores.values()) > 0.9
    assert len({loss for of_rate in scores.values() for loss in of_rate["0.005"]["eval_loss"]["values"]}) == 6
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert table in printed
    for line in ("RTD | 0.005 |", "new weights | 0.005 |", "majority class |", "TF-IDF + logistic regression |  | 100.00 /"):
        assert f" {line}" in table
    assert (tmp_path / "out" / "results.png").read_bytes()[:4] == b"\x89PNG"
    # Running the same command again trains nothing and prints the same; another checkpoint can be added.
    run(task | {"--checkpoints": [*task["--checkpoints"], f"again={tmp_path / 'rtd'}"]})
    again = results(task)["scores"][""]
    assert again == scores | {"again": again["again"]} and again["again"] == scores["RTD"]


def test_each_task_has_the_best_of_its_rates_and_its_baselines(task, tmp_path):
    for name, labels in (("sst2", [0, 1]), ("cola", [1, 0])):
        (tmp_path / "glue" / name).mkdir(parents=True)
        for split, count in (("train", 64), ("validation", 20)):
            lines = [json.dumps(dict(sentence=text, label=labels[label])) for text, label in rows(count)]
            (tmp_path / "glue" / name / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    several = {"--tasks": ["sst2", "cola"], "--data_folder": [tmp_path / "glue"], "--learning_rates": ["1e-9", "2e-2"]}
    kept = ("--checkpoints", "--output_dir", "--per_device_train_batch_size")
    flags = {name: task[name] for name in kept} | several | {"--seeds": [1], "--num_train_epochs": [3]}
    flags["--checkpoints"] = flags["--checkpoints"][1:]
    run(flags)
    found, lines = results(flags), (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    for name, metric in (("sst2", "eval_accuracy"), ("cola", "eval_matthews_correlation")):
        means = {rate: summary[metric]["mean"] for rate, summary in found["scores"][name]["MLM"].items()}
        assert means["0.02"] > means["1e-09"]
        [line] = [line for line in lines if f"| {name} |" in line and " MLM |" in line]
        assert f"| 0.02 (1e-09: {100 * means['1e-09']:.2f}) | {100 * means['0.02']:.2f}" in line
        assert found["baselines"][name]["TF-IDF + logistic regression"][metric.removeprefix("eval_")] == 1
        [line] = [line for line in lines if f"| {name} |" in line and "| TF-IDF" in line]
        assert line.endswith(f"| {100 - 100 * means['0.02']:+.2f} |")
        assert (tmp_path / "out" / f"{name}.png").is_file()
    assert "mrpc/train.jsonl" in refused(flags | {"--tasks": ["mrpc"]})


def refused(flags):
    with pytest.raises(SystemExit) as stop:
        run(flags)
    assert stop.value.code == 2
    return str(stop.value.__cause__)


def test_other_settings_data_or_weights_in_a_folder_are_refused(task, tmp_path):
    quick = task | {"--num_train_epochs": [1], "--seeds": [1], "--max_train_samples": [32]}
    run(quick)
    assert "learning_rate" in refused(quick | {"--learning_rate": [1e-3]})
    write_tsv(tmp_path / "dev.tsv", rows(41, seed=1))
    assert "the data differ from the data of" in refused(quick)
    write_tsv(tmp_path / "dev.tsv", rows(40, seed=1))
    config = DebertaExtForMaskedLM.from_pretrained(tmp_path / "mlm").config
    DebertaExtForMaskedLM(config).save_pretrained(tmp_path / "mlm")
    assert "'MLM' has other weights than its entry" in refused(quick)
