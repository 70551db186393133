# SPDX-License-Identifier: Apache-2.0
"""Test model cards: text and metadata from the facts of runs, execution of their code, and updates of existing cards."""

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from every_head import CLASSES
from huggingface_hub import ModelCard
from tiny_models import tiny_tokenizer
from transformers import DebertaV2Config, DebertaV2ForMaskedLM
from without_package import run_without_package

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForSequenceClassification
from hf_deberta_ext.commands import main
from hf_deberta_ext.publishing.card import put_section, write_model_card, write_run_card
from hf_deberta_ext.publishing.facts import RunFacts

WORDS = "she sat on the bank of river where did paris is france a text . ?".split()
SIZES = dict(
    vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=64, position_buckets=8,
)  # fmt: skip
LABELS = dict(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
# Folder -> class, configuration fields, and the output of the code in its card.
KINDS = {
    "classes": (DebertaExtForSequenceClassification, LABELS, "'label': "),
    "scores": (DebertaExtForSequenceClassification, dict(num_labels=1, problem_type="regression"), "'score': "),
    "several": (DebertaExtForSequenceClassification, LABELS | dict(problem_type="multi_label_classification"), "'good'"),
    "words": (CLASSES["token-classification"], LABELS, "'entity_group'"),
    "answers": (CLASSES["question-answering"], {}, ""),
    "choices": (CLASSES["multiple-choice"], {}, "She had a "),
    "masks": (DebertaExtForMaskedLM, {}, "'token_str'"),
    "encoder": (CLASSES["base"], {}, "torch.Size([1, "),
}
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


def save(model, folder):
    model.save_pretrained(folder)
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return folder


def save_adapter(place, name):
    """Save a LoRA adapter: with the model's configuration and code, as the scripts do, or only with peft's files."""
    import peft

    folder = place / name
    base = save(DebertaExtForSequenceClassification(DebertaExtConfig(**SIZES | LABELS)), place / f"{name}-base")
    config = peft.LoraConfig(r=2, target_modules=["query_proj"], modules_to_save=["classifier"], task_type="SEQ_CLS")
    model = peft.get_peft_model(DebertaExtForSequenceClassification.from_pretrained(base), config)
    model.save_pretrained(folder)
    # Remove peft's generic card.
    (folder / "README.md").unlink(missing_ok=True)
    if name == "adapter":
        tiny_tokenizer(WORDS).save_pretrained(folder)
        model.get_base_model().config.save_pretrained(folder)
    return folder


def code_of(folder):
    return ModelCard.load(folder / "README.md").text.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write a folder of every kind with a card, and run each card's code without this package installed."""
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    made = {name: save(kind(DebertaExtConfig(**SIZES | fields)), place / name) for name, (kind, fields, _) in KINDS.items()}
    joint = CLASSES["pretraining"](DebertaExtConfig(**SIZES))
    made["joint"] = save(joint, place / "joint")
    save(joint.export_discriminator(), place / "joint" / "discriminator")
    save(joint.export_generator(), place / "joint" / "generator")
    config = DebertaV2Config(
        **SIZES | dict(type_vocab_size=0), relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p",
        share_att_key=True, norm_rel_ebd="layer_norm",
    )  # fmt: skip
    made["stock"] = save(DebertaV2ForMaskedLM(config), place / "stock")
    made["bare"] = place / "bare"
    DebertaExtForMaskedLM(DebertaExtConfig(**SIZES)).save_pretrained(made["bare"])
    for name in ("adapter", "peft adapter"):
        made[name] = save_adapter(place, name)
    for folder in made.values():
        write_model_card(folder)
    made |= {half: made["joint"] / half for half in ("discriminator", "generator")}
    jobs = [dict(name=name, kind="code", source=str(place), code=code_of(folder)) for name, folder in made.items()]
    return made, run_without_package(jobs, tmp_path_factory.mktemp("work"))


@pytest.mark.parametrize("name", [*KINDS, "joint", "discriminator", "generator", "stock", "bare", "adapter", "peft adapter"])
def test_the_code_of_every_card_runs_without_the_package(name, folders):
    made, results = folders
    assert "error" not in results[name], results[name]["traceback"]
    assert KINDS.get(name, ("", "", ""))[2] in results[name]["printed"]
    assert ("trust_remote_code=True" in code_of(made[name])) == (name != "stock")
    for line in (made[name] / "README.md").read_text(encoding="utf-8").splitlines():
        assert str(made[name].parent) not in line


def test_what_is_not_known_is_not_invented(folders):
    card = ModelCard.load(folders[0]["masks"] / "README.md")
    data = card.data
    assert (data.language, data.license, data.base_model, data.datasets, data.eval_results) == (None,) * 5
    for heading in ("## Results", "## Training", "## Hardware and time"):
        assert heading not in card.text
    assert "The model was not evaluated." in card.text and "The training of the model is not documented." in card.text
    assert "contains no tokenizer" in (folders[0]["bare"] / "README.md").read_text(encoding="utf-8")


def model_in(folder, name="BertForSequenceClassification", **config):
    """Write the files of a model that cards read, and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(model_type="bert", architectures=[name]) | config), encoding="utf-8")
    (folder / "tokenizer.json").touch()


def card_of(folder, metrics=METRICS, adapter=None, model=None, **facts):
    """Write the card of a run of a task and return its text."""
    model_in(folder, **(model or {}))
    (folder / "all_results.json").write_text(json.dumps(metrics), encoding="utf-8")
    if adapter is not None:
        (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    return ModelCard.load(write_run_card(folder, RunFacts(**TASK | facts)))


def assert_texts(card, *texts):
    assert [text for text in texts if text not in card.text] == []


def test_metadata_and_text_of_a_run(tmp_path):
    card = card_of(tmp_path, figure="curves.png")
    assert card.data.pipeline_tag == "text-classification" and card.data.library_name == "transformers"
    assert (card.data.base_model, card.data.datasets) == ("org/some-model", ["nyu-mll/glue"])
    assert (card.data.language, card.data.license, card.data.metrics) == ("en", "mit", ["accuracy"])
    main_set, other = card.data.eval_results
    assert (main_set.metric_type, main_set.metric_value, main_set.dataset_type) == ("accuracy", 0.91, "nyu-mll/glue")
    assert (main_set.dataset_name, main_set.dataset_config, main_set.dataset_split) == ("sst2", "sst2", "validation")
    assert (other.metric_name, other.metric_value, other.dataset_split) == ("mm_accuracy", 0.9, "other")
    assert_texts(
        card, "| accuracy | 0.9100 |", "| loss | 0.2500 |", "fine-tuned on sst2 from org/some-model, with hf_deberta_ext",
        "22.0 million parameters", "| text | a\\|b c |", "| versions | torch 2.6, hf_deberta_ext 0.1 |",
        "![Losses and metrics during training](curves.png)", f'repo = "{tmp_path.name}"', 'classify("A text.")',
        "Measured on the validation data of nyu-mll/glue. Examples: 872, 10 (mm).",
    )  # fmt: skip
    assert "trust_remote_code" not in card.text and "predict" not in card.text and "\n\n\n" not in card.text
    # The facts are stored, so a new card has the same text.
    text = card.content
    write_model_card(tmp_path, overwrite=True)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text and (tmp_path / "README.md.old-1").is_file()


# Facts of a run -> sentences in its card, and words that must be absent.
SENTENCES = {
    "few": (
        dict(longest=128, seeds=[7], best_chosen=True, train_samples=50, eval_samples=10, trained_on_results=True),
        ["inputs of at most 128 tokens", "seed 7", "nyu-mll/glue, the first 10 examples of each set", "first 50 examples",
         "has only 10 examples", "selected on the evaluation set", "(ISO codes): en.", "base model (org/some-model)",
         "overlaps with the training data"], [],
    ),
    "many": (
        dict(metrics={"eval_accuracy": 0.9, "eval_samples": 5000}, seeds=[1, 2]), [],
        ["one run", "has only", "selected", "first", "tokens of", "overlaps"],
    ),
    "nothing measured": (
        dict(metrics={}, best_chosen=True, eval_samples=10, trained_on_results=True, base_model=None, from_scratch=True),
        ["Nothing was measured.", "The model was not evaluated", "on sst2 from random weights", "without pre-training"],
        ["evaluated only", "selected", "overlaps"],
    ),
    "windows": (dict(longest=384, pipeline="question-answering"), ["windows of at most 384", "AutoModelForQuestion"], []),
    "choices": (dict(longest=64, pipeline="multiple-choice"), ["choices of at most 64", "AutoModelForMultipleChoice"], []),
    "pairs": (dict(text_columns=["premise", "hypothesis"]), ['{"text": "A text.", "text_pair": "Another text."}'], []),
    "languages": (dict(language=["de", "en"]), ["(ISO codes): de, en."], []),
    "of the data": (dict(datasets=["clue/clue"]), ["(ISO codes): zh."], []),
    "unknown data": (dict(datasets=["someone/unknown"]), [], ["Languages of the data"]),
    "own text": (dict(opening="A toy.", limits=["It is a toy."], diverged="It diverged."),
                 ["\nA toy.\n", "## Limits\n\n- It is a toy.\n", "> **Warning.** It diverged."], []),
    "baselines": (dict(metrics=METRICS | dict(baselines={"majority class": {"accuracy": 0.5}})),
                  ["| metric | value | majority class |", "| accuracy | 0.9100 | 0.5000 |"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_sentences_are_those_of_the_run(name, tmp_path):
    facts, texts, absent = SENTENCES[name]
    card = card_of(tmp_path, **facts)
    assert_texts(card, *texts)
    assert [text for text in absent if text in card.text.replace(tmp_path.name, "")] == []


def pretrained(folder, metrics, name="DebertaExtForMaskedLM", **facts):
    model_in(folder, name, **DebertaExtConfig().to_dict() | dict(architectures=[name], auto_map={"AutoConfig": "a.B"}))
    (folder / "all_results.json").write_text(json.dumps(metrics), encoding="utf-8")
    return ModelCard.load(write_run_card(folder, RunFacts(**PRETRAINING | facts)))


def test_the_card_of_a_masked_language_model(tmp_path):
    card = pretrained(
        tmp_path, MLM, objectives={"mlm": "masked-language modelling", "sop": "sentence order prediction"},
        training={"data": ["a.txt", "b.txt"], "masking": {"unit": "span", "rate": 0.15}, "fill": 0.123456},
        hardware={"device": "CPU"}, base_model="org/a", base_model_id="org/a", language=["en"], license="mit",
        datasets=["org/texts"], tokens=12_345,
    )  # fmt: skip
    assert card.data.base_model == "org/a" and card.data.eval_results[0].metric_value == 7.389
    assert (card.data.language, card.data.license, card.data.datasets) == ("en", "mit", ["org/texts"])
    assert card.data.metrics == ["perplexity", "accuracy"] and card.data.eval_results[0].dataset_split is None
    assert_texts(
        card, "trained further from org/a", "| masked-language modelling | 2.0000 | 7.39 | 0.5000 | 1,234 |",
        "| sentence order prediction | 0.3000 |  | 0.9000 | 10 |", "| data | a.txt, b.txt |",
        "| masking | unit span, rate 0.15 |", "| fill | 0.1235 |",
        "## Hardware and time\n\n| | |\n| --- | --- |\n| device | CPU |", "The model only fills masks", "at most 64 tokens",
        "held-out documents of its training data",
    )  # fmt: skip
    # The training texts of the base model are not counted.
    assert "tokens of text" not in card.text
    scratch = pretrained(tmp_path, MLM, tokens=12_345)
    assert_texts(scratch, "12,345 tokens of text, far fewer", "seed 7")


@pytest.mark.parametrize("guessing", [False, True])
def test_a_joint_model_and_its_halves_have_a_card_each(guessing, tmp_path):
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
    for card in cards:
        assert card.data.base_model == "org/a"
        assert_texts(
            card, "trained further from org/a", "7.50% of all tokens were replaced.", "| seed | 7 |", 'repo = "run"',
            "0.0123 in the generator and 0.0456 in the discriminator",
            "| generator, masked tokens | 2.0000 | 7.39 | 0.5000 |  |  | 150 |",
        )  # fmt: skip
        assert ("curves.png" in card.text) == (card is joint)
        assert ("trained to propose replacements" in card.text) == (card is not discriminator)
        assert ("has learned nothing that helps" in card.text) == (guessing and card is not generator)
    assert_texts(discriminator, "from_pretrained(repo, num_labels=2", 'subfolder="discriminator"')


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_existing_card_keeps_its_text_and_gets_the_metadata(tmp_path, newline):
    text = "---\nlicense: mit\ntags:\n- a\nown_field: 1\n---\n\n# Mine\n\nText stays  as it is.\n".replace("\n", newline)
    (tmp_path / "README.md").write_bytes(text.encode())
    write_model_card(tmp_path)
    assert (tmp_path / "README.md").read_bytes() == text.encode()
    write_model_card(tmp_path, language=["en", "de"], tags=["b", "a"], base_model="org/base", datasets="org/data")
    assert (tmp_path / "README.md").read_bytes().decode().endswith(text.partition("# Mine")[2])
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "mit" and card.data.to_dict()["own_field"] == 1 and card.data.tags == ["a", "b"]
    assert (card.data.language, card.data.base_model, card.data.datasets) == (["en", "de"], "org/base", ["org/data"])


def test_a_section_replaces_its_earlier_form_or_comes_last(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("# Title\n\n## One\n\nold\n\n## Two\n\nstays\n", encoding="utf-8")
    put_section(card, "## One\n\nnew")
    put_section(card, "## Three\n\nlast")
    assert card.read_text(encoding="utf-8") == "# Title\n\n## One\n\nnew\n\n## Two\n\nstays\n\n## Three\n\nlast\n"


@pytest.mark.skipif(int(huggingface_hub.__version__.split(".")[0]) < 2, reason="huggingface_hub 1 asks the public Hub")
def test_the_command_writes_prints_and_lets_the_hub_check(hub, tmp_path, capsys):
    DebertaExtForMaskedLM(DebertaExtConfig(**SIZES)).save_pretrained(tmp_path)
    assert main(["card", str(tmp_path), "--language", "en", "--license", "mit", "--print"]) == 0
    assert "license: mit" in capsys.readouterr().out
    assert main(["card", str(tmp_path), "--check"]) == 0 and hub.sent("/api/validate-yaml")
    assert main(["card", str(tmp_path), "--check", "--language", "de", "--tags", "x"]) == 2
    assert "cannot be combined with flags that change the card: remove --check or --language, " in capsys.readouterr().err
    hub.fail("/api/validate-yaml", status=400, body=b'"license" must be one of [...]')
    assert main(["card", str(tmp_path), "--check"]) == 2
    assert '"license" must be one of' in capsys.readouterr().err
    assert main(["card", str(tmp_path / "none")]) == 2
