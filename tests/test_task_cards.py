# SPDX-License-Identifier: Apache-2.0
"""Model cards of fine-tuned models: what is counted as a result, the metadata that the Hub reads, and the tables."""

import pytest
from huggingface_hub import ModelCard

from hf_deberta_ext.tasks.cards import (
    measured_metrics,
    summarise_seeds,
    summary_table,
    write_seeds_card,
    write_task_card,
)

METRICS = dict(
    train_loss=0.5, train_runtime=12.0, epoch=3.0, eval_loss=0.25, eval_accuracy=0.91, eval_samples=872,
    eval_runtime=1.5, eval_samples_per_second=580.0, eval_steps_per_second=70.0, eval_model_preparation_time=0.1,
    eval_mm_accuracy=0.9, eval_mm_loss=0.3, eval_mm_samples=10, eval_mm_runtime=1.0, eval_mm_steps_per_second=3.0,
    predict_accuracy=0.8, predict_samples=5,
)  # fmt: skip
COMMON = dict(
    task="sst2", pipeline="text-classification", dataset="nyu-mll/glue", metrics=METRICS,
    facts={"batch": "8 x 4", "learning rate": 2e-5, "text": "a|b\nc", "versions": {"torch": "2.6"}},
    model="BertForSequenceClassification", parameters=22_000_000, trained=22_000_000, base_model="org/some-model",
)  # fmt: skip


def card_of(folder, **more):
    return ModelCard.load(write_task_card(folder, **(COMMON | more)))


# ------- what is a result


def test_results_are_metrics_without_speeds_and_counts():
    assert measured_metrics(METRICS) == {"accuracy": 0.91, "mm_accuracy": 0.9, "loss": 0.25, "mm_loss": 0.3}
    assert [*measured_metrics(METRICS)][-2:] == ["loss", "mm_loss"]
    assert measured_metrics(METRICS, "predict") == {"accuracy": 0.8}
    assert measured_metrics({}) == {}


def test_seeds_are_summarised_by_mean_and_standard_deviation():
    runs = {3: METRICS, 1: METRICS | dict(eval_accuracy=0.95, predict_accuracy=0.7)}
    summary = summarise_seeds(runs)
    assert summary["seeds"] == [3, 1] and {*summary} == {
        "seeds", "eval_accuracy", "eval_mm_accuracy", "eval_loss", "eval_mm_loss", "predict_accuracy",
    }  # fmt: skip
    assert summary["eval_accuracy"]["values"] == [0.91, 0.95]
    assert summary["eval_accuracy"]["mean"] == pytest.approx(0.93)
    assert summary["eval_accuracy"]["standard_deviation"] == pytest.approx(0.0008**0.5)
    table = summary_table(summary)
    assert "| eval_accuracy | 0.9300 | 0.0283 | 0.9100 | 0.9500 |" in table.splitlines()


def test_one_seed_has_no_standard_deviation_and_missing_metrics_are_left_out():
    assert summarise_seeds({1: METRICS})["eval_loss"] == dict(mean=0.25, standard_deviation=None, values=[0.25])
    assert "| eval_loss | 0.2500 |  | 0.2500 |" in summary_table(summarise_seeds({1: METRICS}))
    fewer = {name: value for name, value in METRICS.items() if name != "eval_mm_loss"}
    assert "eval_mm_loss" not in summarise_seeds({1: METRICS, 2: fewer})


# ------- the card


def test_metadata_and_text_are_read_back(tmp_path):
    card = card_of(tmp_path / ".", from_hub=True, figure="curves.png")
    assert card.data.pipeline_tag == "text-classification" and card.data.library_name == "transformers"
    assert (card.data.base_model, card.data.datasets) == ("org/some-model", ["nyu-mll/glue"])
    assert card.data.metrics == ["accuracy", "mm_accuracy"]
    results = {result.metric_type: result for result in card.data.eval_results}
    assert results["accuracy"].metric_value == 0.91 and results["accuracy"].dataset_type == "nyu-mll/glue"
    assert (results["accuracy"].dataset_name, results["accuracy"].dataset_split) == ("sst2", "validation")
    for text in (
        "| accuracy | 0.9100 |", "| loss | 0.2500 |", "fine-tuned from org/some-model", "22.0 million parameters",
        "| text | a\\|b c |", "| versions | torch 2.6 |", "![Losses and metrics during the training](curves.png)",
        f'pipeline("text-classification", "{tmp_path.name}")',
    ):  # fmt: skip
        assert text in card.text, text
    assert "trust_remote_code" not in card.text and "predict" not in card.text


def test_files_and_folders_are_named_without_their_place(tmp_path):
    base = tmp_path / "somewhere" / "base"
    base.mkdir(parents=True)
    (tmp_path / "run").mkdir()
    card = card_of(tmp_path / "run", base_model=str(base), dataset="train.tsv, dev.tsv")
    assert "fine-tuned from base" in card.text and "somewhere" not in card.content
    assert card.data.base_model is None and card.data.datasets is None
    assert card.data.eval_results[0].dataset_type == "text"


def test_results_name_what_was_measured_on(tmp_path):
    assert "Measured on the validation data of nyu-mll/glue." in card_of(tmp_path).text
    card = card_of(tmp_path, dataset="train.csv, dev.csv, test.csv", evaluated_on="dev.csv")
    assert "Measured on dev.csv." in card.text


def test_new_models_and_nothing_measured_are_said(tmp_path):
    card = card_of(tmp_path, base_model=None, metrics={}, task="text-classification")
    assert "for text-classification, trained from random weights" in card.text and "Nothing was measured" in card.text
    assert card.data.eval_results is None and card.data.metrics is None


@pytest.mark.parametrize(
    ("pipeline", "needed"),
    [
        ("token-classification", 'aggregation_strategy="first"'),
        ("question-answering", "AutoModelForQuestionAnswering"),
        ("multiple-choice", "AutoModelForMultipleChoice"),
    ],
)
def test_usage_is_that_of_the_kind_of_task(pipeline, needed, tmp_path):
    card = card_of(tmp_path, pipeline=pipeline, custom_code=True)
    code = card.text.partition("```python\n")[2].partition("```")[0]
    compile(code, "card", "exec")
    assert needed in code and code.count("trust_remote_code=True") >= 1
    assert "The folder brings its code along" in card.text


def test_adapters_name_the_model_that_they_are_for(tmp_path):
    card = card_of(tmp_path, adapter_base="org/some-model", trained=1_000_000)
    code = card.text.partition("```python\n")[2].partition("```")[0]
    compile(code, "card", "exec")
    assert 'base = "org/some-model"  # the path or Hub id' in code and "from_pretrained(base, config=config" in code
    assert "PeftModel.from_pretrained" in code
    assert card.data.library_name == "peft" and "lora" in card.data.tags
    assert "1.00 million of them were trained" in card.text


def test_the_card_of_several_seeds_has_all_of_them(tmp_path):
    summary = summarise_seeds({1: METRICS, 2: METRICS | dict(eval_accuracy=0.95)})
    more = dict(task="sst2", pipeline="text-classification", facts={"batch": 8}, base_model=None, figure="seeds.png")
    card = ModelCard.load(write_seeds_card(tmp_path, summary=summary, **more))
    for text in ("2 times with the seeds 1, 2", "| eval_accuracy | 0.9300 |", "![The scores of the seeds](seeds.png)"):
        assert text in card.text
    assert not list(tmp_path.glob("*.part"))
