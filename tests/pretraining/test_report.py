# SPDX-License-Identifier: Apache-2.0
"""Curves and model cards of pre-training runs."""

import pytest

from hf_deberta_ext.pretraining import DataArguments, ModelArguments, PretrainingArguments
from hf_deberta_ext.pretraining.report import (
    evaluation_table,
    learned_nothing,
    plot_objectives,
    plot_replaced_tokens,
    pretraining_limits,
    replaced_token_table,
    write_model_card,
    write_replaced_token_cards,
)
from hf_deberta_ext.pretraining.run_arguments import check_arguments
from hf_deberta_ext.pretraining.run_stages import card_content
from hf_deberta_ext.publishing.card import shown_source
from hf_deberta_ext.publishing.card_checks import card_problems

pytest.importorskip("matplotlib")
METRICS = dict(
    eval_mlm_loss=2.0, eval_mlm_perplexity=7.389, eval_mlm_accuracy=0.5, eval_mlm_targets=1234, eval_sop_loss=0.3,
    eval_sop_accuracy=0.9, eval_sop_targets=10,
)  # fmt: skip
REPLACED = dict(
    eval_generator_loss=2.0, eval_generator_perplexity=7.389, eval_generator_accuracy=0.5, eval_generator_targets=150,
    eval_discriminator_loss=0.25, eval_discriminator_accuracy=0.95, eval_discriminator_precision=0.75,
    eval_discriminator_recall=0.25, eval_discriminator_targets=1000, eval_replaced_share=0.075,
    eval_generator_similarity=0.0123, eval_discriminator_similarity=0.0456, eval_discriminator_guess_loss=0.2664,
)  # fmt: skip


def without_problems(file):
    (file.parent / "curves.png").touch()
    assert card_problems(file.read_text(encoding="utf-8"), file.parent) == []
    return file


def test_table_has_a_row_for_each_objective():
    lines = evaluation_table(METRICS, ["mlm", "sop"]).splitlines()
    assert lines[2] == "| masked-language modelling | 2.0000 | 7.39 | 0.5000 | 1,234 |"
    assert lines[3] == "| sentence order prediction | 0.3000 |  | 0.9000 | 10 |"


def test_table_has_a_row_for_generator_and_discriminator():
    lines = replaced_token_table(REPLACED).splitlines()
    assert lines[0] == "| part | loss | perplexity | accuracy | precision | recall | targets |"
    assert lines[2] == "| generator, masked tokens | 2.0000 | 7.39 | 0.5000 |  |  | 150 |"
    assert lines[3] == "| discriminator, all tokens | 0.2500 |  | 0.9500 | 0.7500 | 0.2500 | 1,000 |"


@pytest.mark.criterion("B10.1")
def test_card_is_valid_and_says_what_was_trained(tmp_path):
    from huggingface_hub import ModelCard

    facts = {"data": ["a.txt", "b.txt"], "masking": {"unit": "span", "rate": 0.15}, "note": "a|b\nc", "fill": 0.123456}
    file = write_model_card(
        tmp_path,
        metrics=METRICS,
        objectives=dict(mlm=1.0, sop=0.5),
        facts=facts,
        hardware={"device": "CPU"},
        limits=["It is small."],
        parameters=2_500_000,
        base_model="org/a",
        language="en",
        license="mit",
        datasets=["org/texts"],
    )
    card = ModelCard.load(without_problems(file))
    assert card.data.base_model == "org/a" and card.data.eval_results[0].metric_value == 7.389
    assert (card.data.language, card.data.license, card.data.datasets) == ("en", "mit", ["org/texts"])
    assert card.data.metrics == ["perplexity", "accuracy"] and card.data.eval_results[0].dataset_split is None
    rows = [
        "| objectives | masked-language modelling (weight 1), sentence order prediction (weight 0.5) |",
        "| data | a.txt, b.txt |",
        "| masking | unit span, rate 0.15 |",
        "| note | a\\|b c |",
        "| fill | 0.1235 |",
        "## Hardware and time\n\n| | |\n| --- | --- |\n| device | CPU |",
        "- It fills masks: for any other task it has to be fine-tuned.\n- It is small.",
        'pipeline("fill-mask", repo, revision=revision, trust_remote_code=True)',
    ]
    for text in ("trained further from org/a", "2.5 million parameters", *rows):
        assert text in card.text, text


def test_card_names_a_local_base_without_its_place(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    common = dict(metrics=METRICS, objectives=dict(mlm=1.0), facts={}, parameters=1)
    text = write_model_card(tmp_path, base_model=str(base), **common).read_text(encoding="utf-8")
    assert "trained further from base," in text and str(base) not in text and "base_model" not in text
    assert "from random weights" in write_model_card(tmp_path, **common).read_text(encoding="utf-8")


def test_joint_model_and_its_parts_have_a_card_each(tmp_path):
    from huggingface_hub import ModelCard

    for part in ("discriminator", "generator"):
        (tmp_path / "run" / part).mkdir(parents=True)
    parameters = dict(joint=3_000_000, discriminator=2_500_000, generator=1_500_000)
    common = dict(metrics=REPLACED, facts={"seed": 7}, base_model="org/a", language="en")
    files = write_replaced_token_cards(tmp_path / "run", parameters=parameters, **common)
    joint, discriminator, generator = (ModelCard.load(file) for file in files)
    for file in files:
        without_problems(file)
    titles = [card.text.strip().splitlines()[0] for card in (joint, discriminator, generator)]
    assert titles == ["# run", "# run: discriminator", "# run: generator"]
    assert discriminator.data.eval_results[1].metric_value == 0.75 and not joint.data.eval_results
    assert generator.data.pipeline_tag == "fill-mask" and generator.data.eval_results[0].metric_value == 7.389
    for card, size in ((joint, "3.0"), (discriminator, "2.5"), (generator, "1.5")):
        assert card.data.base_model == "org/a" and f"It has {size} million parameters" in card.text
        assert "tokens were replaced, 7.50% of them" in card.text and "| seed | 7 |" in card.text
        assert "0.0123 in the generator and 0.0456 in the discriminator" in card.text
        assert ("curves.png" in card.text) == (card is joint)
        assert "has learned nothing" not in card.text
        assert ("made to propose replacements" in card.text) == (card is not discriminator)
    assert 'repo = "run"' in joint.text and 'repo = "run/discriminator"' in discriminator.text
    assert "AutoModelForSequenceClassification.from_pretrained(repo, num_labels=2" in discriminator.text


def test_a_discriminator_that_only_guesses_is_named_in_its_cards(tmp_path):
    guessing = REPLACED | dict(eval_discriminator_loss=0.2664)
    assert learned_nothing(guessing) and not learned_nothing(REPLACED)
    for part in ("discriminator", "generator"):
        (tmp_path / part).mkdir()
    parameters = dict(joint=3_000, discriminator=2_500, generator=1_500)
    files = write_replaced_token_cards(tmp_path, parameters=parameters, metrics=guessing, facts={"seed": 7})
    named = ["has learned nothing that helps fine-tuning" in file.read_text(encoding="utf-8") for file in files]
    assert named == [True, True, False]


def test_limits_are_those_of_the_run():
    few = " ".join(pretraining_limits(seed=7, max_length=64, tokens=12_345, language="en"))
    for text in (
        "of at most 64 tokens",
        "the seed 7",
        "12,345 tokens of text",
        "is in en",
        "held-out documents of the data",
    ):
        assert text in few, text
    further = " ".join(pretraining_limits(seed=7, max_length=64, tokens=12, held_out="dev.txt", base_model="org/a"))
    assert "results are of dev.txt" in further and "began as (org/a)" in further
    # What the base has read is not counted.
    assert "tokens of text" not in further and "is in" not in further
    assert "tokens of text" not in " ".join(pretraining_limits(seed=7, max_length=64, tokens=10**10))


def test_flags_and_files_of_a_run_become_content_of_its_card(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "held-out.txt").touch()
    (tmp_path / "all_results.json").write_text('{"train_runtime": 12.5, "train_resumed_at_step": 50}', encoding="utf-8")
    data_args = DataArguments(
        train_data=["org/texts", str(tmp_path)], validation_data=[str(tmp_path / "held-out.txt")], language="de"
    )
    args = PretrainingArguments(str(tmp_path), use_cpu=True, seed=7)
    content = card_content(data_args, ModelArguments(license="mit"), args, {"seconds": 99.5}, {})
    assert (content["language"], content["license"], content["datasets"]) == ("de", "mit", ["org/texts"])
    assert content["hardware"]["seconds of training, from step 50 on"] == 12.5
    assert content["hardware"]["seconds of all stages"] == 99.5
    limits = " ".join(content["limits"])
    assert "results are of held-out.txt" in limits and "the seed 7" in limits and str(tmp_path) not in limits
    # Of a run that was stopped in between nobody knows how long it took.
    args.resume_from_checkpoint = "last"
    assert "seconds of all stages" not in card_content(data_args, ModelArguments(), args, {"seconds": 1}, {})["hardware"]


@pytest.mark.parametrize(("flags", "said"), [({"license": "MIT"}, "is it mit"), ({"language": "xx"}, "no language 'xx'")])
def test_names_that_the_hub_does_not_know_are_refused_at_once(flags, said, tmp_path):
    pytest.importorskip("accelerate")
    data_args = DataArguments(train_data=["a.txt"], language=flags.get("language", "en"))
    args = PretrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=said):
        check_arguments(data_args, ModelArguments(license=flags.get("license")), args)


def test_each_objective_has_a_panel(tmp_path):
    history = [{"step": 1, "mlm_loss": 3.0, "sop_loss": 0.7}, {"step": 2, "eval_mlm_loss": 2.0, "eval_sop_loss": 0.6}]
    file = plot_objectives(history, tmp_path / "curves.png", ["mlm", "sop"])
    assert file.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="logged any of sbo_loss"):
        plot_objectives(history, tmp_path / "curves.png", ["mlm", "sbo"])


def test_replaced_tokens_have_panels_for_both_losses_and_for_what_is_found(tmp_path):
    parts = ("generator_loss", "discriminator_loss", "discriminator_precision", "discriminator_recall")
    history = [{"step": step, **dict.fromkeys(parts, 0.5)} for step in (1, 2)]
    assert plot_replaced_tokens(history, tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="logged any of discriminator_loss"):
        plot_replaced_tokens([{"step": 1, "generator_loss": 1.0}], tmp_path / "curves.png")


def test_sources_are_named_without_their_place_on_the_machine(tmp_path):
    for name in ("run/discriminator", "plain"):
        (tmp_path / name).mkdir(parents=True)
    assert shown_source(tmp_path / "run" / "discriminator") == "run/discriminator"
    assert shown_source(tmp_path / "plain") == "plain" and shown_source("someone/model") == "someone/model"
