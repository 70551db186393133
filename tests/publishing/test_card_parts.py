# SPDX-License-Identifier: Apache-2.0
"""The frame of all model cards, the names that the Hub knows, and what a card says of results, hardware and loading."""

import ast
import itertools
import json
from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard

from hf_deberta_ext.data.languages import LANGUAGES, language_problem, primary_language
from hf_deberta_ext.publishing.card import facts_table, put_section, render_card, shown_number
from hf_deberta_ext.publishing.card_metadata import (
    LICENSES,
    as_list,
    check_metadata,
    is_hub_id,
    license_problem,
    one_or_list,
)
from hf_deberta_ext.publishing.loading_code import AUTO_MODELS, LOADING_LINES, loading_code, published_card
from hf_deberta_ext.publishing.results import (
    eval_results,
    is_score,
    measured_metrics,
    number_of_examples,
    results_table,
)

pytest.importorskip("accelerate")

WHOLE = dict(
    title="run", opening="What it is.", metadata=dict(license="mit"), load="x = 1", brings_code=True, results="Good.",
    training={"steps": 7}, hardware={"device": "CPU"}, limits=["It is small.", "It is slow."], sizes={"layers": 12},
)  # fmt: skip
METRICS = dict(
    train_loss=0.5, train_runtime=12.0, epoch=3.0, eval_loss=0.25, eval_accuracy=0.91, eval_samples=872,
    eval_runtime=1.5, eval_samples_per_second=580.0, eval_steps_per_second=70.0, eval_model_preparation_time=0.1,
    eval_mm_accuracy=0.9, eval_mm_loss=0.3, eval_mm_samples=1010, eval_mm_runtime=1.0, eval_mm_steps_per_second=3.0,
    predict_accuracy=0.8, predict_samples=5,
)  # fmt: skip
SQUAD = dict(
    eval_exact=70.0, eval_f1=75.5, eval_total=100, eval_HasAns_f1=71.0, eval_HasAns_total=60, eval_best_f1=76.0,
    eval_best_f1_thresh=-1.25, eval_samples=100,
)  # fmt: skip


def test_every_part_of_a_card_has_its_heading_in_order():
    card = ModelCard(render_card(**WHOLE))
    headings = [line for line in card.text.splitlines() if line.startswith("#")]
    assert headings == ["# run", *(f"## {name}" for name in (
        "How to load it", "Results", "Training", "Hardware and time", "Limits", "Sizes",
    ))]  # fmt: skip
    assert "```python\nx = 1\n```" in card.text and "runs on your machine: pin a revision" in card.text
    assert "| steps | 7 |" in card.text and "- It is small.\n- It is slow.\n" in card.text
    assert (card.data.license, card.data.library_name) == ("mit", "transformers")
    assert "\n\n\n" not in card.text and card.content.endswith("| layers | 12 |\n")


@pytest.mark.parametrize("part", ["load", "results", "training", "hardware", "limits", "sizes"])
def test_what_is_empty_has_no_heading(part):
    text = render_card(**{**WHOLE, part: type(WHOLE[part])()})
    headings = {"load": "How to load it", "hardware": "Hardware and time"}
    assert f"## {headings.get(part, part.capitalize())}" not in text and text.count("\n## ") == 5
    assert ("pin a revision" in text) == (part != "load")


def test_a_name_is_in_the_metadata_only_beside_results():
    assert "model_name" not in render_card(**WHOLE) and "model-index" not in render_card(**WHOLE)
    result = EvalResult("other", "text", "some text", "accuracy", 0.5)
    card = ModelCard(render_card(**WHOLE | dict(metadata=dict(eval_results=[result]))))
    assert card.data.model_name == "run" and "model_name" not in card.content


def test_what_is_published_loads_the_repository_at_its_revision():
    card = render_card(**WHOLE | dict(load=LOADING_LINES.format(repo="a-run") + "\nmodel = 1"))
    pinned = published_card(card, "README.md", "user/name", "v1.0", pinned=True)
    assert '\nrepo = "user/name"\nrevision = "v1.0"  # pins weights and code\nmodel = 1\n' in pinned
    # Again, for another tag.
    assert 'revision = "v2.0"' in published_card(pinned, "README.md", "user/name", "v2.0", pinned=True)
    branch = published_card(card, "README.md", "user/name", "main", pinned=False)
    assert 'revision = "main"  # for good: the id of a commit' in branch
    assert published_card("no code", "README.md", "user/name", "v1.0", pinned=True) == "no code"


def test_cells_of_a_table_are_one_line_without_bars_and_large_numbers_of_parameters_millions():
    facts = {"text": "a|b\nc", "number": 0.123456, "list": [1, "b"], "parts": {"rate": 0.15, "unit": "word"}}
    rows = facts_table(facts).splitlines()[2:]
    assert rows == ["| text | a\\|b c |", "| number | 0.1235 |", "| list | 1, b |", "| parts | rate 0.15, unit word |"]
    assert results_table({"f1": 75.5, "loss": 0.25}).splitlines()[2:] == ["| f1 | 75.5000 |", "| loss | 0.2500 |"]
    assert [shown_number(count) for count in (12_345_678, 184_000, 1234)] == ["12.3 million", "0.2 million", "1,234"]


@pytest.mark.parametrize(
    ("name", "problem"), [("MIT", "is it mit?"), ("apache-2", "is it apache-2.0?"), ("mine", "'other'"), (2, "no license 2")]
)
def test_licenses_of_the_hub_are_no_problem_and_others_named_with_the_nearest_that_there_is(name, problem):
    assert problem in license_problem(name) and name not in LICENSES
    for license in ("mit", "apache-2.0", "cc-by-sa-4.0", "openrail++", "other"):
        assert license_problem(license) is None and license in LICENSES


def test_iso_codes_are_languages_and_other_names_a_problem():
    codes = "en zh sw multilingual code nds en-US pt-br zh-Hant zh-Hant-TW es-419 sl-rozaj"
    assert [name for name in codes.split() if language_problem(name) is not None] == []
    for name in [*"english En xx xx-US EN-us en_US en- en-USA1 multilingual-US".split(), "", None, 1]:
        assert f"no language {name!r}" in language_problem(name)
    assert 'write "no" in quotes' in language_problem(False)
    assert [primary_language(name) for name in ("pt", "pt-BR", "zh-Hant-TW", "no tag")] == ["pt", "pt", "zh", ""]


def test_the_languages_are_those_that_datasets_lists():
    datasets = pytest.importorskip("datasets")
    file = Path(datasets.__file__).parent / "utils" / "resources" / "languages.json"
    if not file.is_file():
        pytest.skip("this version of datasets has no such list")
    assert {name for name in json.loads(file.read_text(encoding="utf-8")) if len(name) == 2} == LANGUAGES


def test_wrong_metadata_name_the_flag():
    check_metadata(language=["en", "de"], license="mit")
    check_metadata()
    with pytest.raises(ValueError, match="--card_language: there is no language 'english'"):
        check_metadata(language=["en", "english"], flag="--card_language")


def test_ids_of_the_hub_have_one_slash_at_most_and_metadata_are_one_value_or_a_list():
    assert all(map(is_hub_id, ("bert-base-cased", "org/name.v2", "a_b/c-d")))
    assert not any(map(is_hub_id, (None, "", "a/b/c", "./a", "../a", "~/a", "/" + "a", "a b", "made here", "a,b")))
    assert [as_list(value) for value in (None, "en", ["en"], ("en", "de"))] == [[], ["en"], ["en"], ["en", "de"]]
    assert [one_or_list(values) for values in ([], ["en"], ["en", "de"])] == [None, "en", ["en", "de"]]


def test_results_are_metrics_without_speeds_and_counts_and_scores_no_losses_or_thresholds():
    assert measured_metrics(METRICS) == {"accuracy": 0.91, "mm_accuracy": 0.9, "loss": 0.25, "mm_loss": 0.3}
    assert [*measured_metrics(METRICS)][-2:] == ["loss", "mm_loss"]
    assert measured_metrics(METRICS, "predict") == {"accuracy": 0.8}
    assert {*measured_metrics(SQUAD)} == {"exact", "f1", "HasAns_f1", "best_f1", "best_f1_thresh"}
    assert measured_metrics(dict(eval_mlm_loss=2.0, eval_mlm_targets=9)) == {"mlm_loss": 2.0}
    assert number_of_examples(METRICS) == {"": 872, "mm": 1010} and number_of_examples(METRICS, "predict") == {"": 5}
    assert measured_metrics({}) == number_of_examples({}) == {}
    scores = [name for name in measured_metrics(SQUAD | METRICS) if is_score(name)]
    assert scores == ["exact", "f1", "HasAns_f1", "accuracy", "mm_accuracy"]


def test_metrics_of_groups_and_averages_are_those_that_the_hub_knows_with_a_note_behind_their_name():
    measured = dict(PER_f1=0.5, macro_f1=0.4, HasAns_exact=70.0, matthews_correlation=0.3)
    common = dict(task_type="other", dataset=None, dataset_name="text")
    assert [(result.metric_type, result.metric_name) for result in eval_results(measured, sets={}, **common)] == [
        ("f1", "PER_f1"), ("f1", "macro_f1"), ("HasAns_exact", None), ("matthews_correlation", None),
    ]  # fmt: skip
    (result,) = eval_results({"f1": 0.123456}, note="mean of 3 seeds", sets={"": (None, None)}, **common)
    assert (result.metric_type, result.metric_name, result.metric_value) == ("f1", "f1 (mean of 3 seeds)", 0.1235)
    assert (result.dataset_type, result.dataset_split) == ("text", None)


@pytest.mark.parametrize("custom", [False, True], ids=["stock", "custom"])
@pytest.mark.parametrize("kind", [*AUTO_MODELS, "fine-tune", "joint"])
def test_every_call_that_loads_has_the_revision_and_trusts_only_custom_code(kind, custom):
    code = loading_code(kind, "run", custom_code=custom)
    tree = ast.parse(code)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {"from_pretrained": "attr", "pipeline": "id"}
    loading = [call for call in calls if any(getattr(call.func, kind, "") == name for name, kind in names.items())]
    assert loading
    for call in loading:
        given = {keyword.arg for keyword in call.keywords}
        assert "revision" in given and ("trust_remote_code" in given) == custom
    assert LOADING_LINES.format(repo="run") in code and max(map(len, code.splitlines())) <= 125


@pytest.mark.parametrize(("own_config", "tokenizer", "custom"), itertools.product([False, True], repeat=3))
@pytest.mark.parametrize("kind", AUTO_MODELS)
def test_adapters_name_the_model_that_they_are_for(kind, custom, own_config, tokenizer):
    code = loading_code(
        kind, "run", custom_code=custom, adapter_base="org/base", base_revision="v2", own_config=own_config,
        tokenizer=tokenizer,
    )  # fmt: skip
    ast.parse(code)
    assert 'base = "org/base"' in code and 'base_revision = "v2"' in code
    assert "PeftModel.from_pretrained(model, repo, revision=revision)" in code
    assert ("AutoConfig" in code) == own_config
    assert ("AutoTokenizer.from_pretrained(repo" in code) == tokenizer
    assert ("trust_remote_code=True" in code) == custom and max(map(len, code.splitlines())) <= 125


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (dict(texts=('Say "a".', "b\\c")), 'classify({"text": "Say \\"a\\".", "text_pair": "b\\\\c"})'),
        ({}, 'classify("A text.")'),
        (dict(adapter_base="a/b", texts=("a", "b")), 'tokenizer("a", "b", return_tensors="pt")'),
        (dict(adapter_base="a/b", problem_type="regression"), "logits.item()"),
        (dict(adapter_base="a/b", problem_type="multi_label_classification"), "if logit > 0"),
        (dict(problem_type="multi_label_classification"), "top_k=None"),
    ],
)
def test_texts_are_quoted_pairs_are_pairs_and_scores_and_several_labels_shown_as_such(options, shown):
    assert shown in loading_code("text-classification", "run", custom_code=False, **options)


def test_a_folder_without_tokenizer_loads_the_model_alone():
    mlm, joint = (loading_code(kind, "run", custom_code=True, tokenizer=False) for kind in ("fill-mask", "joint"))
    assert "AutoModelForMaskedLM.from_pretrained(repo, revision=revision, trust_remote_code=True)" in mlm
    assert "Tokenizer" not in mlm and "AutoModelForPreTraining" in joint


@pytest.mark.parametrize("before", ["", "## Scores\n\nold \\1\n\n"], ids=["new", "there"])
def test_a_section_stands_in_place_of_the_one_of_its_name_or_at_the_end(before, tmp_path):
    card, section = tmp_path / "README.md", "## Scores\n\n| \\1 |\n"
    card.write_text(f"# A card\n\n{before}## Scores of others\n\nNone.\n", encoding="utf-8")
    for _ in range(2):
        put_section(card, section)
        headings = ["## Scores", "## Scores of others"][:: 1 if before else -1]
        lines = card.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("## ")] == headings
        assert lines[lines.index("## Scores") + 2] == "| \\1 |" and "old" not in card.read_text(encoding="utf-8")
