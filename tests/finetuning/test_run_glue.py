# SPDX-License-Identifier: Apache-2.0
"""examples/run_glue.py end to end, from files to model and results; also with two processes."""

import glue_script
import pandas
import pytest
from glue_script import arguments
from mlm_script import TORCHRUN, finish
from scripts import EXAMPLES, start
from toy_task import read

from hf_deberta_ext.commands import main
from hf_deberta_ext.finetuning.loop import fine_tune

material = glue_script.material


def test_the_command_is_the_script(material, tmp_path, capsys):
    argv = ["finetune", "classification", *arguments(material, tmp_path / "run", "--do_train", "--do_eval")]
    assert main(argv) == 0
    assert {"eval_accuracy", "train_loss"} <= {*read(tmp_path / "run", "all_results.json")}
    assert main(argv) == 2 and "is not empty" in capsys.readouterr().err
    assert main(["finetune", "ner", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: deberta-ext finetune ner --model_name_or_path MODEL")


@pytest.mark.slow
def test_two_processes_train_as_one(run_glue, material, tmp_path):
    """With equal examples per step and no dropout, the loss is equal, and each file is written once."""
    given = dict(config_overrides="hidden_dropout_prob=0,attention_probs_dropout_prob=0", test_file=material / "test.csv")
    more = ("--do_train", "--do_eval", "--do_predict")
    words = arguments(material, tmp_path / "two", *more, per_device_train_batch_size=4, **given)
    printed = finish(start(*TORCHRUN, EXAMPLES["run_glue"], *words))
    alone = run_glue.main(arguments(material, tmp_path / "one", *more, per_device_train_batch_size=8, **given))
    together = read(tmp_path / "two", "all_results.json")
    assert together["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-4)
    assert together["eval_samples"] == 40 and printed.count("***** eval metrics *****") == 1
    pandas.testing.assert_frame_equal(
        *(pandas.read_csv(tmp_path / name / "test_predictions.csv") for name in ("one", "two")), rtol=1e-4
    )
    assert {file.name for file in (tmp_path / "two").iterdir()} == {file.name for file in (tmp_path / "one").iterdir()}


def test_fine_tuning_is_one_call_in_python_whose_errors_are_raised(material, tmp_path):
    flags = dict(
        model_name_or_path=material / "model", train_file=material / "train.tsv", validation_file=material / "dev.jsonl",
        do_train=True, do_eval=True, max_steps=2, learning_rate=1e-3, report_to="none", output_dir=tmp_path / "run",
    )  # fmt: skip
    metrics = fine_tune("classification", **flags)
    assert {"eval_accuracy", "train_loss"} <= {*metrics} and (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(ValueError, match="is not empty"):
        fine_tune("classification", **flags)
    with pytest.raises(ValueError, match="unknown flag --qqq"):
        fine_tune("classification", **flags, qqq=3)
    # The error is about the text column, not about missing labels.
    (tmp_path / "two.csv").write_text("body,note\nhello,x\n")
    predict = dict(test_file=tmp_path / "two.csv", do_predict=True, report_to="none", output_dir=tmp_path / "predictions")
    with pytest.raises(ValueError, match=r"cannot infer the text columns of"):
        fine_tune("classification", model_name_or_path=tmp_path / "run", **predict)
