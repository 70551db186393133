# SPDX-License-Identifier: Apache-2.0
"""Tiny training runs of every script and kind of task, to see the effect of a flag on the final weights."""

import contextlib
import itertools
import logging
import re
import sys
import warnings
from pathlib import Path
from unittest import mock

from fine_tuning_scripts import save_model
from safetensors.torch import load_file
from scripts import command_line, module_of
from task_files import write_lines
from toy_task import equal

from hf_deberta_ext.finetuning.arguments import FineTuningArguments, ModelArguments

WORDS = "cold hot red blue old new Ann Bob boat car".split()
# The last batch has fewer than 4 rows.
ROWS = 11
NUMBERS = range(ROWS)


def texts():
    """Return sentences of different lengths."""
    for number, words in zip(NUMBERS, itertools.permutations(WORDS, 6), strict=False):
        yield " ".join(["It is", *words[: 1 + number % 6], "."])


def table(columns):
    """Return rows, one per example, made by columns(number, text)."""
    return [columns(number, text) for number, text in enumerate(texts())]


def choice(count):
    return lambda n, text: dict(context=text, question="which?", choices=WORDS[: count(n)], label=n % 2)


def question(n, text):
    answers = dict(text=["cold"], answer_start=[text.index("cold")])
    return dict(id=str(n), context=text, question="which?", answers=answers)


def tagged(n, text):
    tags = {word: "B-X" for word in WORDS[:3]}
    return dict(tokens=text.split(), ner_tags=[tags.get(word, "O") for word in text.split()])


CHOICES = dict(context_column="context", question_column="question", choice_columns="choices", label_column="label")
# Kind of task -> script, flags, rows. All SuperGLUE tasks except copa have the head and loss of GLUE.
FINE_TUNING = {
    "glue, one label": ("run_glue", {}, table(lambda n, text: dict(sentence=text, label=n % 3))),
    "glue, regression": ("run_glue", {}, table(lambda n, text: dict(sentence=text, label=n / 4 + 0.1))),
    "glue, several labels": (
        "run_glue", {}, table(lambda n, text: dict(sentence=text, label=[WORDS[n % 3], WORDS[3]][: 1 + n % 2])),
    ),
    "superglue, copa": (
        "run_superglue", dict(task_name="copa"),
        table(lambda n, text: dict(premise=text, choice1="hot", choice2="old", question="effect", label=n % 2, idx=n)),
    ),
    "squad": ("run_squad", dict(doc_stride=4), table(question)),
    "race, 4 choices": ("run_race", CHOICES, table(choice(lambda n: 4))),
    "race, 2 to 4 choices": ("run_race", CHOICES, table(choice(lambda n: 2 + n % 3))),
    "ner": ("run_ner", {}, table(tagged)),
}  # fmt: skip
SIZES = (
    "num_hidden_layers=2,hidden_size=32,intermediate_size=48,num_attention_heads=4,max_position_embeddings=64,"
    "position_buckets=16,attention_probs_dropout_prob=0,hidden_dropout_prob="
)
# Sentence pairs; half of them are sampled.
PAIRS = dict(packing="segment_pair", nsp_weight=1, sbo_weight=1, masking="span")
# Objective and data -> script, flags.
PRETRAINING = {
    "mlm": ("run_mlm", {}),
    "mlm, more objectives": ("run_mlm", PAIRS),
    "mlm, streaming": ("run_mlm", dict(streaming="true", max_steps=3)),
    "rtd": ("run_rtd", {}),
    "rtd, decoupled": ("run_rtd", dict(stepping="decoupled")),
}
COMMON = dict(
    num_train_epochs=1, per_device_train_batch_size=4, learning_rate=5e-3, report_to="none", disable_tqdm="true",
    save_strategy="no", logging_strategy="no", use_cpu="true",
)  # fmt: skip
# Cards and curves would take as long as the three steps.
REPORTS = (
    "finetuning.reports.write_run_card", "pretraining.run_stages.write_run_card", "analysis.plots.curves.save_figure",
)  # fmt: skip
# Words of transformers' warning when it ignores an argument.
DROPPED = re.compile(r"ignor|no effect|disabl|not compatible|not supported|has been set to", re.IGNORECASE)


def script_of(kind: str) -> str:
    return (FINE_TUNING.get(kind) or PRETRAINING[kind])[0]


def groups_of(kind: str) -> tuple[type, ...]:
    """Return the dataclasses that define the flags of a script."""
    main = module_of(script_of(kind)).main
    if kind in PRETRAINING:
        return sys.modules[main.func.__module__].GROUPS
    return main.args[0].arguments, ModelArguments, FineTuningArguments


class FlagRuns:
    """Runs of three steps of each kind, each in its own folder."""

    def __init__(self, folder: Path):
        self.folder, self.numbers, self.made = folder, itertools.count(), {}
        self.model = save_model(folder / "model", [*texts(), "which is it? effect cause"] * 5, vocab_size=300)
        # A different configuration, and a different tokenizer with the same number of tokens.
        self.other = save_model(
            folder / "other", [change(text) for text in texts() for change in (str.title, str.upper)] * 5, vocab_size=300,
            hidden_dropout_prob=0.3,
        )  # fmt: skip
        words = itertools.cycle(itertools.chain.from_iterable(itertools.permutations(WORDS, 4)))
        documents = []
        for number in range(40):
            lines = [" ".join(["The", *itertools.islice(words, 1 + number % 8)]) + "." for _ in range(2)]
            documents.append("\n".join(lines))
        self.corpus = folder / "corpus.txt"
        self.corpus.write_text("\n\n".join(documents), encoding="utf-8")

    def flags(self, kind: str) -> dict:
        if kind in PRETRAINING:
            return COMMON | dict(
                train_data=self.corpus, config_overrides=f"{SIZES}0", preset="v3-xsmall", max_length=24,
                max_train_samples=ROWS, validation_documents=4, max_eval_samples=4, tokenizer=self.model,
                cache_dir=self.folder / "cache",
            ) | PRETRAINING[kind][1]  # fmt: skip
        _, flags, rows = FINE_TUNING[kind]
        file = self.folder / f"{kind}.jsonl"
        if not file.is_file():
            write_lines(file, *rows)
        return COMMON | flags | dict(
            model_name_or_path=self.model, train_file=file, validation_file=file, do_train="true", max_seq_length=40
        )  # fmt: skip

    def run(self, kind: str, **flags):
        """Return the final weights of a run, or the error line if the arguments were rejected before the output folder was
        created.

        Raises:
            AssertionError: if the run failed later, or transformers warns that it ignores an argument.
        """
        folder = self.folder / f"run-{next(self.numbers)}"
        argv = command_line(self.flags(kind) | dict(output_dir=folder) | flags)
        lines, logger = [], logging.getLogger("transformers")
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())
        logger.addHandler(handler)
        try:
            with contextlib.ExitStack() as stack:
                for name in REPORTS:
                    stack.enter_context(mock.patch(f"hf_deberta_ext.{name}"))
                warned = stack.enter_context(warnings.catch_warnings(record=True))
                warnings.simplefilter("always")
                module_of(script_of(kind)).main(argv)
        except SystemExit as ended:
            assert ended.code == 2 and not folder.exists(), f"rejected after the run had started: {ended}"
            return str(ended)
        finally:
            logger.removeHandler(handler)
        reported = [line for line in (*lines, *(str(warning.message) for warning in warned)) if "LOAD REPORT" not in line]
        dropped = [line for line in reported if DROPPED.search(line)]
        assert not dropped, dropped
        names = ("model.safetensors", "adapter_model.safetensors")
        return load_file(next(file for name in names if (file := folder / name).is_file()))

    def effect(self, kind: str, name: str, value, others: dict) -> str:
        """Return the effect of a flag together with other flags: "acts", "ignored", or "refused: " and the error line."""
        ended = self.run(kind, **{**others, name: value})
        if isinstance(ended, str):
            return f"refused: {ended.partition('error: ')[2]}"
        key = (kind, *map(str, others.items()))
        if key not in self.made:
            self.made[key] = self.run(kind, **others)
        reference = self.made[key]
        assert not isinstance(reference, str), f"refused without {name}, too: {reference}"
        return "ignored" if equal(ended, reference) else "acts"
