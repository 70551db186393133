# SPDX-License-Identifier: Apache-2.0
"""What was published about the official checkpoints: sizes, files and results, each number with its source.

Numbers are those of the sources, in percent or millions, and nothing is rounded or completed. Read in copies of the pages;
the weights themselves were not at hand.
"""

from dataclasses import dataclass

__all__ = ["BENCHMARKS", "PUBLISHED", "Benchmark", "Published", "Result", "Size", "Source", "WeightsFile"]

_GITHUB = "https://github.com/microsoft/DeBERTa"


@dataclass(frozen=True)
class Source:
    """Where a number stands.

    Args:
        name (`str`): "model card", as tables show it.
        url (`str`): of the page.
    """

    name: str
    url: str


@dataclass(frozen=True)
class Benchmark:
    """A data set, and how its numbers are given.

    Args:
        name (`str`): as tables show it.
        metrics (`str`): of the numbers, in their order, "F1 / EM".
        task (`str`), dataset (`str`), config (`str`, *optional*): the Hub's names of the task, data set and configuration.
        parts (`tuple[tuple[str, str | None], ...]`): for each number the Hub's name of the metric, and the split.
    """

    name: str
    metrics: str
    task: str
    dataset: str
    config: str | None
    parts: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class Result:
    """The numbers of one checkpoint on one benchmark.

    Args:
        benchmark (`str`): key of `BENCHMARKS`.
        cell (`str`): as in the source, in percent, in the order of the benchmark's metrics: "91.8/91.9"; "-" = not given.
        source (`Source`).
        spread (`float`, *optional*): of several seeds, ±.
        how (`str`): what was done otherwise than plain fine-tuning of this checkpoint.
        main (`bool`): the number that the checkpoint is known by; a card's metadata has no other.
    """

    benchmark: str
    cell: str
    source: Source
    spread: float | None = None
    how: str = ""
    main: bool = True

    @property
    def values(self) -> tuple[float | None, ...]:
        """The numbers of the cell; None = not given."""
        return tuple(None if part == "-" else float(part) for part in self.cell.split("/"))


@dataclass(frozen=True)
class Size:
    """A published count of parameters.

    Args:
        part (`str`): "encoder" (which the README calls backbone), "embeddings" or "total".
        millions (`float`).
        source (`Source`).
    """

    part: str
    millions: float
    source: Source


@dataclass(frozen=True)
class WeightsFile:
    """pytorch_model.bin, as the Hub lists it.

    Args:
        size (`str`): "874 MB".
        bytes_per_number (`int`): 4 = float32, 2 = float16.
        source (`Source`).
        deltas (`int`): bytes for each number of the delta tables (`_weight`) that the file holds beside its two tables;
            0 = it holds none.
        generator (`str`): size of pytorch_model.generator.bin; "" = there is none.
        generator_issue (`int`): of microsoft/DeBERTa, which asks for one; 0 = none.
    """

    size: str
    bytes_per_number: int
    source: Source
    deltas: int = 0
    generator: str = ""
    generator_issue: int = 0


@dataclass(frozen=True)
class Published:
    """What is known of one official checkpoint.

    Args:
        preset (`str`): of `DebertaExtConfig.from_preset`.
        repo (`str`): id on the Hub.
        name (`str`): as in the README of microsoft/DeBERTa.
        family (`str`): "v1", "v2", "v3" or "mdeberta".
        shape (`tuple[int, int, int]`): thousands of rows of the vocabulary, hidden size, layers, as in the README.
        data (`str`): what it was trained on, in the words of its model card.
        file (`WeightsFile`).
        sizes (`tuple[Size, ...]`), results (`tuple[Result, ...]`).
        languages (`tuple[str, ...]`): as in the metadata of its model card.
    """

    preset: str
    repo: str
    name: str
    family: str
    shape: tuple[int, int, int]
    data: str
    file: WeightsFile
    sizes: tuple[Size, ...]
    results: tuple[Result, ...]
    languages: tuple[str, ...] = ("en",)

    @property
    def card(self) -> Source:
        """Its model card on the Hub."""
        return _card(self.repo)


def _card(repo: str) -> Source:
    return Source("model card", f"https://huggingface.co/{repo}")


def _listing(repo: str) -> Source:
    return Source("file list", f"https://huggingface.co/{repo}/tree/main")


MODELS = Source("Microsoft's README", f"{_GITHUB}#pre-trained-models")
FINE_TUNING = Source("Microsoft's README", f"{_GITHUB}#fine-tuning-on-nlu-tasks")
EXPERIMENTS = Source("Microsoft's README", f"{_GITHUB}#experiments")
XNLI = Source("Microsoft's README", f"{_GITHUB}#fine-tuning-on-xnli")
SUPERGLUE = Source("Microsoft's README of SuperGLUE", f"{_GITHUB}/blob/master/experiments/superglue/README.md")
SIFT = Source("Microsoft's README of SiFT", f"{_GITHUB}/blob/master/DeBERTa/sift/README.md")
PAPER = Source("abstract of the paper", "https://arxiv.org/abs/2006.03654")

_V, _ACCURACY = "validation", (("accuracy", "validation"),)
_ACCURACY_F1 = (("accuracy", _V), ("f1", _V))
BENCHMARKS = {
    "squad": Benchmark(
        "SQuAD 1.1", "F1 / EM", "question-answering", "rajpurkar/squad", None, (("f1", _V), ("exact_match", _V))
    ),
    "squad_v2": Benchmark(
        "SQuAD 2.0", "F1 / EM", "question-answering", "rajpurkar/squad_v2", None, (("f1", _V), ("exact_match", _V))
    ),
    "mnli": Benchmark(
        "MNLI, matched / mismatched", "accuracy", "text-classification", "nyu-mll/glue", "mnli",
        (("accuracy", "validation_matched"), ("accuracy", "validation_mismatched")),
    ),
    "sst2": Benchmark("SST-2", "accuracy", "text-classification", "nyu-mll/glue", "sst2", _ACCURACY),
    "qnli": Benchmark("QNLI", "accuracy", "text-classification", "nyu-mll/glue", "qnli", _ACCURACY),
    "cola": Benchmark(
        "CoLA", "Matthews correlation", "text-classification", "nyu-mll/glue", "cola", (("matthews_correlation", _V),)
    ),
    "rte": Benchmark("RTE", "accuracy", "text-classification", "nyu-mll/glue", "rte", _ACCURACY),
    "mrpc": Benchmark("MRPC", "accuracy / F1", "text-classification", "nyu-mll/glue", "mrpc", _ACCURACY_F1),
    "qqp": Benchmark("QQP", "accuracy / F1", "text-classification", "nyu-mll/glue", "qqp", _ACCURACY_F1),
    "stsb": Benchmark(
        "STS-B", "Pearson / Spearman", "text-classification", "nyu-mll/glue", "stsb", (("pearson", _V), ("spearmanr", _V))
    ),
    # The abstract does not name the split.
    "race": Benchmark("RACE", "accuracy", "multiple-choice", "ehovy/race", "all", (("accuracy", None),)),
    "copa": Benchmark("COPA", "accuracy", "multiple-choice", "aps/super_glue", "copa", _ACCURACY),
    "super_rte": Benchmark("RTE of SuperGLUE", "accuracy", "text-classification", "aps/super_glue", "rte", _ACCURACY),
    "record": Benchmark(
        "ReCoRD", "F1 / EM", "question-answering", "aps/super_glue", "record", (("f1", _V), ("exact_match", _V))
    ),
    "superglue": Benchmark(
        "SuperGLUE, test set", "average score", "text-classification", "aps/super_glue", None, (("score", "test"),)
    ),
    # The README speaks of dev results, the metadata leaves the split open.
    "xnli": Benchmark(
        "XNLI, average of 15 languages", "accuracy", "text-classification", "facebook/xnli", "all_languages",
        (("accuracy", None),),
    ),
}  # fmt: skip
_XNLI_LANGUAGES = ("en", "fr", "es", "de", "el", "bg", "ru", "tr", "ar", "vi", "th", "zh", "hi", "sw", "ur")
BENCHMARKS |= {
    f"xnli_{language}": Benchmark(
        f"XNLI, {language}", "accuracy", "text-classification", "facebook/xnli", language, (("accuracy", None),)
    )
    for language in _XNLI_LANGUAGES
}

# v1 and v2: "following RoBERTa", note 1 of the README's table.
_FROM_MNLI = ("rte", "mrpc", "stsb")
_SEEDS, _FROM_HERE = "another table, several seeds", ", from this checkpoint"
_COLUMNS = ("squad", "squad_v2", "mnli", "sst2", "qnli", "cola", "rte", "mrpc", "qqp", "stsb")


def _readme_row(row: str, *, from_mnli: bool = False, spread: float | None = None) -> tuple[Result, ...]:
    """Results of a row of the README's table, spelt as there: "91.3/91.1", "-". `spread` is that of MNLI."""
    found = []
    for benchmark, cell in zip(_COLUMNS, row.split(), strict=True):
        if cell.strip("-/"):
            how = "from the checkpoint fine-tuned on MNLI" if from_mnli and benchmark in _FROM_MNLI else ""
            # The other table of the README has the same numbers of MNLI, with their spread.
            seeds = spread if benchmark == "mnli" else None
            found.append(Result(benchmark, cell, EXPERIMENTS if seeds else FINE_TUNING, seeds, how))
    return tuple(found)


def _more(source: Source, how: str, main: bool, **cells: str) -> tuple[Result, ...]:
    return tuple(Result(name, cell, source, None, how, main) for name, cell in cells.items())


_LARGE_SEEDS = tuple(
    Result(benchmark, cell, EXPERIMENTS, spread, _SEEDS + _FROM_HERE * (benchmark in _FROM_MNLI), False)
    for benchmark, cell, spread in [
        ("qqp", "92.3", 0.1), ("qnli", "95.3", 0.2), ("mrpc", "91.9", 0.5), ("rte", "86.6", 1.0), ("sst2", "96.7", 0.3),
        ("stsb", "92.5", 0.3), ("cola", "70.5", 1.0),
    ]
)  # fmt: skip
_XNLI_RESULTS = (
    Result("xnli", "79.8", XNLI, 0.2),
    *(
        Result(f"xnli_{language}", cell, XNLI)
        for language, cell in zip(
            _XNLI_LANGUAGES,
            "88.2 82.6 84.4 82.7 82.3 82.4 80.8 79.5 78.5 78.1 76.4 79.5 75.9 73.9 72.4".split(),
            strict=True,
        )
    ),
)
_V1_DATA, _V2_DATA, _V3_DATA = "80GB training data", "160GB raw data", "the 160GB data as DeBERTa V2"


def _v3_sizes(repo: str, encoder: float, embeddings: float) -> tuple[Size, ...]:
    return (Size("encoder", encoder, MODELS), Size("embeddings", embeddings, _card(repo)))


def _checkpoints() -> tuple[Published, ...]:
    xxlarge2, xlarge2 = "microsoft/deberta-v2-xxlarge", "microsoft/deberta-v2-xlarge"
    xlarge, large, base = "microsoft/deberta-xlarge", "microsoft/deberta-large", "microsoft/deberta-base"
    large3, base3 = "microsoft/deberta-v3-large", "microsoft/deberta-v3-base"
    small3, xsmall3, multilingual = (
        "microsoft/deberta-v3-small", "microsoft/deberta-v3-xsmall", "microsoft/mdeberta-v3-base",
    )  # fmt: skip
    return (
        Published(
            "v2-xxlarge", xxlarge2, "DeBERTa-V2-XXLarge", "v2", (128, 1536, 48), _V2_DATA,
            WeightsFile("3.14 GB", 2, _listing(xxlarge2)),
            (Size("encoder", 1320, MODELS), Size("total", 1500, _card(xxlarge2))),
            _readme_row("96.1/91.4 92.2/89.7 91.7/91.9 97.2 96.0 72.0 93.5 93.1/94.9 92.7/90.3 93.2/93.1",
                        from_mnli=True, spread=0.1)
            + _more(SUPERGLUE, "", True, copa="97", super_rte="93.5", record="94.1/93.7")
            + _more(MODELS, "single model", False, superglue="89.9")
            + _more(SIFT, "with SiFT", False, mnli="92.0/92.1", sst2="97.5", qnli="96.5", cola="73.5", rte="96.5",
                    qqp="93.0/90.7"),
        ),
        Published(
            "v2-xlarge", xlarge2, "DeBERTa-V2-XLarge", "v2", (128, 1536, 24), _V2_DATA,
            WeightsFile("1.78 GB", 2, _listing(xlarge2)),
            (Size("encoder", 710, MODELS), Size("total", 900, _card(xlarge2))),
            _readme_row("95.8/90.8 91.4/88.9 91.7/91.6 97.5 95.8 71.1 93.9 92.0/94.2 92.3/89.8 92.9/92.9",
                        from_mnli=True, spread=0.1)
            + _more(SUPERGLUE, "", True, copa="97", super_rte="93.5", record="93.8/93.8"),
        ),
        Published(
            "xlarge", xlarge, "DeBERTa-XLarge", "v1", (50, 1024, 48), _V1_DATA,
            WeightsFile("1.52 GB", 2, _listing(xlarge)),
            (Size("encoder", 700, MODELS),
             Size("total", 750, Source("a commit's title", f"https://huggingface.co/{xlarge}/commits/main"))),
            _readme_row("-/- -/- 91.5/91.2 97.0 - - 93.1 92.1/94.3 - 92.9/92.7", from_mnli=True, spread=0.1),
        ),
        Published(
            "large", large, "DeBERTa-Large", "v1", (50, 1024, 24), _V1_DATA,
            WeightsFile("1.63 GB", 4, _listing(large)),
            (Size("encoder", 350, MODELS),),
            _readme_row("95.5/90.1 90.7/88.0 91.3/91.1 96.5 95.3 69.5 91.0 92.6/94.6 92.3/- 92.8/92.5",
                        from_mnli=True, spread=0.1)
            + _LARGE_SEEDS
            + _more(PAPER, "", True, race="86.8"),
        ),
        Published(
            "base", base, "DeBERTa-Base", "v1", (50, 768, 12), _V1_DATA,
            WeightsFile("559 MB", 4, _listing(base)),
            (Size("encoder", 100, MODELS),),
            (*_more(_card(base), "", True, squad="93.1/87.2", squad_v2="86.2/83.1"),
             Result("mnli", "88.8/88.5", EXPERIMENTS, 0.2)),
        ),
        Published(
            "v3-large", large3, "DeBERTa-V3-Large", "v3", (128, 1024, 24), _V3_DATA,
            WeightsFile("874 MB", 2, _listing(large3), generator="571 MB"),
            _v3_sizes(large3, 304, 131),
            _readme_row("-/- 91.5/89.0 91.8/91.9 96.9 96.0 75.3 92.7 92.2/- 93.0/- 93.0/-"),
        ),
        Published(
            "v3-base", base3, "DeBERTa-V3-Base", "v3", (128, 768, 12), _V3_DATA,
            WeightsFile("371 MB", 2, _listing(base3), generator_issue=131),
            _v3_sizes(base3, 86, 98),
            _readme_row("-/- 88.4/85.4 90.6/90.7 - - - - - - -"),
        ),
        Published(
            "v3-small", small3, "DeBERTa-V3-Small", "v3", (128, 768, 6), _V3_DATA,
            WeightsFile("286 MB", 2, _listing(small3), generator_issue=161),
            _v3_sizes(small3, 44, 98),
            _readme_row("-/- 82.9/80.4 88.3/87.7 - - - - - - -")
            + _more(_card(small3), "as the model card has it", False, squad_v2="82.8/80.4")
            + _more(_card(small3), "with SiFT", False, mnli="88.8/88.5"),
        ),
        Published(
            "v3-xsmall", xsmall3, "DeBERTa-V3-XSmall", "v3", (128, 384, 12), _V3_DATA,
            WeightsFile("241 MB", 2, _listing(xsmall3), deltas=2, generator="144 MB"),
            _v3_sizes(xsmall3, 22, 48),
            _readme_row("-/- 84.8/82.0 88.1/88.3 - - - - - - -")
            + _more(_card(xsmall3), "with SiFT", False, mnli="88.4/88.5"),
        ),
        Published(
            "mdeberta-v3-base", multilingual, "mDeBERTa-V3-Base", "mdeberta", (250, 768, 12), "the 2.5T CC100 data as XLM-R",
            WeightsFile("1.33 GB", 2, _listing(multilingual), deltas=4, generator="949 MB"),
            _v3_sizes(multilingual, 86, 190),
            _XNLI_RESULTS,
            ("multilingual", "en", "ar", "bg", "de", "el", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
        ),
    )  # fmt: skip


PUBLISHED = {checkpoint.preset: checkpoint for checkpoint in _checkpoints()}
