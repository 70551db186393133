# SPDX-License-Identifier: Apache-2.0
"""Model cards of folders: built from their files, completed, checked; and the code in all our cards, which is run."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from tiny_models import tiny_tokenizer
from transformers import AutoConfig, DebertaV2Config, DebertaV2ForMaskedLM
from without_package import run_without_package

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForMultipleChoice,
    DebertaExtForPreTraining,
    DebertaExtForQuestionAnswering,
    DebertaExtForSequenceClassification,
    DebertaExtForTokenClassification,
    DebertaExtModel,
)
from hf_deberta_ext.publishing.card import write_model_card, write_run_card
from hf_deberta_ext.publishing.card_checks import card_problems, missing_metadata
from hf_deberta_ext.publishing.facts import RunFacts, read_folder, shown_source

WORDS = "she sat on the bank of river where did paris is france a text . ?".split()
SIZES = dict(
    vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=64, position_buckets=8,
)  # fmt: skip
LABELS = dict(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
# Folder: class, fields of the configuration.
KINDS = {
    "classes": (DebertaExtForSequenceClassification, LABELS),
    "scores": (DebertaExtForSequenceClassification, dict(num_labels=1, problem_type="regression")),
    "several": (DebertaExtForSequenceClassification, LABELS | dict(problem_type="multi_label_classification")),
    "words": (DebertaExtForTokenClassification, LABELS),
    "answers": (DebertaExtForQuestionAnswering, {}),
    "choices": (DebertaExtForMultipleChoice, {}),
    "masks": (DebertaExtForMaskedLM, {}),
    "encoder": (DebertaExtModel, {}),
}
TASKS = {
    "classes": "text-classification", "scores": "text-classification", "several": "text-classification",
    "words": "token-classification", "answers": "question-answering", "choices": "multiple-choice",
}  # fmt: skip
MLM = dict(eval_mlm_loss=2.0, eval_mlm_perplexity=7.389, eval_mlm_accuracy=0.5, eval_mlm_targets=1234)
RTD = dict(
    eval_generator_loss=2.0, eval_generator_perplexity=7.389, eval_generator_accuracy=0.5, eval_generator_targets=150,
    eval_discriminator_loss=0.25, eval_discriminator_accuracy=0.95, eval_discriminator_precision=0.75,
    eval_discriminator_recall=0.25, eval_discriminator_targets=1000, eval_replaced_share=0.075,
    eval_generator_similarity=0.0123, eval_discriminator_similarity=0.0456, eval_discriminator_guess_loss=0.2664,
)  # fmt: skip
RESULTS = dict(
    eval_accuracy=0.91, eval_loss=0.25, eval_samples=872, eval_runtime=1.5, train_runtime=12.5, train_samples=240,
    epoch=3.0,
)  # fmt: skip


def save(model, folder):
    model.save_pretrained(folder)
    tiny_tokenizer(WORDS).save_pretrained(folder)
    return folder


def save_joint(folder):
    model = DebertaExtForPreTraining(DebertaExtConfig(**SIZES))
    save(model, folder)
    save(model.export_discriminator(), folder / "discriminator")
    save(model.export_generator(), folder / "generator")
    return folder


def code_of(folder):
    return ModelCard.load(folder / "README.md").text.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of every kind, and what became of the code in the card of each, where this package is not installed.

    Some have the card that is built from their files, and others that of a script: (folder by name, results by name).
    """
    pytest.importorskip("accelerate")
    place = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    made, jobs = {}, []
    for name, (kind, fields) in KINDS.items():
        made[name] = save(kind(DebertaExtConfig(**SIZES | fields)), place / name)
        made[f"{name}, script"] = save(kind(DebertaExtConfig(**SIZES | fields)), place / f"{name}-run")
    for name in ("joint", "joint, script"):
        made[name] = save_joint(place / name.replace(", ", "-"))
        made |= {f"{name}, {part}": made[name] / part for part in ("discriminator", "generator")}
    config = DebertaV2Config(
        **SIZES | dict(type_vocab_size=0), relative_attention=True, position_biased_input=False, pos_att_type="p2c|c2p",
        share_att_key=True, norm_rel_ebd="layer_norm",
    )  # fmt: skip
    made["stock"] = save(DebertaV2ForMaskedLM(config), place / "stock")
    made["bare"] = place / "bare"
    DebertaExtForMaskedLM(DebertaExtConfig(**SIZES)).save_pretrained(made["bare"])
    if importlib.util.find_spec("peft") is not None:
        made |= adapters(place)

    for name, folder in made.items():
        if name.endswith("script"):
            write_script_card(name.removesuffix(", script"), folder)
        elif ", " not in name:
            write_model_card(folder)
    for name, folder in made.items():
        # Halves of a joint model are named with its folder.
        above = folder.parents[1] if folder.name in ("discriminator", "generator") else folder.parent
        jobs.append(dict(name=name, kind="code", source=str(above), code=code_of(folder)))
    return made, run_without_package(jobs, tmp_path_factory.mktemp("work"))


def adapters(place):
    """LoRA: of our model, with its configuration and code beside it, as scripts leave it, or alone, as peft does."""
    import peft

    made = {}
    for name in ("adapter", "adapter, script", "plain adapter"):
        folder = place / name.replace(", ", "-").replace(" ", "-")
        base = save(DebertaExtForSequenceClassification(DebertaExtConfig(**SIZES | LABELS)), place / f"{folder.name}-base")
        config = peft.LoraConfig(r=2, target_modules=["query_proj"], modules_to_save=["classifier"], task_type="SEQ_CLS")
        model = peft.get_peft_model(DebertaExtForSequenceClassification.from_pretrained(base), config)
        model.save_pretrained(folder)
        # peft's own, which says nothing.
        (folder / "README.md").unlink(missing_ok=True)
        if name != "plain adapter":
            tiny_tokenizer(WORDS).save_pretrained(folder)
            model.get_base_model().config.save_pretrained(folder)
        made[name] = folder
    return made


def write_script_card(name, folder):
    """The card of a run, of which the facts are these."""
    facts = dict(training={"seed": 7}, hardware={"device": "CPU"}, limits=["It is small."])
    if name in TASKS or name == "adapter":
        columns = ["premise", "hypothesis"] if name == "classes" else ["text"]
        facts |= dict(
            task=name, pipeline=TASKS.get(name, "text-classification"), measured_on="dev.tsv", text_columns=columns,
            parameters=1000, trained_parameters=10,
        )  # fmt: skip
    results = {"joint": RTD, "masks": MLM, "encoder": {}}.get(name, RESULTS)
    (folder / "all_results.json").write_text(json.dumps(results), encoding="utf-8")
    return write_run_card(folder, RunFacts(**facts))


NAMES = [
    *KINDS, *(f"{name}, script" for name in KINDS), "joint", "joint, discriminator", "joint, generator", "joint, script",
    "joint, script, discriminator", "joint, script, generator", "stock", "bare", "adapter", "adapter, script",
    "plain adapter",
]  # fmt: skip
PRINTED = {
    "classes": "'label': ", "several": "'good'", "words": "'entity_group'", "encoder": "torch.Size([1, ",
    "choices": "She had a ", "masks": "'token_str'", "stock": "'token_str'", "joint, generator": "'token_str'",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_card_that_we_write_has_no_problem_and_its_code_runs_without_the_package(name, folders):
    made, results = folders
    assert {*made} <= {*NAMES}
    folder = made.get(name) or pytest.skip("peft is not installed")
    assert card_problems((folder / "README.md").read_text(encoding="utf-8"), folder) == []
    assert "error" not in results[name], results[name]["traceback"]
    assert PRINTED.get(name, "") in results[name]["printed"]


def test_cards_of_our_models_bring_code_and_stock_ones_do_not(folders):
    made, _ = folders
    for name in {"classes", "joint", "adapter"} & {*made}:
        assert "trust_remote_code=True" in code_of(made[name]), name
    text = (made["stock"] / "README.md").read_text(encoding="utf-8")
    assert "trust_remote_code" not in text and "A DeBERTa v2 or v3 masked language model (DebertaV2ForMaskedLM)" in text


def run_folder(folder, **arguments):
    """A text classifier with all that a run leaves."""
    folder.mkdir(parents=True)
    config = DebertaExtConfig(**SIZES | LABELS)
    save(DebertaExtForSequenceClassification(config), folder)
    (folder / "curves.png").touch()
    arguments = dict(
        task_name="sst2", model_name_or_path="org/base", train_file=[f"{folder.parent}/train.tsv"], learning_rate=2e-5,
        validation_file=[f"mm={folder.parent}/dev.tsv"], seed=7, lora=False, bf16=True, weight_decay=0.0, language=None,
    ) | arguments  # fmt: skip
    state = dict(global_step=90, epoch=3.0, best_metric=0.91, best_model_checkpoint=f"{folder}/checkpoint-60")
    contents = {"all_results": RESULTS, "run_arguments": arguments, "trainer_state": state}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_a_card_tells_what_the_files_of_a_run_tell(tmp_path):
    folder = run_folder(tmp_path / "run")
    card = ModelCard.load(write_model_card(folder, language="en", license="mit", tags=["reviews"]))
    data = card.data
    assert (data.language, data.license, data.base_model, data.pipeline_tag) == (
        "en", "mit", "org/base", "text-classification",
    )  # fmt: skip
    assert data.tags == ["deberta", "hf_deberta_ext", "reviews"] and data.metrics == ["accuracy"] and data.datasets is None
    result = data.eval_results[0]
    assert (result.dataset_name, result.dataset_type, result.metric_value) == ("sst2", "text", 0.91)
    for text in (
        "A DeBERTa text classifier (DebertaExtForSequenceClassification), fine-tuned on sst2 from org/base.",
        "Its labels are bad, good.", "| accuracy | 0.9100 |", "Measured on dev.tsv. Examples: 872.", "| data | train.tsv |",
        "| learning rate | 2e-05 |", "| steps | 90 |", "| epochs | 3 |", "| best checkpoint | checkpoint-60, 0.91 |",
        "| seconds of training | 12.5 |", "| precision | bf16 autocast |", "the seed 7", "![Losses", "| layers | 2 |",
        "872 examples are few", "| type of the weights | float32 |", "began as (org/base)",
    ):  # fmt: skip
        assert text in card.text, text
    assert str(tmp_path) not in card.content and "weight decay" not in card.text and "loss |" in card.text


def test_parameters_are_counted_from_the_headers_of_the_weights(tmp_path):
    model = DebertaExtForMaskedLM(DebertaExtConfig(**SIZES))
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="5KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    encoder, embeddings = (
        sum(parameter.numel() for parameter in part.parameters())
        for part in (model.deberta.encoder, model.deberta.embeddings)
    )
    total, heads = model.num_parameters(), model.num_parameters() - encoder - embeddings
    for name in ("one", "shards"):
        counts = read_folder(tmp_path / name).parameters()
        assert counts == dict(all=total, embeddings=embeddings, encoder=encoder, heads=heads)
    row = f"| parameters | {total:,}: embeddings {embeddings:,}, encoder {encoder:,}, heads {heads:,} |"
    assert row in write_model_card(tmp_path / "one").read_text(encoding="utf-8")


def test_a_joint_model_has_the_sizes_of_both_halves_and_cards_for_them_which_keep_theirs(tmp_path):
    folder = save_joint(tmp_path / "joint")
    card_in(folder / "generator", "mine")
    text = write_model_card(folder, license="mit").read_text(encoding="utf-8")
    model = DebertaExtForPreTraining.from_pretrained(folder)
    assert f"| parameters, discriminator | {sum(p.numel() for p in model.discriminator.parameters()):,}: " in text
    assert "| parameters, generator | " in text and "Generator and discriminator of replaced token detection" in text
    half = ModelCard.load(folder / "discriminator" / "README.md")
    assert "# joint: discriminator" in half.text and half.data.license == "mit"
    assert (folder / "generator" / "README.md").read_text(encoding="utf-8") == "mine"
    write_model_card(folder, overwrite=True)
    assert "# joint: generator" in (folder / "generator" / "README.md").read_text(encoding="utf-8")
    assert [file.relative_to(folder).as_posix() for file in folder.rglob("README.md.old*")] == ["generator/README.md.old-1"]


def test_a_checkpoint_of_a_pre_training_says_its_data_and_masking(tmp_path):
    folder = save(DebertaExtForMaskedLM(DebertaExtConfig(**SIZES)), tmp_path / "run")
    arguments = dict(
        train_data=[f"{tmp_path}/corpus"], card_language="de", masking="word", masking_rate=0.15, model=None, seed=1
    )
    (folder / "run_arguments.json").write_text(json.dumps(arguments), encoding="utf-8")
    (folder / "eval_results.json").write_text(json.dumps(MLM), encoding="utf-8")
    card = ModelCard.load(write_model_card(folder))
    assert card.data.language == "de" and card.data.pipeline_tag == "fill-mask" and card.data.base_model is None
    for text in (
        "| data | corpus |", "| share of masked tokens | 0.15 |", "| mlm_perplexity | 7.3890 |",
        "held-out documents of the data that it was trained on",
    ):  # fmt: skip
        assert text in card.text, text


def test_what_is_not_known_is_not_invented(folders):
    card = ModelCard.load(folders[0]["masks"] / "README.md")
    data = card.data
    assert (data.language, data.license, data.base_model, data.datasets, data.eval_results) == (None,) * 5
    for heading in ("## Results", "## Training", "## Hardware and time"):
        assert heading not in card.text
    assert "Nothing was measured" in card.text and "How it was trained is not in its folder." in card.text
    assert "The folder has no tokenizer" in (folders[0]["bare"] / "README.md").read_text(encoding="utf-8")


def test_a_local_base_is_named_and_no_id_and_a_resumed_run_knows_only_the_seconds_since(tmp_path):
    (tmp_path / "models" / "base").mkdir(parents=True)
    folder = run_folder(tmp_path / "runs" / "run", model_name_or_path="models/base", dataset_name="runs/run")
    (folder / "all_results.json").write_text(json.dumps(RESULTS | dict(train_resumed_at_step=50)), encoding="utf-8")
    card = ModelCard.load(write_model_card(folder))
    assert card.data.base_model is None and card.data.datasets is None and "fine-tuned on sst2 from models/base" in card.text
    assert "| seconds of training, from step 50 on | 12.5 |" in card.text


def test_models_with_absolute_positions_say_how_many_and_settings_alone_are_no_tokenizer(tmp_path):
    DebertaExtForMaskedLM(DebertaExtConfig(**SIZES | dict(position_biased_input=True))).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    text = write_model_card(tmp_path).read_text(encoding="utf-8")
    assert "It has positions for 64 tokens" in text
    assert not read_folder(tmp_path).has_tokenizer and "AutoTokenizer" not in text


def test_paths_are_shown_by_name_and_ids_as_they_are():
    home = "/" + "home" + "/someone/"
    assert shown_source(f"mm={home}dev.tsv") == "dev.tsv" and shown_source(f"{home}run/discriminator") == "run/discriminator"
    assert shown_source("C:\\Users\\me\\dev.tsv") == "dev.tsv" and shown_source("../data/dev.tsv") == "dev.tsv"
    assert shown_source("org/base") == "org/base" and shown_source("bert-base-cased") == "bert-base-cased"
    assert shown_source("a/b/c") == "c" and shown_source("..") == Path("..").resolve().name


OURS = "---\nlicense: mit\ntags:\n- a\nown_field: 1\n---\n\n# Mine\n\nText stays  as it is.\n"


def card_in(folder, text, newline="\n"):
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_bytes(text.replace("\n", newline).encode())
    return folder / "README.md"


def test_only_the_metadata_that_are_given_are_set(tmp_path):
    file = card_in(tmp_path, OURS)
    write_model_card(tmp_path, language=["en", "de"], tags=["b", "a"], base_model="org/base", datasets="org/data")
    card = ModelCard.load(file)
    assert card.text == "\n# Mine\n\nText stays  as it is.\n" and card.data.license == "mit"
    assert card.data.to_dict()["own_field"] == 1 and card.data.tags == ["a", "b"]
    assert (card.data.language, card.data.base_model, card.data.datasets) == (["en", "de"], "org/base", ["org/data"])
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]


def test_line_ends_and_results_stay_and_without_metadata_to_set_every_byte(tmp_path):
    index = (
        "model-index:\n- name: m\n  results:\n  - task:\n      type: x\n    dataset:\n      name: d\n      type: t\n"
        "    metrics:\n    - type: f1\n      value: 0.5\n"
    )
    text = OURS.replace("own_field: 1\n", index).replace("license: mit", 'license:   "mit"  # mine')
    file = card_in(tmp_path, text, "\r\n")
    before = file.read_bytes()
    assert write_model_card(tmp_path) == file and file.read_bytes() == before
    write_model_card(tmp_path, license="apache-2.0")
    text = file.read_bytes().decode()
    assert text.count("\n") == text.count("\r\n") and "Text stays  as it is.\r\n" in text
    card = ModelCard(text)
    assert card.data.license == "apache-2.0" and card.data.eval_results[0].metric_value == 0.5


def test_a_card_without_metadata_gets_them_above_its_text(tmp_path, caplog):
    file = card_in(tmp_path, "# Mine\n\nText.\n")
    write_model_card(tmp_path, license="mit")
    assert file.read_text(encoding="utf-8") == "---\nlicense: mit\n---\n\n# Mine\n\nText.\n"
    assert "not found" not in caplog.text


def test_a_broken_card_is_kept_unless_it_is_overwritten(tmp_path):
    folder = save(DebertaExtModel(DebertaExtConfig(**SIZES)), tmp_path / "run")
    for metadata in ("license: [mit", "model-index:\n- name: m", "- a"):
        broken = f"---\n{metadata}\n---\n# Mine\n"
        file = card_in(folder, broken)
        with pytest.raises(ValueError, match=r"README\.md cannot be read: .*--overwrite"):
            write_model_card(folder, license="mit")
        assert [one.name for one in folder.glob("README*")] == ["README.md"] and file.read_text(encoding="utf-8") == broken
    assert card_problems(write_model_card(folder, overwrite=True).read_text(encoding="utf-8"), folder) == []


def test_a_card_that_is_overwritten_is_kept_beside_the_new_one(tmp_path):
    """It was lost."""
    folder = save(DebertaExtModel(DebertaExtConfig(**SIZES)), tmp_path / "run")
    first = write_model_card(folder).read_bytes()
    # The same text again, with other metadata: nothing to keep.
    write_model_card(folder, overwrite=True, license="mit")
    assert [*folder.glob("README.md.old*")] == []
    for number, mine in enumerate((b"# Mine\n\nText.\n", b"\xff\xfe"), start=1):
        (folder / "README.md").write_bytes(mine)
        assert write_model_card(folder, overwrite=True).read_bytes() == first
        assert (folder / f"README.md.old-{number}").read_bytes() == mine
    (folder / "README.md").write_bytes(b"# Mine\n")
    (folder / "trainer_state.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is not JSON"):
        write_model_card(folder, overwrite=True)
    assert (folder / "README.md").read_bytes() == b"# Mine\n" and not (folder / "README.md.old-3").exists()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no folder of a model: it has neither"):
        write_model_card(tmp_path)
    with pytest.raises(ValueError, match="nowhere is no folder"):
        write_model_card(tmp_path / "nowhere")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"[1]", "config.json must hold a JSON object, not a list"),
        ("trainer_state.json", b"{", "trainer_state.json is not JSON"),
        ("model.safetensors", b"", "model.safetensors is truncated or damaged"),
        ("model.safetensors.index.json", b'{"weight_map": ["a"]}', "model.safetensors.index.json must name a file"),
    ],
)
def test_damaged_files_are_named(name, content, message, tmp_path):
    AutoConfig.for_model("deberta-ext", **SIZES).save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        write_model_card(tmp_path)
    assert str(tmp_path) in str(raised.value) and not (tmp_path / "README.md").exists()


GOOD = "---\nlicense: mit\nlanguage: en\n---\n\n# A\n\nText.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# A\n\nText.\n", "it has no metadata"),
        (GOOD.replace("mit", "[mit"), "its metadata is no YAML"),
        (GOOD.replace("license: mit\nlanguage: en", "- a"), "must be fields with values, got list"),
        (GOOD.replace("license: mit\nlanguage: en\n", ""), "must be fields with values, got nothing"),
        (GOOD.replace("mit", "MIT"), "is it mit?"),
        (GOOD.replace("en", "no"), 'write "no" in quotes'),
        (GOOD.replace("en", "english"), "no language 'english'"),
        (GOOD.replace("mit", "mit\nbase_model: ../base"), "base_model must hold ids of the Hub, got '../base'"),
        (GOOD.replace("mit", "mit\ndatasets:\n- a b"), "datasets must hold ids of the Hub, got 'a b'"),
        (GOOD.replace("mit", "mit\ntags:\n- 1"), "tags must be texts, got 1"),
        (GOOD.replace("mit", "mit\nmodel-index: 1"), "its model-index is not what the Hub reads"),
        (GOOD.replace("mit", "mit\nmodel-index:\n- name: a"), "its model-index is not what the Hub reads"),
        (GOOD.partition("# A")[0], "it says nothing below its metadata"),
        (GOOD + "\n## B\n", "line 10: the heading 'B' has no text"),
        (GOOD + "\n## B\n\n## C\n\nText.\n", "line 10: the heading 'B' has no text"),
        (GOOD + "\n## B\n\n### C\n\n## D\n\nText.\n", "line 12: the heading 'C' has no text"),
        (GOOD + "\n[More Information Needed]\n", "line 10 has '[More Information Needed]'"),
        (GOOD + "\n{{ model_id }}\n", "still to be filled in"),
        (GOOD + "\n```python\nx = 1\ny = (\n```\n", "line 12: the code does not parse"),
    ],
)
def test_a_problem_is_named_with_its_line(text, said):
    problems = card_problems(text)
    assert len(problems) == 1 and said in problems[0]


@pytest.mark.parametrize(
    "more",
    [
        "", "## B\n\n### C\n\nText.\n", "## B\n\n```\ncode\n```\n", "## B\n\n| a |\n| --- |\n", "Todo lo que hay.\n",
        "```bash\n# no heading\n# another\n```\n", "```python\n>>> x = 1\n1\n```\n",
        "```python\n# TODO is the code's own\n```\n",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_problem_is_none(more):
    text = f"{GOOD}\n{more}"
    assert card_problems(text) == card_problems(text.replace("\n", "\r\n")) == card_problems("\ufeff" + text) == []


@pytest.mark.parametrize(("value", "valid"), [("0.5", True), (".nan", False), ("null", False), ("[1]", False)])
def test_values_of_the_model_index_must_be_there(value, valid):
    index = (
        "mit\nmodel-index:\n- name: m\n  results:\n  - task: {type: x}\n    dataset: {name: d, type: t}\n"
        f"    metrics:\n    - {{type: f1, value: {value}}}"
    )
    problems = card_problems(GOOD.replace("mit", index))
    assert valid is not any("no value for f1 of d" in problem for problem in problems)


def loading(options):
    return f'{GOOD}\n```python\nmodel = AutoModel.from_pretrained("a/b"{options})\n```\n'


def test_code_that_loads_fits_the_folder(tmp_path):
    trust, fixed = ", trust_remote_code=True", ', revision="v1"'
    (tmp_path / "config.json").write_text('{"auto_map": {}}', encoding="utf-8")
    assert card_problems(loading(trust + fixed), tmp_path) == []
    assert "lacks trust_remote_code=True" in card_problems(loading(fixed), tmp_path)[0]
    assert "loads no fixed revision" in card_problems(loading(trust), tmp_path)[0]
    assert "no Python code that loads the model" in card_problems(GOOD, tmp_path)[0]
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert card_problems(loading(fixed), tmp_path) == [] and card_problems(GOOD, tmp_path) == []
    assert "the folder brings no code" in card_problems(loading(trust + fixed), tmp_path)[0]
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "is no JSON" in card_problems(GOOD, tmp_path)[0]


def test_pictures_are_in_the_folder(tmp_path):
    (tmp_path / "there.png").touch()
    fine = "![a](there.png) ![b](https://x.org/y.png) <img src='there.png'>\n\n`![c](gone.png)`"
    assert card_problems(f"{GOOD}\n{fine.partition('`')[0]}\n", tmp_path) == []
    gone = card_problems(f'{GOOD}\n![a](gone.png)\n<img width=5 src="gone.svg">\n', tmp_path)
    assert [problem.partition(" shows ")[0] for problem in gone] == ["line 10", "line 11"]
    assert "which is not in the folder" in gone[0] and card_problems(f"{GOOD}\n![a](gone.png)\n") == []
    local = card_problems(f"{GOOD}\n![a]({tmp_path}/there.png)\n", tmp_path)
    assert "a place on one machine" in local[0]


def test_missing_metadata_are_named_with_their_flags():
    assert missing_metadata(GOOD) == []
    assert missing_metadata("# A\n") == ["language (--language en)", "license (--license apache-2.0)"]
    assert missing_metadata(GOOD.replace("en\n", "[pt, pt-BR]\n")) == [] == card_problems(GOOD.replace("en\n", "pt-BR\n"))
    assert missing_metadata(GOOD.replace("en\n", "[pt-BR, pt-PT]\n")) == [
        "language pt beside pt-BR: the Hub lists models by the language alone"
    ]
    assert missing_metadata(GOOD.replace("mit", "other")) == ["license_name, beside license: other"]
    assert missing_metadata("---\n- a\n---\n") == missing_metadata("---\nlicense: [\n---\n") == missing_metadata("")
