# SPDX-License-Identifier: Apache-2.0
"""Model cards of the official checkpoints: sizes counted and published, results, how to load them with this package.

model_cards/ is what `write_preset_cards` writes.
"""

import os
import re
import textwrap
from pathlib import Path
from typing import Any

from ..model.checkpoint_files import shown_size
from ..model.configuration_deberta_ext import DebertaExtConfig
from . import preset_texts as texts
from .card import render_card
from .parameter_counts import ParameterCounts, count_parameters
from .published import BENCHMARKS, PUBLISHED, Published, Result, Source

__all__ = ["PRESET_CARDS", "file_size", "preset_card", "preset_index", "write_preset_cards"]

# Preset -> file name of its card.
PRESET_CARDS = {preset: f"{checkpoint.repo.split('/')[1]}.md" for preset, checkpoint in PUBLISHED.items()}


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
        load=texts.LOAD.format(repo=published.repo, hidden_size=config.hidden_size),
        results=_results(published),
        training={
            "data": f'"{published.data}" ({_link(published.card)})',
            "objective": texts.OBJECTIVES["mlm" if published.family in ("v1", "v2") else "rtd"],
            "vocabulary": f"{texts.VOCABULARIES[published.family]}, {published.shape[0]} thousand",
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
            "transformers. Parameters are counted from the preset; the last column is what Microsoft's README has.",
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

    Raises:
        FileExistsError: a file of such a name is there that this function has not written.
    """
    folder = Path(folder)
    # Everything is made before anything is written.
    cards = {file: preset_card(name) for name, file in PRESET_CARDS.items()} | {"README.md": preset_index()}
    for file, text in cards.items():
        there, title = folder / file, next(line for line in text.splitlines() if line.startswith("# "))
        if there.exists() and title not in there.read_text(encoding="utf-8").splitlines():
            raise FileExistsError(f"{there} is not one of these cards and stays as it is: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in cards.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return [folder / file for file in cards]


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
    paper = texts.PAPERS["v3" if published.family in ("v3", "mdeberta") else "v1"]
    kind = texts.KINDS[published.family].format(layers=config.num_hidden_layers)
    text = (
        f"Microsoft's [{published.name}](https://huggingface.co/{published.repo}) is {kind} ({paper}). This card is about "
        "the official checkpoint as hf_deberta_ext runs it. The weights are Microsoft's, under the MIT licence, and no part "
        "of the package, which loads them as they are. Its preset is "
        f'`DebertaExtConfig.from_preset("{published.preset}")`.'
    )
    return "\n\n".join([_wrapped(text), "## Sizes", _sizes(published, config), _counted(published)])


def _sizes(published: Published, config: DebertaExtConfig) -> str:
    counts = count_parameters(published.preset)
    vocabulary, hidden, layers = published.shape
    heads, file = config.num_attention_heads, published.file
    rows = [
        ("layers", config.num_hidden_layers, str(layers)),
        ("hidden size", config.hidden_size, str(hidden)),
        ("attention heads", f"{heads}, each {config.hidden_size // heads} wide", ""),
        ("width of the feed-forward layers", config.intermediate_size, ""),
        ("rows of the vocabulary", f"{config.vocab_size:,}", f"{vocabulary} thousand"),
        ("rows of the relative position table", config.relative_table_size, ""),
        ("parameters of the encoder", _millions(counts.encoder), _compared(published, "encoder", counts.encoder)),
        ("of the embeddings", _millions(counts.embeddings), _compared(published, "embeddings", counts.embeddings)),
        ("of both", _millions(counts.total), _compared(published, "total", counts.total)),
        ("`pytorch_model.bin`", file_size(published), f"{file.size} ({_link(file.source)})"),
        ("weights in memory, float32", shown_size(4 * counts.total, digits=3), ""),
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
    return shown_size(numbers * published.file.bytes_per_number + deltas, digits=3)


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
        f"Encoder (the README's backbone): {encoder}. Embeddings: {_millions(counts.words)} for words, "
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
            f"{_millions(counts.encoder + counts.pooler)}, which rounds to the published number: that may be what was "
            "counted."
        )
    if published.family == "v2":
        return "What the README counts as backbone is not known; the size of the file is that of the numbers counted here."
    if published.preset == "base":
        return (
            "For DeBERTa-Base-MNLI, the same encoder, the README says 86 M. Without the layers' projections of positions "
            f"({_millions(counts.position_projections)}), {_millions(counts.encoder - counts.position_projections)} remain."
        )
    return "What was published looks rounded; the size of the file is that of the numbers counted here."


def _results(published: Published) -> str:
    results = published.results
    spread = " ± is over several seeds." if any(result.spread for result in results) else ""
    if published.family == "mdeberta":
        intro = (
            "Accuracy in percent on XNLI, after fine-tuning on English alone (zero-shot for the other languages). "
            "Microsoft's README calls them dev results."
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
    limits = [texts.NOT_AT_HAND, texts.NOT_MEASURED]
    if published.family in ("v1", "v2"):
        limits += [texts.EMD_LENGTH, texts.FAR_AWAY]
    else:
        limits += [texts.NO_FILL_MASK, texts.FAR_AWAY]
    if published.file.bytes_per_number == 2:
        limits.append(texts.FLOAT16_FILE)
    if published.family == "mdeberta":
        limits += [texts.FLOAT16_TRAINING, "Its languages are those of CC100; the results above are for 15 of them."]
    else:
        limits.append("It is for English.")
    # render_card puts "- " before each.
    return [_wrapped(limit).replace("\n", "\n  ") for limit in (*limits, texts.NO_BIAS_STUDY)]


def _uses(published: Published) -> list[str]:
    repo, folder = published.repo, published.repo.split("/")[1]
    sections = [texts.FILL_MASK]
    if published.family in ("v3", "mdeberta"):
        file = published.file
        generator = (texts.WITH_GENERATOR if file.generator else texts.WITHOUT_GENERATOR).format(
            url=file.source.url, size=file.generator, issue=file.generator_issue, issues=texts.ISSUES
        )
        sections = [texts.DETECTION, texts.PAIR.format(generator=_wrapped(generator), repo=repo)]
    commands = [
        texts.GLUE_COMMAND.format(repo=repo, task=task, recipe=recipe, folder=f"{task}-sift" if "sift" in recipe else task)
        for task, recipe in texts.RECIPE_COMMANDS.get(
            published.preset, [("sst2", published.preset), ("mnli", published.preset)]
        )
    ]
    if published.family == "mdeberta":
        commands = [texts.XNLI_COMMAND.format(repo=repo)]
    text = texts.RECIPE_TEXTS.get(published.preset, texts.ALL_TASKS).format(preset=published.preset, repo=repo)
    sections.append(texts.FINE_TUNING.format(text=_wrapped(text), commands="\n".join(commands)))
    saving = texts.SAVING.format(repo=repo, folder=folder)
    return [*sections, f"{saving}\n\n{_wrapped(texts.STOCK_V1)}" if published.family == "v1" else saving]


def _differences(published: Published) -> str:
    rows = [row for families, *row in texts.DIFFERENCES if published.family in families.split()]
    if published.file.deltas:
        rows.append([*texts.DELTAS])
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


def _wrapped(text: str) -> str:
    """Lines of a paragraph; names of links and code stay whole."""
    kept = re.sub(r"\[[^\]]*\]\(|`[^`]*`", lambda found: found[0].replace(" ", "\0"), text)
    return textwrap.fill(kept, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
