# SPDX-License-Identifier: Apache-2.0
"""Model cards of the official checkpoints: sizes counted and published, results, how to load them with this package.

model_cards/ is what `write_preset_cards` writes.
"""

import functools
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.configuration_deberta_ext import DebertaExtConfig
from ..runs.card import render_card
from .published import BENCHMARKS, PUBLISHED, Published, Result, Source

__all__ = ["PRESET_CARDS", "ParameterCounts", "count_parameters", "preset_card", "preset_index", "write_preset_cards"]

# Preset -> file name of its card.
PRESET_CARDS = {preset: f"{checkpoint.repo.split('/')[1]}.md" for preset, checkpoint in PUBLISHED.items()}

PAPERS = {
    "v1": "[DeBERTa](https://arxiv.org/abs/2006.03654), He, Liu, Gao and Chen",
    "v3": "[DeBERTaV3](https://arxiv.org/abs/2111.09543), He, Gao and Chen",
}
KINDS = {
    "v1": "an English encoder of {layers} layers, pre-trained by masked-language modelling",
    "v2": "an English encoder of {layers} layers, pre-trained by masked-language modelling",
    "v3": "an English encoder of {layers} layers, pre-trained by replaced token detection: a discriminator that tells which "
    "tokens of a text are not the original ones",
    "mdeberta": "a multilingual encoder of {layers} layers, pre-trained by replaced token detection: a discriminator that "
    "tells which tokens of a text are not the original ones",
}
OBJECTIVES = {
    "mlm": "masked-language modelling with the Enhanced Mask Decoder, which reads absolute positions",
    "rtd": "replaced token detection against a generator, whose embeddings it shares without passing gradients to them "
    "(gradient-disentangled embedding sharing, GDES)",
}
VOCABULARIES = {
    "v1": "byte-level BPE, that of RoBERTa",
    "v2": "SentencePiece, made from the training data",
    "v3": "SentencePiece",
    "mdeberta": "SentencePiece, for many languages",
}

LOAD = """import torch

from hf_deberta_ext import DebertaExtModel
from hf_deberta_ext.tokenization import load_tokenizer

repo = "{repo}"
revision = "main"  # for good: the id of a commit, which huggingface_hub.model_info(repo).sha tells
tokenizer = load_tokenizer(repo, revision=revision)
model = DebertaExtModel.from_pretrained(repo, revision=revision, dtype=torch.float32)
print(model.loading_report)  # what was loaded, converted, newly initialised, unused

with torch.no_grad():
    states = model(**tokenizer("A text.", return_tensors="pt")).last_hidden_state  # [1, tokens, {hidden_size}]"""
FILL_MASK = """## Filling in masks

With the head of pre-training (`lm_predictions`) and the Enhanced Mask Decoder:

```python
from hf_deberta_ext import DebertaExtForMaskedLM

model = DebertaExtForMaskedLM.from_pretrained(repo, revision=revision, dtype=torch.float32)
inputs = tokenizer("Paris is the [MASK] of France.", return_tensors="pt")
position = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
with torch.no_grad():
    logits = model(**inputs).logits[0, position]
print([tokenizer.decode(token) for token in logits.topk(5).indices])
```"""
DETECTION = """## Which tokens look replaced

The head of pre-training (`mask_predictions`) judges each token:

```python
from hf_deberta_ext import DebertaExtForReplacedTokenDetection
from hf_deberta_ext.scoring import token_replacement_probabilities

model = DebertaExtForReplacedTokenDetection.from_pretrained(repo, revision=revision, dtype=torch.float32)
for token in token_replacement_probabilities(model, tokenizer, "The chef ate the meal that he had cooked."):
    print(token.token, round(token.probability, 3))
```"""
PAIR = """## Generator and discriminator

{generator}

```python
from hf_deberta_ext import DebertaExtForPreTraining

pair = DebertaExtForPreTraining.from_checkpoints(repo, revision=revision, special_token_ids=tokenizer.all_special_ids)
print(pair.loading_report)
pair.export_generator().save_pretrained("generator")  # a masked language model
pair.export_discriminator().save_pretrained("discriminator")
```

`examples/run_rtd.py` trains the pair further:

    python examples/run_rtd.py --model {repo} --train_data texts/ --num_train_epochs 1 --learning_rate 5e-5 \\
        --output_dir further"""
WITH_GENERATOR = (
    "The repository holds the generator too (`pytorch_model.generator.bin`, {size}, [file list]({url})), a masked language "
    "model of half the depth. The pair as it was trained, with the difference of the two embedding tables:"
)
WITHOUT_GENERATOR = (
    "The repository holds no generator ([file list]({url}); [issue {issue}]({issues}/{issue}) asks for it). A new one begins "
    "as the first half of the discriminator's layers, and has to be trained before it draws good replacements:"
)
ISSUES = "https://github.com/microsoft/DeBERTa/issues"
FINE_TUNING = """## Fine-tuning

{text}

{commands}"""
SAVING = """## Saving and converting

```python
from hf_deberta_ext import DebertaExtForSequenceClassification
from hf_deberta_ext.checkpoints import save_as_deberta_v2

model = DebertaExtForSequenceClassification.from_pretrained(repo, revision=revision, num_labels=3, dtype=torch.float32)
model.save_pretrained("mine")  # with the code: loads anywhere with trust_remote_code=True
tokenizer.save_pretrained("mine")
save_as_deberta_v2(model, "stock")  # for tools that know only transformers' own classes, same outputs
```

On the command line, the checkpoint as it is:

    deberta-ext convert {repo} {folder} --dtype float32"""
STOCK_V1 = (
    "The folder for transformers' own classes is one of deberta-v2, which computes the same for a model of v1 as well."
)

GLUE_COMMAND = """    python examples/run_glue.py --model_name_or_path {repo} --task_name {task} --recipe {recipe} \\
        --do_train --do_eval --output_dir {folder}"""
XNLI_COMMAND = """    python examples/run_glue.py --model_name_or_path {repo} --task_name xnli --language en \\
        --eval_languages de fr sw --learning_rate 2e-5 --num_train_epochs 3 --warmup_steps 0.1 --do_train --do_eval \\
        --output_dir xnli"""
PUBLISHED_SETTINGS = "`--recipe {preset}` has the settings that Microsoft published for this size"
ALL_TASKS = (
    PUBLISHED_SETTINGS + ", on the tasks of GLUE, ReCoRD, COPA, RACE and NER. Those of RTE, MRPC and STS-B are for "
    "`{repo}-mnli`."
)
MNLI_ALONE = PUBLISHED_SETTINGS + ", on MNLI alone; `--recipe {preset}-sift` those with scale-invariant fine-tuning (SiFT)."
# What is said of recipes, and the task and recipe of each command, where it is not ALL_TASKS, SST-2 and MNLI.
RECIPE_TEXTS = {
    "v3-large": PUBLISHED_SETTINGS + ", on the tasks of GLUE, ReCoRD and NER.",
    "mdeberta-v3-base": "Trained on English, evaluated in other languages. There is no recipe for this model: the flags are a "
    "place to start, and nothing was measured with them.",
} | dict.fromkeys(("v3-base", "v3-small", "v3-xsmall"), MNLI_ALONE)
RECIPE_COMMANDS = {preset: [("mnli", preset), ("mnli", f"{preset}-sift")] for preset in ("v3-base", "v3-small", "v3-xsmall")}

# Families that it is true of, what, in transformers 5.23, here.
DIFFERENCES = [
    ("v1 v2", "`[MASK]`", "the published head is left out by default and a random one put in its place; `legacy=False` "
     "reads it, without the Enhanced Mask Decoder and its absolute positions", "head, decoder and positions as published"),
    ("v3 mdeberta", "`mask_predictions`, the head of pre-training", "not read",
     "`DebertaExtForReplacedTokenDetection`"),
    ("v1", "pairs of texts", "`[CLS] A [SEP] [SEP] B [SEP]`, token types all 0", "`[CLS] A [SEP] B [SEP]`, types 0 and 1"),
    ("v2 v3 mdeberta", "text normalisation", "SentencePiece's is dropped: ligatures, full-width letters, no-break spaces "
     "and their like become other tokens", "as in `spm.model`"),
    ("v2 v3 mdeberta", "a key 512 tokens or more after its query", "reads row 0 of the relative table, which no "
     "training touched", "clamped, as the official code"),
    ("v1", "autocast", "an error, in bfloat16 and float16", "runs"),
    ("v2", "attention masks of type bool", "an error, in the convolution", "taken"),
    ("v1 v2 v3 mdeberta", "attention masks [B, N, N]", "an error", "taken"),
    ("v1 v2 v3 mdeberta", "rows that may attend to nothing", "the mean of all values", "zeros, as the official code"),
    ("v2 v3 mdeberta", "half precision", "position scores are computed in it and scaled afterwards, which can overflow",
     "scores and softmax of attention in float32"),
    ("v1", "multiple choice", "no class", "`DebertaExtForMultipleChoice`"),
    ("v1 v2 v3 mdeberta", "loss under gradient accumulation", "multiplied by the number of accumulated batches", "exact"),
]  # fmt: skip
DELTAS = (
    "the tables `_weight` in the file, deltas of the embedding sharing", "reported as unexpected", "recognised and left out; "
    "of a file that holds nothing else, the generator's table is added",
)  # fmt: skip

NOT_AT_HAND = (
    "The files on the Hub were not at hand: the package is tested on synthetic checkpoints with their key names and shapes. "
    "`model.loading_report` tells what became of each tensor."
)
NOT_MEASURED = "The results are Microsoft's. None was measured again with this package."
FAR_AWAY = "Distances beyond 512 tokens are not told apart."
EMD_LENGTH = (
    "Masked-language modelling ends at 512 tokens, where the absolute positions end (`extend_position_embeddings` adds "
    "untrained ones); the encoder takes longer texts."
)
NO_FILL_MASK = (
    "It was not trained to fill in masks. The file is reported to hold a masked-language-model head as well; whether that "
    "was trained is not known."
)
FLOAT16_FILE = (
    "The file is in float16, and transformers loads it so unless told otherwise: train with `dtype=torch.float32`."
)
FLOAT16_TRAINING = (
    "Training in float16 is reported to give losses that are not numbers "
    f"([issue 77]({ISSUES}/77)): take bfloat16 or float32."
)
NO_BIAS_STUDY = "What prejudices it took over from its training text was not looked into."


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a preset, counted on models without weights.

    Args:
        layers (`int`): all layers, with the convolution of v2.
        relative (`int`): the relative position table and its LayerNorm.
        words, positions (`int`): the tables of words and of absolute positions.
        embedding_norm (`int`): the LayerNorm of the embeddings.
        position_projections (`int`): those of `layers` that project the relative table alone (v1).
        unpublished_biases (`int`): those of `layers` that v1's files do not have, and that are zero here.
        pooler, masked_lm_head, detection_head (`int`): what heads add; the decoder of the second is the table of words.
    """

    layers: int
    relative: int
    words: int
    positions: int
    embedding_norm: int
    position_projections: int
    unpublished_biases: int
    pooler: int
    masked_lm_head: int
    detection_head: int

    @property
    def encoder(self) -> int:
        return self.layers + self.relative

    @property
    def embeddings(self) -> int:
        return self.words + self.positions + self.embedding_norm

    @property
    def total(self) -> int:
        return self.encoder + self.embeddings


@functools.cache
def count_parameters(name: str) -> ParameterCounts:
    """Counts the parameters of a preset; nothing is allocated.

    Raises:
        ValueError: there is no such preset.
    """
    import torch

    from ..model.encoder import ContextPooler
    from ..model.masked_language_model import DebertaExtForMaskedLM
    from ..model.replaced_token_detection import ReplacedTokenDetectionHead

    config = DebertaExtConfig.from_preset(name)
    with torch.device("meta"):
        model = DebertaExtForMaskedLM(config)
        heads = [ContextPooler(config), ReplacedTokenDetectionHead(config)]
    sizes = {key: parameter.numel() for key, parameter in model.named_parameters()}

    def count(*parts: str) -> int:
        return sum(size for key, size in sizes.items() if any(part in key for part in parts))

    own_positions = not config.share_att_key
    counts = ParameterCounts(
        layers=count("encoder.layer.", "encoder.conv."),
        relative=count("encoder.rel_embeddings", "encoder.LayerNorm"),
        words=count("word_embeddings"),
        positions=count("position_embeddings"),
        embedding_norm=count("embeddings.LayerNorm"),
        position_projections=count("pos_key_proj", "pos_query_proj"),
        unpublished_biases=count("self.key_proj.bias", "pos_key_proj.bias") if own_positions else 0,
        pooler=sum(parameter.numel() for parameter in heads[0].parameters()),
        masked_lm_head=count("lm_predictions"),
        detection_head=sum(parameter.numel() for parameter in heads[1].parameters()),
    )
    assert counts.total + counts.masked_lm_head == sum(sizes.values())
    return counts


def preset_card(name: str) -> str:
    """The model card of the official checkpoint that a preset describes, as Markdown.

    Raises:
        ValueError: there is no card of that name.
    """
    if name not in PUBLISHED:
        raise ValueError(f"no model card for {name!r}; there are cards for {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    config = DebertaExtConfig.from_preset(name)
    return render_card(
        title=published.name,
        opening=_opening(published, config),
        metadata=_metadata(published),
        load=LOAD.format(repo=published.repo, hidden_size=config.hidden_size),
        results=_results(published),
        training={
            "data": f'"{published.data}" ({_link(published.card)})',
            "objective": OBJECTIVES["mlm" if published.family in ("v1", "v2") else "rtd"],
            "vocabulary": f"{VOCABULARIES[published.family]}, {published.shape[0]} thousand",
        },
        limits=_limits(published),
        more="\n\n".join([*_uses(published), _differences(published)]),
    )


def preset_index() -> str:
    """A table of all cards, README.md of their folder."""
    rows = [
        f"| [{published.name}]({PRESET_CARDS[name]}) | `{name}` | {published.shape[2]} x {published.shape[1]} "
        f"| {_millions(count_parameters(name).encoder)} | {_millions(count_parameters(name).embeddings)} "
        f"| {_millions(count_parameters(name).total)} | {_published_encoder(published)} |"
        for name, published in PUBLISHED.items()
    ]
    return "\n".join(
        [
            "# The official checkpoints",
            "",
            "One card each: sizes, published results, how to load it with hf_deberta_ext, and where that differs from",
            "transformers. Parameters are counted from the preset; the last column is what Microsoft's README calls backbone.",
            "",
            "| checkpoint | preset | layers x hidden size | encoder | embeddings | total | encoder, published |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            "`deberta-ext card --presets model_cards` writes this folder; edit nothing here by hand.",
            "",
        ]
    )


def write_preset_cards(folder: str | os.PathLike) -> list[Path]:
    """Writes a card for each preset of an official checkpoint, and README.md with a table of them.

    Args:
        folder (`str` or path): made if it is not there; other files in it stay.
    Returns:
        `list[Path]`: the files, README.md last.
    """
    folder = Path(folder)
    # Everything is made before anything is written.
    texts = {file: preset_card(name) for name, file in PRESET_CARDS.items()} | {"README.md": preset_index()}
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return [folder / file for file in texts]


# ------- the parts of a card


def _metadata(published: Published) -> dict[str, Any]:
    from huggingface_hub import EvalResult

    family = "v3" if published.family == "mdeberta" else published.family
    results = [
        EvalResult(
            task_type=benchmark.task,
            dataset_type=benchmark.dataset,
            dataset_name=benchmark.name.split(",")[0] if len(benchmark.parts) > 1 else benchmark.name,
            dataset_config=benchmark.config,
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
            source_name=result.source.name,
            source_url=result.source.url,
        )
        for result in published.results
        if result.main
        for benchmark in [BENCHMARKS[result.benchmark]]
        for (metric, split), value in zip(benchmark.parts, result.values, strict=True)
        if value is not None
    ]
    languages = [*published.languages]
    return dict(
        language=languages if len(languages) > 1 else languages[0],
        license="mit",
        base_model=published.repo,
        pipeline_tag="fill-mask" if family != "v3" else None,
        tags=["hf_deberta_ext", "deberta", f"deberta-{family}", *(["mdeberta"] if published.family == "mdeberta" else [])],
        eval_results=results,
    )


def _opening(published: Published, config: DebertaExtConfig) -> str:
    paper = PAPERS["v3" if published.family in ("v3", "mdeberta") else "v1"]
    kind = KINDS[published.family].format(layers=config.num_hidden_layers)
    text = (
        f"Microsoft's [{published.name}](https://huggingface.co/{published.repo}) is {kind} ({paper}). This card is about the "
        "official checkpoint as hf_deberta_ext runs it. The weights are Microsoft's, under the MIT licence, and no part of the "
        f'package, which loads them as they are. Its preset is `DebertaExtConfig.from_preset("{published.preset}")`.'
    )
    return "\n\n".join([_wrapped(text), "## Sizes", _sizes(published, config), _counted(published)])


def _sizes(published: Published, config: DebertaExtConfig) -> str:
    counts = count_parameters(published.preset)
    vocabulary, hidden, layers = published.shape
    file = published.file
    rows = [
        ("layers", config.num_hidden_layers, str(layers)),
        ("hidden size", config.hidden_size, str(hidden)),
        (
            "attention heads",
            f"{config.num_attention_heads}, each {config.hidden_size // config.num_attention_heads} wide",
            "",
        ),
        ("width of the feed-forward layers", config.intermediate_size, ""),
        ("rows of the vocabulary", f"{config.vocab_size:,}", f"{vocabulary} thousand"),
        ("rows of the relative position table", config.relative_table_size, ""),
        ("parameters of the encoder", _millions(counts.encoder), _compared(published, "encoder", counts.encoder)),
        ("of the embeddings", _millions(counts.embeddings), _compared(published, "embeddings", counts.embeddings)),
        ("of both", _millions(counts.total), _compared(published, "total", counts.total)),
        ("`pytorch_model.bin`", file_size(published), f"{file.size} ({_link(file.source)})"),
        ("weights in memory, float32", _bytes(4 * counts.total), ""),
    ]
    return "\n".join(
        ["| | counted from the preset | published |", "| --- | --- | --- |"]
        + [f"| {name} | {counted} | {shown} |".replace("|  |", "| |") for name, counted, shown in rows]
    )


def file_size(published: Published) -> str:
    """The size that `pytorch_model.bin` has with the tensors that it is known or reported to hold."""
    counts = count_parameters(published.preset)
    numbers = counts.total + counts.masked_lm_head - counts.unpublished_biases
    if published.family in ("v3", "mdeberta"):
        numbers += counts.detection_head
    deltas = (counts.words + counts.positions) * published.file.deltas
    return _bytes(numbers * published.file.bytes_per_number + deltas)


def _compared(published: Published, part: str, counted: int) -> str:
    """The published counts of a part, and by how much the counted one differs."""
    found = [size for size in published.sizes if size.part == part]
    return ", ".join(
        f"{size.millions:,g} M ({_link(size.source)}); counted: {_difference(counted / 1e6, size.millions)}"
        for size in found
    )


def _difference(counted: float, published: float) -> str:
    percent = 100 * (counted - published) / published
    return "the same" if abs(percent) < 0.05 else f"{abs(percent):.1f} % {'more' if percent > 0 else 'less'}"


def _counted(published: Published) -> str:
    """What the numbers of the table count, and what explains their difference from the published ones."""
    counts, file = count_parameters(published.preset), published.file
    heads = "the head of masked-language modelling"
    if published.family in ("v3", "mdeberta"):
        heads = "the heads of masked-language modelling and of replaced token detection"
    deltas = f", and the delta tables in float{8 * file.deltas}" if file.deltas else ""
    encoder = "all layers with the relative position table"
    if published.family == "v2":
        encoder = "all layers with the convolution beside the first and the relative position table"
    sentences = [
        f"Encoder: {encoder}, which the README calls backbone. Embeddings: {_millions(counts.words)} for words, "
        f"{_millions(counts.positions)} for absolute positions, and their LayerNorm. The file is counted with encoder, "
        f"embeddings and {heads} in float{8 * file.bytes_per_number}{deltas}.",
        _explanation(published, counts),
    ]
    if counts.unpublished_biases:
        sentences.append(
            f"The encoder has {counts.unpublished_biases:,} biases of keys that the file does not have; they are zero."
        )
    return _wrapped(" ".join(sentences))


def _explanation(published: Published, counts: ParameterCounts) -> str:
    if published.family in ("v3", "mdeberta"):
        return (
            f"With the pooler of a classifier ({_millions(counts.pooler)}) the encoder has "
            f"{_millions(counts.encoder + counts.pooler)}, which rounds to the published number: it may have been counted."
        )
    if published.family == "v2":
        return "What the README counts as backbone is not known; the size of the file is that of the numbers counted here."
    if published.preset == "base":
        return (
            f"For the same encoder with MNLI the README says 86 M; without the projections of relative positions in each layer "
            f"({_millions(counts.position_projections)}) {_millions(counts.encoder - counts.position_projections)} remain."
        )
    return "Published are round numbers; the size of the file is that of the numbers counted here."


def _results(published: Published) -> str:
    results = published.results
    spread = " ± is over several seeds." if any(result.spread for result in results) else ""
    if published.family == "mdeberta":
        intro = (
            "Accuracy in percent on what Microsoft's README calls the dev results of XNLI, after fine-tuning on English alone "
            "(zero-shot for the other languages)."
        )
    else:
        intro = "Fine-tuned and measured by Microsoft, on development sets unless the table says otherwise, in percent."
    with_how = any(result.how for result in results)
    header = ["benchmark", "metric", "published", *(["how"] if with_how else []), "source"]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    # All numbers of a benchmark stand together.
    benchmarks = [*dict.fromkeys(result.benchmark for result in results)]
    for result in sorted(results, key=lambda result: benchmarks.index(result.benchmark)):
        cells = [_benchmark_name(result), _metrics(result), _shown(result), *([result.how] if with_how else [])]
        lines.append(f"| {' | '.join([*cells, _link(result.source)])} |".replace("|  |", "| |"))
    return _wrapped(intro + spread) + "\n\n" + "\n".join(lines)


def _benchmark_name(result: Result) -> str:
    benchmark = BENCHMARKS[result.benchmark]
    return f"{benchmark.name} (split not named)" if result.benchmark == "race" else benchmark.name


def _metrics(result: Result) -> str:
    """Those that the cell has."""
    benchmark = BENCHMARKS[result.benchmark]
    names = benchmark.metrics.split(" / ")
    if len(names) == 1:
        return benchmark.metrics
    if len(names) != len(result.values):
        return "not named"
    return " / ".join(name for name, value in zip(names, result.values, strict=True) if value is not None)


def _shown(result: Result) -> str:
    text = " / ".join(part for part in result.cell.split("/") if part != "-")
    return f"{text} ± {result.spread}" if result.spread else text


def _limits(published: Published) -> list[str]:
    limits = [NOT_AT_HAND, NOT_MEASURED]
    if published.family in ("v1", "v2"):
        limits += [EMD_LENGTH, FAR_AWAY]
    else:
        limits += [NO_FILL_MASK, FAR_AWAY]
    if published.file.bytes_per_number == 2:
        limits.append(FLOAT16_FILE)
    if published.family == "mdeberta":
        limits += [FLOAT16_TRAINING, "Its languages are those of CC100; the results above are for 15 of them."]
    else:
        limits.append("It is a model of English.")
    # render_card puts "- " before each.
    return [_wrapped(limit).replace("\n", "\n  ") for limit in (*limits, NO_BIAS_STUDY)]


def _uses(published: Published) -> list[str]:
    repo, folder = published.repo, published.repo.split("/")[1]
    sections = [FILL_MASK]
    if published.family in ("v3", "mdeberta"):
        file = published.file
        generator = (WITH_GENERATOR if file.generator else WITHOUT_GENERATOR).format(
            url=file.source.url, size=file.generator, issue=file.generator_issue, issues=ISSUES
        )
        sections = [DETECTION, PAIR.format(generator=_wrapped(generator), repo=repo)]
    commands = [
        GLUE_COMMAND.format(repo=repo, task=task, recipe=recipe, folder=f"{task}-sift" if "sift" in recipe else task)
        for task, recipe in RECIPE_COMMANDS.get(published.preset, [("sst2", published.preset), ("mnli", published.preset)])
    ]
    if published.family == "mdeberta":
        commands = [XNLI_COMMAND.format(repo=repo)]
    text = RECIPE_TEXTS.get(published.preset, ALL_TASKS).format(preset=published.preset, repo=repo)
    sections.append(FINE_TUNING.format(text=_wrapped(text), commands="\n".join(commands)))
    saving = SAVING.format(repo=repo, folder=folder)
    return [*sections, f"{saving}\n\n{_wrapped(STOCK_V1)}" if published.family == "v1" else saving]


def _differences(published: Published) -> str:
    rows = [row for families, *row in DIFFERENCES if published.family in families.split()]
    if published.file.deltas:
        rows.append([*DELTAS])
    return "\n".join(
        ["## Where it differs from transformers", "", "| | transformers 5.23 | here |", "| --- | --- | --- |"]
        + [f"| {' | '.join(row)} |" for row in rows]
    )


def _published_encoder(published: Published) -> str:
    return ", ".join(f"{size.millions:,g} M" for size in published.sizes if size.part == "encoder")


def _link(source: Source) -> str:
    return f"[{source.name}]({source.url})"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.2f} M"


def _bytes(count: int) -> str:
    """As the Hub shows sizes: 874 MB, 3.14 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
