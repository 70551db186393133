# SPDX-License-Identifier: Apache-2.0
"""From no model at all to a classifier that loads anywhere, on 2 CPU cores, without the internet.

The texts are the docstrings of Python's own standard library. A tokenizer and a small DeBERTa are trained on them; the
model is fine-tuned to tell which of ten packages a docstring comes from, and compared with two baselines.

    python examples/quickstart.py            # 7 to 8 minutes
    python examples/quickstart.py --short    # every stage with tiny sizes, under a minute; its scores mean nothing

Test accuracy: 0.757 ± 0.010, from random weights 0.702 ± 0.010, majority class 0.138; three seeds of fine-tuning, 2 CPU
cores at 2.8 GHz, Python 3.11.7, torch 2.13, transformers 5.23. The same seed gives the same numbers on the same machine
and versions; another Python has other docstrings.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path

JOB = "hf_deberta_ext quickstart"
RESULTS_FILE, CURVES_FILE = "all_results.json", "loss_curves.png"

# Chosen on the validation texts.
FULL = dict(
    vocab_size=6000, hidden_size=192, num_hidden_layers=2, num_attention_heads=4, intermediate_size=768,
    max_position_embeddings=128, block_length=64, text_length=64, pretrain_steps=1400, finetune_epochs=6,
    texts=None, per_package=None,
)  # fmt: skip
SHORT = FULL | dict(
    vocab_size=1000, hidden_size=32, intermediate_size=64,
    block_length=32, text_length=32, pretrain_steps=20, finetune_epochs=1, texts=1000, per_package=30,
)  # fmt: skip
PRETRAIN_BATCH, PRETRAIN_RATE, MASKED_SHARE = 32, 3e-3, 0.4
FINETUNE_BATCH, FINETUNE_RATE = 16, 1e-3
DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
SHOWN = ("loss", "eval_loss", "eval_accuracy")
# The part of --max_minutes that pre-training may use; the fine-tuning runs divide the rest.
PRETRAIN_SHARE = 0.6


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, "default {0[%s]}, with --short {1[%s]}"
    add("--output_dir", type=Path, default=Path("quickstart_output"), help="new, empty, or of an earlier run")
    add("--short", action="store_true", help="tiny sizes: does it run here?")
    add("--seed", type=int, default=0, help="of the split, the masks and the pre-training (default 0)")
    add("--pretrain_steps", type=int, help=default.replace("%s", "pretrain_steps").format(FULL, SHORT))
    add("--finetune_epochs", type=int, help=default.replace("%s", "finetune_epochs").format(FULL, SHORT))
    add("--finetune_seeds", type=int, nargs="+", help="one run each (default 1 2 3, with --short 1)")
    add("--max_minutes", type=float, help="end the trainings early where they would take longer in all")
    args = parser.parse_args()
    sizes = SHORT if args.short else FULL
    args.pretrain_steps = args.pretrain_steps or sizes["pretrain_steps"]
    args.finetune_epochs = args.finetune_epochs or sizes["finetune_epochs"]
    args.finetune_seeds = args.finetune_seeds or ([1] if args.short else [1, 2, 3])
    if min(args.pretrain_steps, args.finetune_epochs) < 1 or (args.max_minutes is not None and args.max_minutes <= 0):
        parser.error("--pretrain_steps, --finetune_epochs and --max_minutes must be greater than 0")
    try:
        claim_output_dir(args.output_dir)
    except ValueError as error:
        parser.error(str(error))
    return args


def claim_output_dir(folder: Path):
    """Makes the folder and marks it as this job's.

    Raises:
        ValueError: it holds something, and no results of this job.
    """
    marker = folder / RESULTS_FILE
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        try:
            ours = json.loads(marker.read_text(encoding="utf-8"))["job"] == JOB
        except (OSError, ValueError, KeyError, TypeError):
            ours = False
        if not ours:
            raise ValueError(f"{folder} is not empty and not of an earlier quickstart; choose another --output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps({"job": JOB, "status": "unfinished"}), encoding="utf-8")


class Stages:
    """Prints the numbered stages and keeps their seconds."""

    def __init__(self):
        self.seconds, self.started, self.name = {}, time.perf_counter(), None

    def __call__(self, name: str | None):
        now = time.perf_counter()
        if self.name:
            self.seconds[self.name] = round(now - self.began, 1)
        self.name, self.began = name, now
        if name:
            print(f"\n[{len(self.seconds) + 1}/8] {name}", flush=True)

    def total(self) -> float:
        return time.perf_counter() - self.started


def training_callback(max_seconds: float | None):
    """A progress bar with the loss in it, in place of a line for each log; ends the training after `max_seconds`."""
    from transformers import ProgressCallback

    class Callback(ProgressCallback):
        stopped_early = False

        def on_train_begin(self, args, state, control, **kwargs):
            super().on_train_begin(args, state, control, **kwargs)
            self.began = time.perf_counter()

        def on_log(self, args, state, control, logs=None, **kwargs):
            if self.training_bar is not None:
                shown = {name: f"{logs[name]:.3f}" for name in SHOWN if name in logs}
                self.training_bar.set_postfix(shown)

        def on_step_end(self, args, state, control, **kwargs):
            super().on_step_end(args, state, control, **kwargs)
            late = max_seconds is not None and time.perf_counter() - self.began > max_seconds
            if late and state.global_step < state.max_steps:
                self.stopped_early = control.should_training_stop = control.should_evaluate = control.should_save = True

    return Callback()


def train(model, arguments: dict, max_seconds: float | None, **trainer_options):
    """Runs Trainer, quietly, on the CPU. Returns the model, what was logged, and whether the time ran out."""
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as scratch:
        training_args = TrainingArguments(
            output_dir=scratch, use_cpu=True, report_to="none", disable_tqdm=False, warmup_steps=0.1, weight_decay=0.01,
            per_device_eval_batch_size=64, save_only_model=True, save_total_limit=1, **arguments,
        )  # fmt: skip
        trainer = Trainer(model, training_args, **trainer_options)
        for callback in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
        callback = training_callback(max_seconds)
        trainer.add_callback(callback)
        before = trainer.evaluate()
        trainer.train()
    log = [{"step": 0} | {name: before[name] for name in SHOWN if name in before}, *trainer.state.log_history]
    return trainer.model, log, callback.stopped_early


def pretrain(config, tokenizer, blocks, held_out_blocks, args):
    """Masked-language modelling. Returns as `train`."""
    from docstring_corpus import mask_blocks
    from transformers import DataCollatorForLanguageModeling, default_data_collator, set_seed

    from hf_deberta_ext import DebertaExtForMaskedLM

    set_seed(args.seed)
    mask = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED_SHARE)
    arguments = dict(
        max_steps=args.pretrain_steps, per_device_train_batch_size=PRETRAIN_BATCH, learning_rate=PRETRAIN_RATE,
        adam_beta2=0.98, seed=args.seed, logging_steps=max(1, args.pretrain_steps // 30), prediction_loss_only=True,
        eval_strategy="steps", eval_steps=max(1, args.pretrain_steps // 6), save_strategy="no",
    )  # fmt: skip
    return train(
        DebertaExtForMaskedLM(config), arguments, args.max_minutes and 60 * args.max_minutes * PRETRAIN_SHARE,
        train_dataset=blocks, eval_dataset=mask_blocks(held_out_blocks, mask, args.seed),
        data_collator=lambda features: (default_data_collator if "labels" in features[0] else mask)(features),
    )  # fmt: skip


def finetune(model, tokenizer, split, seed: int, args):
    """Classification; keeps the epoch that is best on the validation texts. Returns as `train`."""
    from transformers import DataCollatorWithPadding

    train_features, validation_features = (
        [{**tokenizer(text, truncation=True), "labels": label} for text, label in part]
        for part in (split.train, split.validation)
    )
    runs = 2 * len(args.finetune_seeds)
    max_seconds = args.max_minutes and 60 * args.max_minutes * (1 - PRETRAIN_SHARE) / runs
    arguments = dict(
        num_train_epochs=args.finetune_epochs, per_device_train_batch_size=FINETUNE_BATCH, learning_rate=FINETUNE_RATE,
        train_sampling_strategy="group_by_length", seed=seed, logging_steps=0.05,
        eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy",
    )  # fmt: skip
    return train(
        model, arguments, max_seconds, train_dataset=train_features, eval_dataset=validation_features,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )  # fmt: skip


def accuracy(logits, examples) -> float:
    return sum(row.argmax().item() == label for row, (_, label) in zip(logits, examples, strict=True)) / len(examples)


def table(results: dict) -> str:
    """Accuracies of the three classifiers on the test texts, as Markdown."""

    def row(name, kind):
        seeds = ", ".join(f"{value:.3f}" for value in results["test_accuracy"][kind])
        deviation = results["standard_deviation"][kind]
        spread = "" if deviation is None else f" ± {deviation:.3f}"
        return f"| {name} | {results['mean'][kind]:.3f}{spread} | {seeds} |"

    return "\n".join([
        "| classifier | test accuracy | each seed |",
        "|---|---|---|",
        f"| majority class | {results['majority_accuracy']:.3f} | |",
        row("fine-tuned from random weights", "random"),
        row("fine-tuned from pre-trained weights", "pre-trained"),
    ])  # fmt: skip


def sample_answers(answers: list, packages: list[str]) -> str:
    """The first four short test texts with a right answer, then the first three with a wrong one, as Markdown.

    Args:
        answers (`list`): ((text, label), logits) of the test texts.
    """
    short = [((text, label), logits) for (text, label), logits in answers if len(text) < 150]
    right, wrong = ([a for a in short if (a[1].argmax() == a[0][1]) == correct] for correct in (True, False))
    lines = ["| text | package | answer |", "|---|---|---|"]
    for (text, label), logits in right[:4] + wrong[:3]:
        probability, guess = logits.softmax(-1).max(-1)
        words = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
        lines.append(f"| `{words}` | {packages[label]} | {packages[guess]} ({probability:.0%}) |")
    return "\n".join(lines)


def card_facts(results: dict, timings: dict, sizes: dict, answers: list):
    """`RunFacts` for the model card of the classifier.

    Args:
        sizes (`dict`): FULL or SHORT.
        answers (`list`): ((text, label), logits) of the test texts.
    """
    from hf_deberta_ext.publishing.card import shown_number
    from hf_deberta_ext.publishing.facts import RunFacts
    from hf_deberta_ext.training.batch_size import versions

    corpus, seeds, python = results["corpus"], results["finetune_seeds"], results["versions"]["python"]
    measured_on = f"{corpus['test']:,} texts that were kept out of all trainings"
    shown = [
        table(results),
        results["comparison"]["verdict"],
        f"Accuracy on {measured_on}. The folder holds the classifier of the seed {seeds[0]}: "
        f"{results['test_accuracy']['pre-trained'][0]:.3f}. With {corpus['test']:,} test texts each number has a standard "
        f"error of about {100 * (0.2 / corpus['test']) ** 0.5:.1f} points.",
        f"In the pre-training the loss on held-out text went from {results['pretraining']['held_out_loss_start']:.2f} to "
        f"{results['pretraining']['held_out_loss_end']:.2f}. Loaded in a fresh process without hf_deberta_ext, the folder "
        f"gave {'the same' if results['reload_check']['passed'] else 'OTHER'} answers for all test texts.",
        sample_answers(answers, corpus["packages"]),
    ]
    limits = ["It shows the whole way and is small enough for two CPU cores: it is no model to build on."]
    if results["short"]:
        limits.insert(0, "It is of a `--short` run with tiny sizes: its scores mean nothing.")
    if results["stopped_early"]:
        limits.append("`--max_minutes` ended a training early: its scores depend on the speed of the machine.")
    limits.append(f"It knows docstrings of Python {python} and nothing else: another Python gives other texts and numbers.")
    limits.append(f"It reads the first {sizes['text_length']} tokens of a text.")
    if len(seeds) > 1:
        limits.append("The spread is over seeds of the fine-tuning, after one pre-training and with one split.")
    labels = "\n".join(textwrap.wrap(f"Its labels are {', '.join(corpus['packages'])}.", 110))
    return RunFacts(
        task=f"docstrings of Python {python}",
        opening="A DeBERTa text classifier (DebertaExtForSequenceClassification) that names the package of Python's\n"
        "standard library that a docstring is from, pre-trained and fine-tuned from nothing by examples/quickstart.py of\n"
        f"hf_deberta_ext. It has {shown_number(results['parameters']['classifier'])} parameters.\n{labels}",
        results="\n\n".join(shown),
        figure=CURVES_FILE,
        sample_texts=["Return the value of the next header field."],
        measured_on=measured_on,
        scores={"accuracy": results["mean"]["pre-trained"]},
        score_note=f"mean of {len(seeds)} seeds" if len(seeds) > 1 else None,
        sets={"": (None, "test")},
        seeds=seeds,
        language=["en"],
        training={
            "data": f"{corpus['docstrings']:,} docstrings and {corpus['topics']:,} `pydoc` topics of Python {python}, "
            f"{corpus['words']:,} words; names of packages and modules are replaced",
            "tokenizer": f"byte-level BPE, {corpus['vocabulary']:,} tokens, trained on these texts",
            "pre-training": f"masked-language modelling, {results['pretrain_steps']:,} steps of {PRETRAIN_BATCH} blocks of "
            f"{sizes['block_length']} tokens, {MASKED_SHARE:.0%} masked, learning rate {PRETRAIN_RATE:g}",
            "fine-tuning": f"epochs: {results['finetune_epochs']}, of {corpus['train']:,} texts in batches of "
            f"{FINETUNE_BATCH}, learning rate {FINETUNE_RATE:g}; the best epoch on {corpus['validation']:,} more",
            "seeds": f"{results['seed']} (split and pre-training), {', '.join(map(str, seeds))} (fine-tuning)",
        },
        hardware={
            "device": f"CPU ({timings['machine']}), {timings['cpus']} cores, {timings['threads']} thread(s)",
            "seconds of all stages": timings["total_seconds"],
            "versions": versions() | results["versions"],
        },
        limits=limits,
    )


def main():
    args = parse_args()
    # Imported this late so that --help does not wait for torch.
    import math

    import docstring_corpus as task
    import torch
    import transformers

    from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
    from hf_deberta_ext.analysis.plots import plot_curves
    from hf_deberta_ext.pretraining import train_byte_level_bpe
    from hf_deberta_ext.publishing.card import write_run_card
    from hf_deberta_ext.tokenization import check_tokenizer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sizes, stage = SHORT if args.short else FULL, Stages()

    stage("Gather docstrings")
    docstrings, topics = task.collect_docstrings(), task.collect_topics()
    split = task.split_by_package(task.task_examples(docstrings), args.seed, limit=sizes["per_package"])
    texts = task.pretraining_texts(docstrings, topics, split.validation + split.test)[: sizes["texts"]]
    words = sum(len(text.split()) for text in [entry.text for entry in docstrings] + topics)
    corpus = dict(
        docstrings=len(docstrings), topics=len(topics), words=words, pretraining_texts=len(texts),
        train=len(split.train), validation=len(split.validation), test=len(split.test), packages=list(task.PACKAGES),
    )  # fmt: skip
    print(f"{len(docstrings)} docstrings and {len(topics)} topics, {words} words; to classify: {len(split.train)} for "
          f"training, {len(split.validation)} for validation, {len(split.test)} for the test")  # fmt: skip

    stage("Train the tokenizer")
    tokenizer = train_byte_level_bpe(texts, sizes["vocab_size"], model_max_length=sizes["text_length"])
    blocks, held_out_blocks = (
        task.pack_blocks(part, tokenizer, sizes["block_length"]) for part in (texts, [t for t, _ in split.validation])
    )
    corpus |= dict(vocabulary=len(tokenizer), pretraining_tokens=len(blocks) * sizes["block_length"])
    print(f"{len(tokenizer)} tokens; the text is {corpus['pretraining_tokens']} tokens long")

    stage("Pre-train a masked-language model")
    settings = dict(
        vocab_size=len(tokenizer), hidden_size=sizes["hidden_size"], num_hidden_layers=sizes["num_hidden_layers"],
        num_attention_heads=sizes["num_attention_heads"], intermediate_size=sizes["intermediate_size"],
        max_position_embeddings=sizes["max_position_embeddings"], position_buckets=32, masked_only=True,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.05,
        id2label=dict(enumerate(task.PACKAGES)), label2id={name: i for i, name in enumerate(task.PACKAGES)},
    )  # fmt: skip
    config = DebertaExtConfig(**settings)
    check_tokenizer(tokenizer, config)
    language_model, mlm_log, stopped_early = pretrain(config, tokenizer, blocks, held_out_blocks, args)
    pretrained_folder = args.output_dir / "pretrained"
    for part in (language_model, tokenizer):
        part.save_pretrained(pretrained_folder)
    held_out = [entry["eval_loss"] for entry in mlm_log if "eval_loss" in entry]

    logs, test_logits, validation, test = {}, {}, {}, {}
    for kind in ("pre-trained", "random"):
        stage(f"Fine-tune from {kind} weights")
        validation[kind], test[kind] = [], []
        for seed in args.finetune_seeds:
            transformers.set_seed(seed)
            if kind == "random":
                model = DebertaExtForSequenceClassification(DebertaExtConfig(**(settings | DROPOUT)))
            else:
                model = DebertaExtForSequenceClassification.from_pretrained(pretrained_folder, **DROPOUT)
            model, log, stopped = finetune(model, tokenizer, split, seed, args)
            stopped_early |= stopped
            logits = task.predict_logits(model, tokenizer, [text for text, _ in split.test])
            validation[kind].append(max(entry["eval_accuracy"] for entry in log if "eval_accuracy" in entry))
            test[kind].append(accuracy(logits, split.test))
            print(f"seed {seed}: validation {validation[kind][-1]:.3f}, test {test[kind][-1]:.3f}", flush=True)
            # The first seed's model is the one to keep and to show.
            if kind not in logs:
                logs[kind], test_logits[kind] = log, logits
                if kind == "pre-trained":
                    classifier = model

    stage("Save and draw")
    for part in (classifier, tokenizer):
        part.save_pretrained(args.output_dir)
    histories = {"pre-training": mlm_log} | logs
    plot_curves(histories, args.output_dir / CURVES_FILE, panels=[
        ("Pre-training", ["pre-training"], ["loss", "eval_loss"]),
        ("Fine-tuning", list(logs), ["loss"]),
        ("Fine-tuning", list(logs), ["eval_accuracy"]),
    ])  # fmt: skip

    stage("Load in a fresh process without hf_deberta_ext")
    reload_check = task.check_reload(args.output_dir, [text for text, _ in split.test], test_logits["pre-trained"])
    print(f"same predictions: {reload_check['same_predictions']}, largest difference of logits "
          f"{reload_check['max_logit_difference']:.1e}")  # fmt: skip

    stage("Report")
    comparison = task.compare_runs(test["pre-trained"], test["random"])
    majority = task.majority_accuracy(split.train, split.test)
    results = dict(
        seed=args.seed, finetune_seeds=args.finetune_seeds, pretrain_steps=args.pretrain_steps,
        finetune_epochs=args.finetune_epochs, short=args.short, stopped_early=stopped_early, corpus=corpus,
        parameters=dict(masked_lm=language_model.num_parameters(), classifier=classifier.num_parameters()),
        pretraining=dict(
            held_out_loss_start=held_out[0], held_out_loss_end=held_out[-1],
            held_out_perplexity_start=math.exp(held_out[0]), held_out_perplexity_end=math.exp(held_out[-1]),
        ),
        validation_accuracy=validation, test_accuracy=test, majority_accuracy=majority,
        mean={kind: statistics.mean(values) for kind, values in test.items()},
        standard_deviation={kind: statistics.stdev(v) if len(v) > 1 else None for kind, v in test.items()},
        comparison=comparison, reload_check=reload_check,
        versions=dict(python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__),
    )  # fmt: skip
    stage(None)
    timings = dict(seconds=stage.seconds, total_seconds=round(stage.total(), 1), cpus=os.cpu_count(),
                   threads=torch.get_num_threads(), machine=f"{platform.system()} {platform.machine()}")  # fmt: skip
    everything = dict(job=JOB, status="finished", results=results, timings=timings)
    (args.output_dir / RESULTS_FILE).write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
    answers = list(zip(split.test, test_logits["pre-trained"], strict=True))
    write_run_card(args.output_dir, card_facts(results, timings, sizes, answers))

    print(
        f"\n{table(results)}\n\n{comparison['verdict']}\n\n{timings['total_seconds']:.0f} seconds. {args.output_dir} "
        f"holds the classifier, pretrained/ (the language model), README.md (the model card), {CURVES_FILE}, "
        f"{RESULTS_FILE}."
    )
    if not reload_check["passed"]:
        sys.exit("quickstart: the saved classifier does not give the same answers in a fresh process")


if __name__ == "__main__":
    main()
