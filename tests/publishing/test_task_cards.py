# SPDX-License-Identifier: Apache-2.0
"""Model cards of fine-tuned models: what is counted as a result, the metadata that the Hub reads, and the tables."""

import pytest
from huggingface_hub import ModelCard

from hf_deberta_ext.finetuning.cards import (
    TaskFacts,
    summarise_seeds,
    summary_table,
    task_limits,
    write_seeds_card,
    write_task_card,
)
from hf_deberta_ext.publishing.card_checks import card_problems

METRICS = dict(
    train_loss=0.5, train_runtime=12.0, epoch=3.0, eval_loss=0.25, eval_accuracy=0.91, eval_samples=872,
    eval_runtime=1.5, eval_samples_per_second=580.0, eval_steps_per_second=70.0, eval_model_preparation_time=0.1,
    eval_mm_accuracy=0.9, eval_mm_loss=0.3, eval_mm_samples=10, eval_mm_runtime=1.0, eval_mm_steps_per_second=3.0,
    predict_accuracy=0.8, predict_samples=5,
)  # fmt: skip
FACTS = dict(
    task="sst2", pipeline="text-classification", dataset="nyu-mll/glue", from_hub=True, base_model="org/some-model",
    training={"batch": "8 x 4", "learning rate": 2e-5, "text": "a|b\nc"}, hardware={"versions": {"torch": "2.6"}},
    sets={"": ("sst2", "validation"), "mm": ("sst2", "other")}, text_columns=("sentence",), license="mit",
)  # fmt: skip
RUN = dict(metrics=METRICS, model="BertForSequenceClassification", parameters=22_000_000, trained=22_000_000)
RUN_ARGUMENTS = {*RUN, "evaluated_on", "limits", "figure"}


def card_of(folder, **more):
    """The card of a run, which has no problem."""
    folder.mkdir(exist_ok=True)
    facts = TaskFacts(**FACTS | {name: value for name, value in more.items() if name not in RUN_ARGUMENTS})
    run = RUN | {name: value for name, value in more.items() if name in RUN_ARGUMENTS}
    if run.get("figure"):
        (folder / run["figure"]).touch()
    limits = task_limits(facts, metrics=run["metrics"], measured_on="dev.tsv", longest=128, seeds=[1])
    file = write_task_card(folder, facts, **{"limits": limits} | run)
    assert card_problems(file.read_text(encoding="utf-8"), folder) == []
    return ModelCard.load(file)


def code_of(card):
    return card.text.partition("```python\n")[2].partition("```")[0]


# ------- several seeds


@pytest.mark.criterion("B6")
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


@pytest.mark.criterion("B10.1")
def test_metadata_and_text_are_read_back(tmp_path):
    card = card_of(tmp_path / ".", figure="curves.png")
    assert card.data.pipeline_tag == "text-classification" and card.data.library_name == "transformers"
    assert (card.data.base_model, card.data.datasets) == ("org/some-model", ["nyu-mll/glue"])
    assert (card.data.language, card.data.license, card.data.metrics) == ("en", "mit", ["accuracy"])
    main, other = card.data.eval_results
    assert (main.metric_type, main.metric_value, main.dataset_type) == ("accuracy", 0.91, "nyu-mll/glue")
    assert (main.dataset_name, main.dataset_config, main.dataset_split) == ("sst2", "sst2", "validation")
    assert (other.metric_name, other.metric_value, other.dataset_split) == ("mm_accuracy", 0.9, "other")
    for text in (
        "| accuracy | 0.9100 |", "| loss | 0.2500 |", "fine-tuned from org/some-model", "22.0 million parameters",
        "| text | a\\|b c |", "| versions | torch 2.6 |", "![Losses and metrics during the training](curves.png)",
        'pipeline("text-classification", repo, revision=revision)', f'repo = "{tmp_path.name}"', 'classify("A text.")',
        "Measured on the validation data of nyu-mll/glue. Examples: 872, 10 (mm).",
    ):  # fmt: skip
        assert text in card.text, text
    assert "trust_remote_code" not in card.text and "predict" not in card.text


def test_files_and_folders_are_named_without_their_place(tmp_path):
    base = tmp_path / "somewhere" / "base"
    base.mkdir(parents=True)
    card = card_of(tmp_path / "run", base_model=str(base), dataset="train.tsv, dev.tsv", from_hub=False)
    assert "fine-tuned from base" in card.text and "somewhere" not in card.content
    assert card.data.base_model is None and card.data.datasets is None and card.data.language is None
    assert card.data.eval_results[0].dataset_type == "text"


def test_results_name_what_was_measured_on(tmp_path):
    card = card_of(tmp_path, dataset="train.csv, dev.csv, test.csv", evaluated_on="dev.csv")
    assert "Measured on dev.csv." in card.text


def test_new_models_and_nothing_measured_are_said(tmp_path):
    card = card_of(tmp_path, base_model=None, metrics={}, task="text-classification")
    assert "for text-classification, trained from random weights" in card.text and "Nothing was measured" in card.text
    assert card.data.eval_results is None and card.data.metrics is None


def test_counts_and_thresholds_are_no_metrics_of_the_metadata(tmp_path):
    metrics = dict(
        eval_exact=70.0, eval_f1=75.5, eval_total=100, eval_best_f1=76.0, eval_best_f1_thresh=-1.25, eval_samples=100
    )
    card = card_of(tmp_path, task="squad_v2", pipeline="question-answering", metrics=metrics, sets={})
    assert card.data.metrics == ["exact", "f1"] and len(card.data.eval_results) == 2
    # For people the threshold is of use.
    assert "| best_f1_thresh | -1.2500 |" in card.text and "total" not in card.text
    assert "at the threshold that is best on this very data" in card.text


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
    assert needed in code_of(card) and code_of(card).count("trust_remote_code=True") >= 1
    assert "The folder brings its code along" in card.text


@pytest.mark.parametrize(
    ("task", "columns", "shown"),
    [
        ("wic", ("word_and_sentence1", "sentence2"), '{"text": "bank: She sat on the bank of the river.", "text_pair": '),
        ("wsc", ("marked_text",), 'classify("Mary saw # Ann # , and * she * waved .")'),
        ("mnli", ("premise", "hypothesis"), '"text_pair": "She was near water."'),
        ("text-classification", ("left", "right"), '{"text": "A text.", "text_pair": "Another text."}'),
        ("text-classification", ("left",), 'classify("A text.")'),
    ],
)
def test_texts_are_shown_as_the_task_has_them(task, columns, shown, tmp_path):
    assert shown in code_of(card_of(tmp_path, task=task, text_columns=columns))


def test_adapters_name_the_model_that_they_are_for(tmp_path):
    card = card_of(tmp_path, adapter_base="org/some-model", base_revision="v1", trained=1_000_000)
    code = code_of(card)
    assert 'base = "org/some-model"  # the path or Hub id' in code and 'base_revision = "v1"' in code
    assert "PeftModel.from_pretrained" in code
    assert card.data.library_name == "peft" and "lora" in card.data.tags
    assert "1.0 million of them were trained" in card.text and "The folder holds an adapter and a head" in card.text


def test_languages_given_win_over_those_of_the_data_set(tmp_path):
    assert card_of(tmp_path, language=["de", "en"]).data.language == ["de", "en"]
    assert card_of(tmp_path, dataset="clue/clue").data.language == "zh"
    assert card_of(tmp_path, dataset="someone/unknown").data.language is None


def test_the_card_of_several_seeds_has_all_of_them(tmp_path):
    summary = summarise_seeds({1: METRICS, 2: METRICS | dict(eval_accuracy=0.95)})
    (tmp_path / "seeds.png").touch()
    facts = TaskFacts(**FACTS)
    limits = task_limits(facts, metrics=METRICS, measured_on="dev.tsv", seeds=[1, 2])
    file = write_seeds_card(tmp_path, facts, summary=summary, limits=limits, figure="seeds.png")
    assert card_problems(file.read_text(encoding="utf-8"), tmp_path) == []
    card = ModelCard.load(file)
    for text in (
        "2 times with the seeds 1, 2", "| eval_accuracy | 0.9300 |", "![The scores of the seeds](seeds.png)",
        f'repo = "{tmp_path.name}/seed-1"',
    ):  # fmt: skip
        assert text in card.text
    result = card.data.eval_results[0]
    assert result.metric_value == 0.93 and result.metric_name == "accuracy (mean of 2 seeds)"
    assert "one run" not in card.text and not list(tmp_path.glob("*.part"))


def test_a_single_seed_is_no_mean(tmp_path):
    summary = summarise_seeds({3: METRICS})
    text = write_seeds_card(tmp_path, TaskFacts(**FACTS), summary=summary).read_text(encoding="utf-8")
    assert "once, with the seed 3:" in text and "mean of" not in text and card_problems(text, tmp_path) == []


# ------- limits


def limits_of(metrics=METRICS, facts=None, **more):
    given = dict(metrics=metrics, measured_on="dev.tsv") | more
    return " ".join(task_limits(TaskFacts(**FACTS | (facts or {})), **given))


def test_limits_are_those_of_the_run():
    few = limits_of(longest=128, seeds=[7], chosen=True, train_samples=50, eval_samples=10)
    for text in (
        "inputs of at most 128 tokens", "one run, with the seed 7", "measured on dev.tsv, the first 10 examples of each",
        "the first 50 examples", "10 examples are few", "best of several checkpoints", "The data is in en",
        "began as (org/some-model)",
    ):  # fmt: skip
        assert text in few, text
    many = limits_of(metrics={"eval_accuracy": 0.9, "eval_samples": 5000}, seeds=[1, 2], facts=dict(base_model=None))
    for text in ("one run", "are few", "checkpoints", "first", "tokens"):
        assert text not in many, text
    assert "measured on dev.tsv and nothing else" in many and "random weights, without pre-training" in many


def test_what_was_not_measured_is_not_known():
    limits = limits_of(metrics={}, chosen=True, eval_samples=10)
    assert "Nothing was measured: how good it is is not known." in limits
    assert "measured on dev.tsv" not in limits and "too good" not in limits


def test_results_on_the_data_of_the_training_are_named():
    assert "it was trained on, too" in limits_of(seen=True) and "it was trained on, too" not in limits_of()
    assert "it was trained on, too" not in limits_of(metrics={}, seen=True)


def test_lengths_are_those_of_windows_and_choices():
    assert "windows of at most 384 tokens" in limits_of(longest=384, facts=dict(pipeline="question-answering"))
    assert "choices of at most 64 tokens" in limits_of(longest=64, facts=dict(pipeline="multiple-choice"))
