# SPDX-License-Identifier: Apache-2.0
"""Train a student with a teacher and the same student without a teacher, and compare both with the teacher."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, PretrainedConfig

from ..analysis.results import markdown_table, measured_metrics, shown_metric
from ..checkpoints.files import read_json
from ..data.columns import cells
from ..files import replace_text, shown_source
from ..finetuning.arguments import ModelArguments, parse
from ..finetuning.input_lengths import longest_row
from ..finetuning.loop import prepare, train_and_report
from ..finetuning.models import load_config, load_model, load_tokenizer_for
from ..finetuning.reports import PreparedRun
from ..finetuning.run_folders import is_finished
from ..finetuning.tasks import Task, load_task
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..pretraining.dynamic_masking import MaskingCollator
from ..pretraining.masking import MaskingOptions, MaskingVocabulary
from ..training.user_errors import ExitOnUserError, resume_advice
from .alignment import encode_spans
from .arguments import DistillationArguments
from .objectives import OBJECTIVES
from .teacher import Teacher, cached_signals
from .text import TextArguments, TextData, similarity
from .trainer import DistillationCollator, DistillationTrainer

__all__ = ["distil", "keep_layers", "main"]


def main(task: str, argv: Sequence[str] | None = None, *, program: str = "%(prog)s") -> dict[str, Any]:
    """Parse the flags of `task` ("text" or a fine-tuning task), and call `distil`. A user error ends the program."""
    with ExitOnUserError() as errors:
        chosen = Task(TextData, TextArguments) if task == "text" else load_task(task)
        description = "Distil a student: train it on the outputs of a teacher."
        parsed = parse(argv, chosen.arguments, description=description, program=program, arguments=DistillationArguments)
        errors.resume_advice = resume_advice(argv, program)
        return distil(chosen, *parsed)


def distil(
    task: Task, data_args: Any, model_args: ModelArguments, args: DistillationArguments, flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Train a student with and without the teacher, evaluate the teacher, and compare the metrics of these three models.

    The folders of the models are OUTPUT/student, OUTPUT/without_teacher and OUTPUT/teacher. Finished models are skipped.
    Return the metrics by folder name, which are also in OUTPUT/comparison.json.
    """
    folder, of_text = Path(args.output_dir), task.read is TextData
    if args.teacher is None or not args.do_train:
        raise ValueError("a distillation needs --teacher and --do_train")
    if not args.objectives or (of_text and args.soft_labels_weight):
        needed = [f"--{name}_weight" for name in OBJECTIVES if not of_text or name != "soft_labels"]
        note = "; text has no soft labels, so --soft_labels_weight must be 0" if of_text else ""
        raise ValueError(f"at least one of {', '.join(needed)} must be above 0{note}")
    auto_class = data_args.auto_class if of_text else task.read.auto_class
    with args.main_process_first(local=False, desc="creating the student"):
        model_args = initial_student(model_args, args, auto_class, folder / "initial")
    download = dict(token=model_args.token, cache_dir=model_args.cache_dir, trust_remote_code=model_args.trust_remote_code)
    taught = ModelArguments(model_name_or_path=args.teacher, **download)
    results: dict[str, Any] = {}
    if args.do_eval:
        results["teacher"] = teacher_metrics(task, data_args, taught, args, flags, folder / "teacher")
    parts = ["student"]
    if args.without_teacher:
        parts.append("without_teacher")
    for name in parts:
        if is_finished(folder / name):
            results[name] = read_json(folder / name / "all_results.json")
            continue
        part = copy.copy(args)
        part.output_dir = str(folder / name)
        if args.resume_from_checkpoint is not None:
            part.resume_from_checkpoint = "auto"
        prepared = prepare(task.read, copy.deepcopy(data_args), copy.deepcopy(model_args), part, flags)
        rows: dict[str, Any] = {}
        if name == "student":
            rows = {"teacher": shown_source(args.teacher), "label weight": args.label_weight}
            for objective, weight in args.objectives.items():
                rows[OBJECTIVES[objective].title] = f"weight {weight:g}"
        trainer_class = trainer_of(prepared, taught, folder, is_taught=name == "student")
        results[name] = train_and_report(replace(prepared, trainer_class=trainer_class, card_rows=rows))
    table = comparison_table(results)
    if args.should_save:
        replace_text(folder / "comparison.json", json.dumps(results, indent=2) + "\n")
        replace_text(folder / "comparison.md", table + "\n")
        print(f"\n{table}", flush=True)
    return results


def trainer_of(prepared: PreparedRun, taught: ModelArguments, folder: Path, *, is_taught: bool) -> Any:
    """Return `DistillationTrainer` with its arguments `collator` and `embeds` already set (a `functools.partial`).

    The collator masks words if the flags ask for it. If `is_taught`, the collator also adds the teacher's signals."""
    args, data, data_args, config = prepared.args, prepared.data, prepared.data_args, prepared.config
    masking, signals = {}, {}
    if isinstance(data, TextData) and data_args.masked_share:
        options = MaskingOptions(unit="word", rate=data_args.masking_rate, max_length=longest_row(prepared.task.train))
        words = MaskingCollator(MaskingVocabulary.from_tokenizer(prepared.tokenizer), options, seed=args.seed)
        masking = dict(masking=words, masked_share=data_args.masked_share, passages=data.passages)
    if is_taught:
        auto_class = data.auto_class if "soft_labels" in args.objectives else AutoModel
        teacher = Teacher(taught, args, auto_class, data.pipeline, data_args.max_seq_length or 512)
        if auto_class is not AutoModel and data.pipeline != "question-answering":
            teacher.order = label_order(teacher.config, config)
        ids, outputs = prepared.task.train["input_ids"][:], Path(args.teacher_outputs or folder / "teacher_outputs")
        with args.main_process_first(local=False, desc="running the teacher"):
            signals = cached_signals(teacher, texts_of(prepared), ids, prepared.tokenizer, config.hidden_size, outputs)
    collator = DistillationCollator(prepared.task.collator, signals, **masking)
    return partial(DistillationTrainer, collator=collator, embeds=isinstance(data, TextData))


def texts_of(prepared: PreparedRun) -> list[tuple[str, ...]]:
    """Return the text or pair of each training row, or ("", "") if the row is a later window (part) of a long context."""
    data, rows = prepared.data, prepared.task.train
    if isinstance(data, TextData):
        return [(text,) for text in cells(data.train, "text")]
    if data.pipeline == "token-classification":
        return [(" ".join(data.sets["train"][number].words),) for number in rows["sentence"][:]]
    if data.pipeline == "question-answering":
        pairs = [(question.question.strip(), question.context) for question in data.sets["train"]]
        spans = encode_spans(prepared.tokenizer, pairs, longest_row(rows))
        by_ids = {tuple(span.ids): pair for pair, span in zip(pairs, spans, strict=True)}
        # Windows after the first one of a long context are not aligned.
        return [by_ids.get(tuple(ids), ("", "")) for ids in rows["input_ids"]]
    return [*zip(*data.texts(data.parts["train"][""].rows), strict=True)]


def label_order(teacher: PretrainedConfig, student: PretrainedConfig) -> list[int] | None:
    """Return, for each label of the student, its index in the teacher's logits; None if both models predict one score."""
    if student.num_labels == teacher.num_labels == 1:
        return None
    names = [student.id2label[number] for number in range(student.num_labels)]
    if {*names} != {*teacher.label2id}:
        raise ValueError(
            f"the teacher must have the labels of the data ({', '.join(names)}), got {', '.join(teacher.label2id)}: "
            "fine-tune the teacher on this data, or correct the names in its config.json (id2label, label2id)"
        )
    return [teacher.label2id[name] for name in names]


def initial_student(
    model_args: ModelArguments, args: DistillationArguments, auto_class: Any, folder: Path
) -> ModelArguments:
    """Return the student's model flags. If --student_layers or --preset is set, write the initial student to `folder`."""
    checkpoint = model_args.model_name_or_path
    if (args.preset is None) == (args.student_layers is None and checkpoint is None):
        raise ValueError("expected either --preset, or one or both of --model_name_or_path and --student_layers")
    if args.student_layers is None and checkpoint is not None:
        return model_args
    if checkpoint is not None and auto_class is not AutoModelForMaskedLM:
        # The checkpoint may have the head of another task.
        auto_class = AutoModel
    source = replace(model_args, model_name_or_path=checkpoint or args.teacher)
    config = load_config(source)
    tokenizer = load_tokenizer_for(config, source)
    if not (folder / "config.json").is_file():
        tokenizer.save_pretrained(folder)
        if args.student_layers is not None:
            keep_layers(load_model(source, config, auto_class)[0], args.student_layers).save_pretrained(folder)
        else:
            vocabulary = dict(vocab_size=max(tokenizer.get_vocab().values()) + 1, pad_token_id=tokenizer.pad_token_id)
            DebertaExtConfig.from_preset(args.preset, **vocabulary).save_pretrained(folder)
    return replace(model_args, model_name_or_path=str(folder), tokenizer_name=None, from_scratch=args.preset is not None)


def keep_layers(model: nn.Module, count: int) -> nn.Module:
    """Keep `count` evenly spaced layers of a model: for 6 of 12, layers 0, 2, 4, 7, 9, 11, as in DistilBERT."""
    total = model.config.num_hidden_layers
    found = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == total]
    if not found:
        raise ValueError(f"--student_layers needs a model with separate layers, got {type(model).__name__}")
    if not 1 <= count <= total:
        raise ValueError(f"--student_layers must be 1 to {total}, the number of layers of the model, got {count}")
    name, layers = found[0]
    kept = np.linspace(0, total - 1, count).round().astype(int)
    model.set_submodule(name, nn.ModuleList(layers[number] for number in kept))
    model.config.num_hidden_layers = count
    return model


def teacher_metrics(task: Task, data_args: Any, taught: ModelArguments, args, flags, folder: Path) -> dict[str, Any]:
    """Return the teacher's metrics on the evaluation data; skip the evaluation if `folder` already has the results."""
    if (folder / "all_results.json").is_file():
        return read_json(folder / "all_results.json")
    part = copy.copy(args)
    part.output_dir, part.do_train, part.seeds, part.resume_from_checkpoint = str(folder), False, [], None
    if task.read is not TextData:
        return train_and_report(prepare(task.read, copy.deepcopy(data_args), taught, part, flags))
    data = TextData(data_args)
    part.embeddings_weight, part.hidden_weight, part.relations_weight = 1.0, 0.0, 0.0
    rows = Teacher(taught, part, AutoModel, "encoder", data_args.max_seq_length or 512).run([(text,) for text in data.pairs])
    vectors = np.concatenate([row["embeddings"] for row in rows])
    metrics = {f"eval_{name}": value for name, value in similarity(vectors, data.scores).items()}
    if args.should_save:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / "all_results.json", json.dumps(metrics, indent=4) + "\n")
    return metrics


def comparison_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with the metrics of each model in `results`; for several seeds, the means over the seeds."""
    parts = {}
    for part, metrics in results.items():
        means = dict(metrics)
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                means[name] = value.get("mean")
        parts[part.replace("_", " ")] = measured_metrics(means)
    names = [*dict.fromkeys(chain.from_iterable(parts.values()))]
    rows = [[part, *(shown_metric(name, values.get(name)) for name in names)] for part, values in parts.items()]
    return markdown_table(["", *names], *rows)
