# SPDX-License-Identifier: Apache-2.0
"""Model cards of runs, from facts to text and metadata: fine-tuned on a task, with one or several seeds, and pre-trained."""

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.publishing.card import write_run_card
from hf_deberta_ext.publishing.card_checks import card_problems
from hf_deberta_ext.publishing.facts import RunFacts
from hf_deberta_ext.publishing.results import summarise_seeds, summary_table

METRICS = dict(
    train_loss=0.5, train_runtime=12.0, epoch=3.0, eval_loss=0.25, eval_accuracy=0.91, eval_samples=872,
    eval_runtime=1.5, eval_samples_per_second=580.0, eval_steps_per_second=70.0, eval_model_preparation_time=0.1,
    eval_mm_accuracy=0.9, eval_mm_loss=0.3, eval_mm_samples=10, eval_mm_runtime=1.0, eval_mm_steps_per_second=3.0,
    predict_accuracy=0.8, predict_samples=5,
)  # fmt: skip
TASK = dict(
    task="sst2", pipeline="text-classification", measured_on="the validation data of nyu-mll/glue",
    datasets=["nyu-mll/glue"], base_model="org/some-model", base_model_id="org/some-model", parameters=22_000_000,
    training={"batch": "8 x 4", "learning rate": 2e-5, "text": "a|b\nc"}, text_columns=["sentence"], license="mit",
    hardware={"versions": {"torch": "2.6", "hf_deberta_ext": "0.1"}}, seeds=[1],
    sets={"": ("sst2", "validation"), "mm": ("sst2", "other")},
)  # fmt: skip
MLM = dict(
    eval_mlm_loss=2.0, eval_mlm_perplexity=7.389, eval_mlm_accuracy=0.5, eval_mlm_targets=1234, eval_sop_loss=0.3,
    eval_sop_accuracy=0.9, eval_sop_targets=10,
)  # fmt: skip
RTD = dict(
    eval_generator_loss=2.0, eval_generator_perplexity=7.389, eval_generator_accuracy=0.5, eval_generator_targets=150,
    eval_discriminator_loss=0.25, eval_discriminator_accuracy=0.95, eval_discriminator_precision=0.75,
    eval_discriminator_recall=0.25, eval_discriminator_targets=1000, eval_replaced_share=0.075,
    eval_generator_similarity=0.0123, eval_discriminator_similarity=0.0456, eval_discriminator_guess_loss=0.2664,
)  # fmt: skip
PRETRAINING = dict(training={"seed": 7}, longest=64, seeds=[7], from_scratch=True, figure="curves.png")


def model_in(folder, name="BertForSequenceClassification", **config):
    """The files of a model, as far as cards read them, and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    content = dict(model_type="bert", architectures=[name]) | config
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    for file in ("tokenizer.json", "curves.png", "seeds.png"):
        (folder / file).touch()


def card_of(folder, metrics=METRICS, adapter=None, model=None, **facts):
    """The card of a run of a task, which has no problem."""
    model_in(folder, **(model or {}))
    (folder / "all_results.json").write_text(json.dumps(metrics), encoding="utf-8")
    if adapter is not None:
        (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    file = write_run_card(folder, RunFacts(**TASK | facts))
    assert card_problems(file.read_text(encoding="utf-8"), folder) == []
    assert not list(folder.rglob("*.part"))
    return ModelCard.load(file)


def code_of(card):
    return card.text.partition("```python\n")[2].partition("```")[0]


def limits_of(folder, **more):
    return card_of(folder, **more).text.partition("## Limits\n")[2].partition("\n## ")[0]


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
        "| accuracy | 0.9100 |", "| loss | 0.2500 |", "fine-tuned on sst2 from org/some-model, with hf_deberta_ext",
        "22.0 million parameters", "| text | a\\|b c |", "| versions | torch 2.6, hf_deberta_ext 0.1 |",
        "![Losses and metrics during the training](curves.png)", f'repo = "{tmp_path.name}"', 'classify("A text.")',
        'pipeline("text-classification", repo, revision=revision)',
        "Measured on the validation data of nyu-mll/glue. Examples: 872, 10 (mm).",
    ):  # fmt: skip
        assert text in card.text, text
    assert "trust_remote_code" not in card.text and "predict" not in card.text


def test_new_models_and_nothing_measured_are_said(tmp_path):
    card = card_of(tmp_path, base_model=None, base_model_id=None, from_scratch=True, metrics={}, task="text-classification")
    assert "trained from random weights" in card.text and "random weights, without pre-training" in card.text
    assert "Nothing was measured: how good it is is not known." in card.text
    assert card.data.eval_results is None and card.data.metrics is None and card.data.base_model is None


@pytest.mark.parametrize(
    ("task", "columns", "shown"),
    [
        ("wic", ["word_and_sentence1", "sentence2"], '{"text": "bank: She sat on the bank of the river.", "text_pair": '),
        ("wsc", ["marked_text"], 'classify("Mary saw # Ann # , and * she * waved .")'),
        ("mnli", ["premise", "hypothesis"], '"text_pair": "She was near water."'),
        ("text-classification", ["left", "right"], '{"text": "A text.", "text_pair": "Another text."}'),
        ("text-classification", ["left"], 'classify("A text.")'),
        ("token-classification", [], 'aggregation_strategy="first"'),
        ("question-answering", [], "AutoModelForQuestionAnswering"),
        ("multiple-choice", [], "AutoModelForMultipleChoice"),
    ],
)
def test_texts_and_usage_are_those_of_the_task(task, columns, shown, tmp_path):
    more = dict(text_columns=columns) if columns else dict(pipeline=task)
    card = card_of(tmp_path, task=task, model=dict(auto_map={"AutoConfig": "a.B"}), **more)
    assert shown in code_of(card) and "trust_remote_code=True" in code_of(card)
    assert "The folder brings its code along" in card.text


def test_adapters_name_the_model_that_they_are_for(tmp_path):
    adapter = dict(
        base_model_name_or_path="org/some-model", modules_to_save=["classifier"],
        auto_mapping=dict(base_model_class="BertForSequenceClassification", parent_library="transformers"),
    )  # fmt: skip
    card = card_of(tmp_path, adapter=adapter, base_revision="v1", trained_parameters=1_000_000)
    code = code_of(card)
    assert 'base = "org/some-model"  # the path or Hub id' in code and 'base_revision = "v1"' in code
    assert "PeftModel.from_pretrained" in code
    assert card.data.library_name == "peft" and "lora" in card.data.tags
    assert "1.0 million of them were trained" in card.text and "The folder holds an adapter and a head" in card.text
    assert "An adapter (LoRA) for text classification (BertForSequenceClassification)" in card.text


def test_languages_of_the_run_win_over_those_of_the_data_set(tmp_path):
    assert card_of(tmp_path, language=["de", "en"]).data.language == ["de", "en"]
    assert card_of(tmp_path, datasets=["clue/clue"]).data.language == "zh"
    assert card_of(tmp_path, datasets=["someone/unknown"]).data.language is None
    assert "## Results" in card_of(tmp_path, datasets=[]).text


def test_limits_are_those_of_the_run(tmp_path):
    few = limits_of(
        tmp_path, longest=128, seeds=[7], best_chosen=True, train_samples=50, eval_samples=10, trained_on_results=True
    )
    for text in (
        "inputs of at most 128 tokens", "one run, with the seed 7", "nyu-mll/glue, the first 10 examples of each",
        "the first 50 examples", "10 examples are few", "best of several checkpoints", "The data is in en",
        "began as (org/some-model)", "it was trained on, too",
    ):  # fmt: skip
        assert text in few, text
    many = limits_of(tmp_path, metrics={"eval_accuracy": 0.9, "eval_samples": 5000}, seeds=[1, 2])
    for text in ("one run", "are few", "checkpoints", "first", "tokens", "trained on, too"):
        assert text not in many, text
    unknown = limits_of(tmp_path, metrics={}, best_chosen=True, eval_samples=10, trained_on_results=True)
    assert "measured on the" not in unknown and "too good" not in unknown and "trained on, too" not in unknown
    assert "windows of at most 384 tokens" in limits_of(tmp_path, longest=384, pipeline="question-answering")
    assert "choices of at most 64 tokens" in limits_of(tmp_path, longest=64, pipeline="multiple-choice")


def test_a_run_may_have_its_own_text(tmp_path):
    card = card_of(tmp_path, metrics={"job": "toy"}, opening="A toy.", limits=["It is a toy."])
    assert "\nA toy.\n" in card.text and "## Limits\n\n- It is a toy.\n" in card.text


def test_seeds_are_summarised_by_mean_and_standard_deviation_of_the_metrics_of_all():
    runs = {3: METRICS, 1: METRICS | dict(eval_accuracy=0.95, predict_accuracy=0.7)}
    summary = summarise_seeds(runs)
    assert summary["seeds"] == [3, 1] and {*summary} == {
        "seeds", "eval_accuracy", "eval_mm_accuracy", "eval_loss", "eval_mm_loss", "predict_accuracy",
    }  # fmt: skip
    assert summary["eval_accuracy"]["values"] == [0.91, 0.95]
    assert summary["eval_accuracy"]["mean"] == pytest.approx(0.93)
    assert summary["eval_accuracy"]["standard_deviation"] == pytest.approx(0.0008**0.5)
    assert "| eval_accuracy | 0.9300 | 0.0283 | 0.9100 | 0.9500 |" in summary_table(summary).splitlines()
    one = summarise_seeds({1: METRICS})
    assert one["eval_loss"] == dict(mean=0.25, standard_deviation=None, values=[0.25])
    assert "| eval_loss | 0.2500 |  | 0.2500 |" in summary_table(one)
    fewer = {name: value for name, value in METRICS.items() if name != "eval_mm_loss"}
    assert "eval_mm_loss" not in summarise_seeds({1: METRICS, 2: fewer})


@pytest.mark.parametrize("runs", [{1: METRICS, 2: METRICS | dict(eval_accuracy=0.95)}, {3: METRICS}], ids=["two", "one"])
def test_the_card_of_several_seeds_has_all_of_them(runs, tmp_path):
    seeds = [*runs]
    for seed, metrics in runs.items():
        model_in(tmp_path / f"seed-{seed}")
        (tmp_path / f"seed-{seed}" / "all_results.json").write_text(json.dumps(metrics), encoding="utf-8")
    (tmp_path / "seeds.png").touch()
    (tmp_path / "all_results.json").write_text(json.dumps(summarise_seeds(runs)), encoding="utf-8")
    file = write_run_card(tmp_path, RunFacts(**TASK | dict(seeds=seeds, figure="seeds.png")))
    assert card_problems(file.read_text(encoding="utf-8"), tmp_path) == []
    card = ModelCard.load(file)
    several = len(seeds) > 1
    result = card.data.eval_results[0]
    assert (result.metric_value, result.metric_name) == ((0.93, "accuracy (mean of 2 seeds)") if several else (0.91, None))
    for text in (
        "2 times with the seeds 1, 2:" if several else "once, with the seed 3:", f'repo = "{tmp_path.name}/seed-{seeds[0]}"',
        "![The scores of the seeds](seeds.png)", "| eval_accuracy | 0.9300 |" if several else "| eval_accuracy | 0.9100 |",
        "10 examples are few",
    ):  # fmt: skip
        assert text in card.text, text
    assert ("one run" in card.text) == (not several)


def pretrained(folder, metrics, name="DebertaExtForMaskedLM", **facts):
    model_in(folder, name, **DebertaExtConfig().to_dict() | dict(architectures=[name], auto_map={"AutoConfig": "a.B"}))
    (folder / "all_results.json").write_text(json.dumps(metrics), encoding="utf-8")
    return write_run_card(folder, RunFacts(**PRETRAINING | facts))


def test_card_of_a_masked_language_model_is_valid_and_says_what_was_trained(tmp_path):
    file = pretrained(
        tmp_path, MLM, objectives={"mlm": "masked-language modelling", "sop": "sentence order prediction"},
        training={"data": ["a.txt", "b.txt"], "masking": {"unit": "span", "rate": 0.15}, "fill": 0.123456},
        hardware={"device": "CPU"}, base_model="org/a", base_model_id="org/a", language=["en"], license="mit",
        datasets=["org/texts"],
    )  # fmt: skip
    card = ModelCard.load(file)
    assert card_problems(card.content, tmp_path) == []
    assert card.data.base_model == "org/a" and card.data.eval_results[0].metric_value == 7.389
    assert (card.data.language, card.data.license, card.data.datasets) == ("en", "mit", ["org/texts"])
    assert card.data.metrics == ["perplexity", "accuracy"] and card.data.eval_results[0].dataset_split is None
    for text in (
        "trained further from org/a", "| masked-language modelling | 2.0000 | 7.39 | 0.5000 | 1,234 |",
        "| sentence order prediction | 0.3000 |  | 0.9000 | 10 |", "| data | a.txt, b.txt |",
        "| masking | unit span, rate 0.15 |", "| fill | 0.1235 |",
        "## Hardware and time\n\n| | |\n| --- | --- |\n| device | CPU |",
        "- It fills masks: for any other task it has to be fine-tuned.",
        'pipeline("fill-mask", repo, revision=revision, trust_remote_code=True)',
    ):  # fmt: skip
        assert text in card.text, text


def test_limits_of_a_pre_training_are_those_of_the_run(tmp_path):
    few = pretrained(tmp_path, MLM, tokens=12_345, language=["en"]).read_text(encoding="utf-8")
    limits = ("of at most 64 tokens", "the seed 7", "12,345 tokens of text", "is in en", "held-out documents of the data")
    assert [text for text in limits if text not in few] == []
    more = dict(tokens=12, measured_on="dev.txt", base_model="org/a", from_scratch=False)
    further = pretrained(tmp_path, MLM, **more).read_text(encoding="utf-8")
    assert "results are of dev.txt" in further and "began as (org/a)" in further
    # The texts of the base are not counted.
    assert "tokens of text" not in further and "is in" not in further
    assert "tokens of text" not in pretrained(tmp_path, MLM, tokens=10**10).read_text(encoding="utf-8")


@pytest.mark.parametrize("guessing", [False, True])
def test_joint_model_and_its_halves_have_a_card_each(guessing, tmp_path):
    folder, metrics = tmp_path / "run", RTD | (dict(eval_discriminator_loss=0.2664) if guessing else {})
    config = DebertaExtConfig().to_dict() | dict(auto_map={"AutoConfig": "a.B"})
    model_in(folder / "discriminator", **config | dict(architectures=["DebertaExtForReplacedTokenDetection"]))
    model_in(folder / "generator", **config | dict(architectures=["DebertaExtForMaskedLM"]))
    pretrained(folder, metrics, "DebertaExtForPreTraining", base_model="org/a", base_model_id="org/a")
    cards = [ModelCard.load(Path(place, "README.md")) for place in (folder, folder / "discriminator", folder / "generator")]
    joint, discriminator, generator = cards
    titles = [card.text.strip().splitlines()[0] for card in cards]
    assert titles == ["# run", "# run: discriminator", "# run: generator"]
    assert discriminator.data.eval_results[1].metric_value == 0.75 and not joint.data.eval_results
    assert generator.data.pipeline_tag == "fill-mask" and generator.data.eval_results[0].metric_value == 7.389
    for card, place in zip(cards, (folder, folder / "discriminator", folder / "generator"), strict=True):
        assert card_problems(card.content, place) == []
        assert card.data.base_model == "org/a" and "trained further from org/a" in card.text
        assert "tokens were replaced, 7.50% of them" in card.text and "| seed | 7 |" in card.text
        assert "0.0123 in the generator and 0.0456 in the discriminator" in card.text
        assert "| generator, masked tokens | 2.0000 | 7.39 | 0.5000 |  |  | 150 |" in card.text
        assert ("curves.png" in card.text) == (card is joint)
        assert ("made to propose replacements" in card.text) == (card is not discriminator)
        assert ("has learned nothing that helps" in card.text) == (guessing and card is not generator)
    assert 'repo = "run"' in joint.text and 'repo = "run/discriminator"' in discriminator.text
    assert "AutoModelForSequenceClassification.from_pretrained(repo, num_labels=2" in discriminator.text
