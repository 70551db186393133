# SPDX-License-Identifier: Apache-2.0
"""The cards of the official checkpoints: sizes against arithmetic and published numbers, sources, snippets that run."""

import functools
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_deberta_ext import (
    DebertaExtConfig,
    DebertaExtForMaskedLM,
    DebertaExtForPreTraining,
    DebertaExtForReplacedTokenDetection,
)
from hf_deberta_ext.commands import command_parser
from hf_deberta_ext.commands import main as deberta_ext
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2, to_deberta_v2_state_dict
from hf_deberta_ext.finetuning.arguments import parse
from hf_deberta_ext.finetuning.recipes import find_recipe
from hf_deberta_ext.finetuning.tasks.text_classification import TextClassificationArguments
from hf_deberta_ext.model.configuration_deberta_ext import PRESETS
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe
from hf_deberta_ext.publishing import preset_cards
from hf_deberta_ext.publishing.model_card import card_problems, missing_metadata
from hf_deberta_ext.publishing.parameter_counts import count_parameters
from hf_deberta_ext.publishing.preset_cards import PRESET_CARDS, file_size, preset_card, preset_index, write_preset_cards
from hf_deberta_ext.publishing.published import BENCHMARKS, PUBLISHED, Published, Result, Size, Source

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "model_cards"
every_preset = pytest.mark.parametrize("preset", PUBLISHED)

# V, H, L, feed-forward, and the largest published difference of the encoder in percent, rounded up.
SHAPES = {
    "v2-xxlarge": (128100, 1536, 48, 6144, 4), "v2-xlarge": (128100, 1536, 24, 6144, 4),
    "xlarge": (50265, 1024, 48, 4096, 1), "large": (50265, 1024, 24, 4096, 2), "base": (50265, 768, 12, 3072, 0.1),
    "v3-large": (128100, 1024, 24, 4096, 0.5), "v3-base": (128100, 768, 12, 3072, 1), "v3-small": (128100, 768, 6, 3072, 3),
    "v3-xsmall": (128100, 384, 12, 1536, 3), "mdeberta-v3-base": (251000, 768, 12, 3072, 1),
}  # fmt: skip


# Cards are made once where nothing in them is changed.
card_of = functools.cache(preset_card)


def body(preset):
    """The card without its metadata."""
    return card_of(preset).split("\n---\n", 1)[1]


@pytest.fixture
def made_once(monkeypatch):
    """For tests of what becomes of the files."""
    monkeypatch.setattr(preset_cards, "preset_card", card_of)


def snippets(preset):
    return re.findall(r"^```python\n(.*?)^```$", card_of(preset), re.MULTILINE | re.DOTALL)


def commands(preset):
    """The command lines of a card, each as a list of words."""
    lines = re.findall(r"^    (?:python|deberta-ext) (?:.*\\\n)*.*$", body(preset), re.MULTILINE)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


# ------- sizes


@every_preset
def test_parameters_are_those_of_arithmetic(preset):
    V, H, L, F, _ = SHAPES[preset]
    counts, linear, norm = count_parameters(preset), H * H + H, 2 * H
    layer = 4 * linear + (H * F + F) + (F * H + H) + 2 * norm
    if PUBLISHED[preset].family == "v1":
        assert counts.layers == L * (layer + 2 * linear) and counts.relative == 2 * 512 * H
        assert counts.position_projections == L * 2 * linear and counts.unpublished_biases == L * 2 * H
    else:
        convolution = (3 * H * H + H) + norm if PUBLISHED[preset].family == "v2" else 0
        assert counts.layers == L * layer + convolution and counts.relative == 2 * 256 * H + norm
        assert counts.position_projections == counts.unpublished_biases == 0
    assert (counts.words, counts.positions, counts.embedding_norm) == (V * H, 512 * H, norm)
    assert (counts.pooler, counts.masked_lm_head, counts.detection_head) == (
        linear,
        linear + norm + V,
        linear + norm + H + 1,
    )
    assert counts.encoder + counts.embeddings == counts.total


@every_preset
def test_published_counts_are_near_the_counted_ones(preset):
    counts = count_parameters(preset)
    for size in PUBLISHED[preset].sizes:
        percent = {"encoder": SHAPES[preset][4], "embeddings": 3, "total": 5}[size.part]
        assert getattr(counts, size.part) / 1e6 == pytest.approx(size.millions, rel=percent / 100)


@every_preset
def test_counted_file_is_as_large_as_the_one_on_the_hub(preset):
    """Which says that encoder, tables, heads and precision are those of the file, to three digits."""
    assert file_size(PUBLISHED[preset]) == PUBLISHED[preset].file.size
    assert f"| `pytorch_model.bin` | {PUBLISHED[preset].file.size} | {PUBLISHED[preset].file.size} (" in body(preset)


@every_preset
def test_published_shape_is_that_of_the_preset(preset):
    thousands, hidden, layers = PUBLISHED[preset].shape
    config = DebertaExtConfig.from_preset(preset)
    assert (config.hidden_size, config.num_hidden_layers) == (hidden, layers)
    assert 0 <= config.vocab_size - 1000 * thousands <= 1000


def test_explanations_of_differences_are_true():
    for published in PUBLISHED.values():
        counts = count_parameters(published.preset)
        (encoder,) = [size.millions for size in published.sizes if size.part == "encoder"]
        if published.family in ("v3", "mdeberta"):
            assert round((counts.encoder + counts.pooler) / 1e6) == encoder
    base = count_parameters("base")
    assert round((base.encoder - base.position_projections) / 1e6) == 86
    assert "counted: 3.1 % less" in body("v2-xlarge") and "counted: 3.6 % more" in body("v2-xxlarge")
    assert "counted: the same" in body("base")


# ------- what was published


def test_there_is_a_card_for_each_published_preset_and_for_no_other():
    assert {*PUBLISHED} == {preset for preset in PRESETS if not preset.startswith("electra")}
    assert len(PRESET_CARDS) == len({*PRESET_CARDS.values()}) == 10
    assert PRESET_CARDS["v3-base"] == "deberta-v3-base.md" and PRESET_CARDS["mdeberta-v3-base"] == "mdeberta-v3-base.md"


@every_preset
def test_every_published_number_has_a_source_which_the_card_links(preset):
    published, text = PUBLISHED[preset], body(preset)
    for entry in (*published.results, *published.sizes, published.file):
        source = entry.source
        assert isinstance(source, Source) and source.name and source.url.startswith("https://") and " " not in source.url
        assert f"[{source.name}]({source.url})" in text
    assert published.results and {size.part for size in published.sizes} <= {"encoder", "embeddings", "total"}


@every_preset
def test_results_fit_their_benchmarks(preset):
    results = PUBLISHED[preset].results
    main = [result.benchmark for result in results if result.main]
    assert len(main) == len({*main}), "one number a benchmark is the one that the checkpoint is known by"
    for result in results:
        assert len(result.values) == len(BENCHMARKS[result.benchmark].parts) or not result.main
        assert all(value is None or 50 < value < 100 for value in result.values) and result.values[0] is not None


def test_the_average_of_xnli_is_that_of_its_languages():
    results = {result.benchmark: result.values[0] for result in PUBLISHED["mdeberta-v3-base"].results}
    average = results.pop("xnli")
    assert len(results) == 15 and sum(results.values()) / 15 == pytest.approx(average, abs=0.05)


@every_preset
def test_tables_show_the_cells_of_the_source(preset):
    text = body(preset)
    for result in PUBLISHED[preset].results:
        shown = " / ".join(part for part in result.cell.split("/") if part != "-")
        spread = f" ± {result.spread}" if result.spread else ""
        assert f"| {shown}{spread} |" in text
    assert not re.search(r"\|[^|\n]*\b(None|nan)\b", text)


# ------- the pages, typed off by hand: cells as text, beside which the cards are laid

# microsoft/DeBERTa, README.md, "Fine-tuning on NLU tasks"; empty and "-" = not there. Base and the small models have no row
# there: theirs are of "Experiments" and of the model cards.
README_ROWS = """
| model | SQuAD 1.1 | SQuAD 2.0 | MNLI, matched / mismatched | SST-2 | QNLI | CoLA | RTE | MRPC | QQP | STS-B |
| base | 93.1/87.2 | 86.2/83.1 | 88.8/88.5 | | | | | | | |
| large | 95.5/90.1 | 90.7/88.0 | 91.3/91.1 | 96.5 | 95.3 | 69.5 | 91.0 | 92.6/94.6 | 92.3/- | 92.8/92.5 |
| xlarge | -/- | -/- | 91.5/91.2 | 97.0 | - | - | 93.1 | 92.1/94.3 | - | 92.9/92.7 |
| v2-xlarge | 95.8/90.8 | 91.4/88.9 | 91.7/91.6 | 97.5 | 95.8 | 71.1 | 93.9 | 92.0/94.2 | 92.3/89.8 | 92.9/92.9 |
| v2-xxlarge | 96.1/91.4 | 92.2/89.7 | 91.7/91.9 | 97.2 | 96.0 | 72.0 | 93.5 | 93.1/94.9 | 92.7/90.3 | 93.2/93.1 |
| v3-large | -/- | 91.5/89.0 | 91.8/91.9 | 96.9 | 96.0 | 75.3 | 92.7 | 92.2/- | 93.0/- | 93.0/- |
| v3-base | | 88.4/85.4 | 90.6/90.7 | | | | | | | |
| v3-small | | 82.9/80.4 | 88.3/87.7 | | | | | | | |
| v3-xsmall | | 84.8/82.0 | 88.1/88.3 | | | | | | | |
"""
# The same README: more rows, as benchmark and cell.
README_MORE = {
    "large": "QQP 92.3±.1, QNLI 95.3±.2, MRPC 91.9±.5, RTE 86.6±1, SST-2 96.7±.3, STS-B 92.5±.3, CoLA 70.5±1",
    "v2-xlarge": "COPA 97, RTE of SuperGLUE 93.5, ReCoRD 93.8/93.8",
    "v2-xxlarge": "COPA 97, RTE of SuperGLUE 93.5, ReCoRD 94.1/93.7",
    "mdeberta-v3-base": (
        "XNLI en 88.2, XNLI fr 82.6, XNLI es 84.4, XNLI de 82.7, XNLI el 82.3, XNLI bg 82.4, XNLI ru 80.8, XNLI tr 79.5, "
        "XNLI ar 78.5, XNLI vi 78.1, XNLI th 76.4, XNLI zh 79.5, XNLI hi 75.9, XNLI sw 73.9, XNLI ur 72.4, "
        "XNLI average of 15 languages 79.8±.2"
    ),
}
# "Backbone parameters", in millions.
README_BACKBONES = (
    "v3-xsmall 22, v3-small 44, v3-base 86, v3-large 304, v2-xlarge 710, v2-xxlarge 1320, base 100, large 350, xlarge 700, "
    "mdeberta-v3-base 86"
)


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]


def results_of(preset):
    """(benchmark, published cell) of each row of the committed card, in their order."""
    text = (FOLDER / PRESET_CARDS[preset]).read_text(encoding="utf-8")
    table = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    return [(row[0], row[2]) for row in rows_of("\n".join(line for line in table.splitlines() if line.startswith("|")))[2:]]


def test_the_first_number_of_a_benchmark_on_a_card_is_the_cell_of_the_readme():
    """The other tests compare the cards with the table that they are made of, which could hold a slip of the pen."""
    names, *rows = rows_of(README_ROWS)
    assert {row[0] for row in rows} == {*PUBLISHED} - {"mdeberta-v3-base"}
    for preset, *cells in rows:
        first: dict = {}
        for benchmark, cell in results_of(preset):
            first.setdefault(benchmark, cell.partition(" ±")[0])
        for benchmark, cell in zip(names[1:], cells, strict=True):
            expected = " / ".join(part for part in cell.split("/") if part not in ("-", ""))
            assert first.get(benchmark, "") == expected, (preset, benchmark)


@pytest.mark.parametrize("preset", README_MORE)
def test_the_other_numbers_of_the_readme_are_on_the_card(preset):
    found = [(benchmark.replace(", ", " "), cell.replace(" ", "")) for benchmark, cell in results_of(preset)]
    for entry in README_MORE[preset].split(", "):
        benchmark, _, cell = entry.rpartition(" ")
        number, _, spread = cell.partition("±")
        assert (benchmark, number + (f"±{float(spread)}" if spread else "")) in found, entry


def test_the_backbones_on_the_cards_are_those_of_the_readme():
    entries = [entry.rpartition(" ") for entry in README_BACKBONES.split(", ")]
    assert {preset for preset, _, _ in entries} == {*PUBLISHED}
    for preset, _, millions in entries:
        text = (FOLDER / PRESET_CARDS[preset]).read_text(encoding="utf-8")
        (row,) = [row for row in rows_of(text) if row[0] == "parameters of the encoder"]
        assert row[2].startswith(f"{int(millions):,} M ([Microsoft's README]("), preset


# ------- the cards


@pytest.mark.criterion("P.a")
def test_committed_cards_are_those_that_would_be_written(tmp_path):
    written = write_preset_cards(tmp_path)
    assert [path.name for path in written] == [*PRESET_CARDS.values(), "README.md"]
    for path in written:
        assert (FOLDER / path.name).read_bytes() == path.read_bytes(), (
            f"model_cards/{path.name} is not what write_preset_cards writes: run deberta-ext card --presets model_cards"
        )
    assert {path.name for path in FOLDER.glob("*.md")} >= {path.name for path in written}


@every_preset
def test_cards_pass_the_check_of_cards(preset):
    assert card_problems(card_of(preset)) == missing_metadata(card_of(preset)) == []


def test_the_command_that_the_index_names_writes_the_cards(tmp_path, capsys, made_once):
    assert "`deberta-ext card --presets model_cards`" in preset_index()
    assert deberta_ext(["card", "--presets", str(tmp_path / "model_cards")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len([*(tmp_path / "model_cards").iterdir()]) == 11


def test_writing_makes_the_folder_and_leaves_other_files(tmp_path, made_once):
    folder = tmp_path / "new" / "cards"
    write_preset_cards(folder)
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    write_preset_cards(folder)
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "mine" and len([*folder.iterdir()]) == 12


@pytest.mark.criterion("B10.1")
@every_preset
def test_metadata_are_read_back_by_the_hubs_client(preset):
    published = PUBLISHED[preset]
    data = ModelCard(card_of(preset)).data
    assert data.base_model == published.repo and data.license == "mit" and data.library_name == "transformers"
    assert data.model_name == published.name and "hf_deberta_ext" in data.tags
    assert data.pipeline_tag == ("fill-mask" if published.family in ("v1", "v2") else None)
    assert data.language == ("en" if published.family != "mdeberta" else [*published.languages])
    expected = [
        (benchmark.dataset, benchmark.config, split, metric, value, result.source.url)
        for result in published.results if result.main
        for benchmark in [BENCHMARKS[result.benchmark]]
        for (metric, split), value in zip(benchmark.parts, result.values, strict=True) if value is not None
    ]  # fmt: skip
    found = [
        (each.dataset_type, each.dataset_config, each.dataset_split, each.metric_type, each.metric_value, each.source_url)
        for each in data.eval_results
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
    name, again = model_index_to_eval_results(data.to_dict()["model-index"])
    assert name == published.name and len(again) == len(found)


@every_preset
def test_cards_have_no_empty_heading_and_no_long_line(preset):
    lines = body(preset).splitlines()
    headings = [number for number, line in enumerate(lines) if line.startswith("#") and " " in line and "```" not in line]
    text = [number for number, line in enumerate(lines) if line.strip() and number not in headings]
    for one, other in zip(headings, [*headings[1:], len(lines)], strict=True):
        assert one == headings[0] or any(one < number < other for number in text), lines[one]
    assert [line for line in lines if len(line) > 125 and not line.startswith("|")] == []
    assert not re.search(r"\{\w*\}", body(preset)), "a place that was not filled"
    for line in lines:
        assert not re.match(r"^\|.*[^|]$", line), line


@every_preset
def test_tables_have_as_many_cells_in_each_row(preset):
    for table in re.findall(r"(?:^\|.*\n)+", body(preset), re.MULTILINE):
        assert len({len(row.split("|")) for row in table.splitlines()}) == 1, table


@every_preset
def test_differences_are_those_of_the_family(preset):
    text, family = body(preset).split("## Where it differs from transformers")[1], PUBLISHED[preset].family
    assert ("| autocast |" in text) == ("| pairs of texts |" in text) == (family == "v1")
    assert ("attention masks of type bool" in text) == (family == "v2")
    assert ("| text normalisation |" in text) == (family != "v1")
    assert ("`mask_predictions`" in text) == (family in ("v3", "mdeberta"))
    assert ("`_weight`" in text) == (preset in ("v3-xsmall", "mdeberta-v3-base"))
    assert "## Filling in masks" not in body(preset) or family in ("v1", "v2")


def test_the_generator_is_promised_where_there_is_one():
    with_generator = {preset for preset in PUBLISHED if "The repository holds the generator too" in body(preset)}
    without = {preset for preset in PUBLISHED if "The repository holds no generator" in body(preset)}
    assert with_generator == {"v3-xsmall", "v3-large", "mdeberta-v3-base"} and without == {"v3-base", "v3-small"}
    assert "issues/161" in body("v3-small") and "issues/131" in body("v3-base")


def test_the_index_lists_all_cards_with_their_counts():
    text = preset_index()
    for preset, file in PRESET_CARDS.items():
        assert f"]({file}) | `{preset}` |" in text and f"{count_parameters(preset).total / 1e6:,.2f} M" in text


# ------- what the cards tell to type


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """repositories(preset): a folder like the official repository, but tiny and with random weights."""
    tokenizer = train_byte_level_bpe(["The chef ate the meal that he had cooked.", "Paris is in France."] * 5, 300)
    sizes = dict(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64, max_relative_positions=-1,
    )  # fmt: skip

    def build(preset):
        folder = tmp_path_factory.mktemp(preset)
        buckets = {} if PUBLISHED[preset].family == "v1" else dict(position_buckets=16)
        config = DebertaExtConfig.from_preset(preset, **sizes, **buckets)
        if PUBLISHED[preset].family in ("v1", "v2"):
            model = DebertaExtForMaskedLM(config)
        else:
            model = DebertaExtForReplacedTokenDetection(config)
        save_as_deberta_v2(model, folder, lossy=True)
        if PUBLISHED[preset].file.generator:
            config.num_hidden_layers = 1
            generator = DebertaExtForMaskedLM(config)
            torch.save(to_deberta_v2_state_dict(generator), folder / "pytorch_model.generator.bin")
        tokenizer.save_pretrained(folder)
        return folder

    return build


@pytest.mark.parametrize("preset", ["base", "v2-xlarge", "v3-xsmall", "v3-small"])
def test_snippets_run_one_after_the_other(preset, repositories, tmp_path, monkeypatch, capsys):
    code = "\n".join(snippets(preset))
    repo = f'repo = "{PUBLISHED[preset].repo}"'
    assert code.count(repo) == 1
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    exec(compile(code.replace(repo, f"repo = {str(repositories(preset))!r}"), preset, "exec"), names)
    assert names["states"].shape[::2] == (1, 16) and names["model"].dtype == torch.float32
    assert json.loads((tmp_path / "mine" / "config.json").read_text())["model_type"] == "deberta-ext"
    assert json.loads((tmp_path / "stock" / "config.json").read_text())["model_type"] == "deberta-v2"
    printed = capsys.readouterr().out
    if PUBLISHED[preset].family in ("v1", "v2"):
        assert names["logits"].ndim == 1 and "newly initialised: lm_predictions" not in printed
    else:
        assert 0 < names["token"].probability < 1 and (tmp_path / "generator" / "config.json").exists()
        assert isinstance(names["pair"], DebertaExtForPreTraining)
        assert names["pair"].generator.config.num_hidden_layers == 1


@every_preset
def test_snippets_compile_and_pin_what_they_load(preset):
    code = "\n".join(snippets(preset))
    compile(code, preset, "exec")
    assert code.count(f'repo = "{PUBLISHED[preset].repo}"\nrevision = "main"  # for good: the id of a commit') == 1
    for call in re.findall(r"(?:from_pretrained|from_checkpoints|load_tokenizer)\(repo.*", code):
        assert "revision=revision" in call
    assert not re.search(r"\b[0-9a-f]{40}\b", card_of(preset)), "no commit of the official repositories is known here"


@pytest.mark.criterion("P13")
@every_preset
def test_commands_are_taken_by_their_programs(preset, monkeypatch, capsys):
    found = {words[1].split("/")[-1]: [] for words in commands(preset)}
    for words in commands(preset):
        found[words[1].split("/")[-1]].append(words)
    assert {"run_glue.py", "convert"} <= {*found} <= {"run_glue.py", "run_rtd.py", "convert"}
    for _, _, *argv in found["run_glue.py"]:
        data, model, arguments, _ = parse(argv, TextClassificationArguments, description="")
        assert model.model_name_or_path == PUBLISHED[preset].repo and arguments.do_train and arguments.do_eval
        assert data.task_name in ("sst2", "mnli", "xnli")
    if PUBLISHED[preset].family in ("v3", "mdeberta"):
        [(_, file, *argv)] = found["run_rtd.py"]
        spec = importlib.util.spec_from_file_location("run_rtd_of_cards", ROOT / file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        taken = []
        monkeypatch.setattr(module, "run", lambda *groups: taken.extend(groups))
        module.main(argv)
        assert taken[0].model == PUBLISHED[preset].repo
    capsys.readouterr()


@every_preset
def test_converting_is_a_command_of_the_package(preset):
    (argv,) = [words for words in commands(preset) if words[0] == "deberta-ext"]
    arguments = command_parser(argv[1]).parse_args(argv[2:])
    assert arguments.source == PUBLISHED[preset].repo and arguments.dtype == "float32"


def test_recipes_have_the_tasks_that_the_cards_name():
    glue = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    for preset in PUBLISHED:
        text = body(preset)
        if "on the tasks of GLUE (but WNLI), ReCoRD" in text:
            more = ("copa", "race") if "COPA, RACE" in text else ()
            recipes = {task: find_recipe(preset, task) for task in (*glue, "record", "ner", *more)}
            from_mnli = {task for task, recipe in recipes.items() if recipe.from_mnli} & {*glue}
            assert from_mnli == ({"rte", "mrpc", "stsb"} if "are for `" in text else set())
        elif "on MNLI alone" in text:
            assert find_recipe(f"{preset}-sift", "mnli").sift_weight > 0 == find_recipe(preset, "mnli").sift_weight
            with pytest.raises(ValueError, match="no settings for"):
                find_recipe(preset, "sst2")
        else:
            assert preset == "mdeberta-v3-base" and "--recipe" not in text


# ------- refusals


def test_a_preset_without_a_card_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no model card for 'electra-small'; there are cards for v2-xxlarge, .*mdeberta"):
        preset_card("electra-small")


def test_nothing_is_written_where_a_card_cannot_be_made(tmp_path, monkeypatch):
    broken = Result("no_such_benchmark", "90", Source("nowhere", "https://example.org"))
    published = PUBLISHED["base"]
    fields = {name: getattr(published, name) for name in Published.__dataclass_fields__}
    monkeypatch.setitem(PUBLISHED, "base", Published(**(fields | {"results": (broken,)})))
    with pytest.raises(KeyError, match="no_such_benchmark"):
        write_preset_cards(tmp_path / "cards")
    assert not (tmp_path / "cards").exists()


def test_a_size_of_a_published_part_is_compared_in_percent(monkeypatch):
    published = PUBLISHED["base"]
    fields = {name: getattr(published, name) for name in Published.__dataclass_fields__}
    twice = Size("total", 2 * count_parameters("base").total / 1e6, Source("a page", "https://example.org/page"))
    monkeypatch.setitem(PUBLISHED, "base", Published(**(fields | {"sizes": (twice,)})))
    assert "([a page](https://example.org/page)); counted: 50.0 % less |" in preset_card("base")


@pytest.mark.parametrize("file", ["README.md", "deberta-v3-base.md"])
def test_files_of_somebody_else_are_not_replaced(file, tmp_path, made_once):
    """A README.md of any project was, without a word."""
    (tmp_path / file).write_text("# My project", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not one of these cards"):
        write_preset_cards(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {file: "# My project"}


def test_cards_are_written_again_over_older_ones(tmp_path, made_once):
    first = {path: path.read_text(encoding="utf-8") for path in write_preset_cards(tmp_path)}
    (tmp_path / "deberta-base.md").write_text("# DeBERTa-Base\n\nan older card", encoding="utf-8")
    assert {path: path.read_text(encoding="utf-8") for path in write_preset_cards(tmp_path)} == first
