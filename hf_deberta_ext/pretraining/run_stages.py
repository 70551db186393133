# SPDX-License-Identifier: Apache-2.0
"""Stages of pre-training: documents, tokenizer, examples, training and reports."""

import dataclasses
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import TrainingArguments, set_seed

from ..checkpoints.files import read_json
from ..data.columns import first
from ..files import as_list, drop_none, is_hub_id, replace_text, shown_source
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from ..publishing.card import write_run_card
from ..publishing.facts import REPORT_FILE, RunFacts
from ..tokenization import check_tokenizer, load_tokenizer
from ..training.batch_size import batch_summary, hardware_facts
from ..training.checkpoints import readable_weights, replaced_folder
from ..training.digests import json_digest, tokenizer_digest
from ..training.distributed import release_folder
from ..training.flags import parse_flags
from ..training.folder_lock import lock_folder
from ..training.model_sources import named_tokenizer
from ..training.published_optimizer import optimizer_name
from ..training.run_folder import (
    TOKENIZER_FOLDER,
    accepted_changes,
    find_checkpoint,
    folder_summary,
    repeated_arguments,
)
from ..training.trainer import RunTrainer
from ..training.user_errors import ExitOnUserError, resume_advice
from .corpus import DocumentStream, list_files, load_corpus, text_sizes, texts
from .dynamic_masking import MaskingCollator, NumberedExamples, NumberedStream
from .masking import MaskingVocabulary
from .packing import PackingReport, pack
from .prepared_corpus import PreparedRows, max_streams, read_manifest
from .recipes import chosen_settings
from .report import CURVES_FILE
from .run_arguments import (
    ELSEWHERE,
    DataArguments,
    MaskingArguments,
    ModelArguments,
    check_arguments,
    check_length,
    masking_options,
    model_config,
    prepared_settings,
    tokenizer_options,
)
from .tokenizer_training import tokenizer_report, train_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["PretrainingRun", "parse_and_run", "train_and_evaluate"]


def parse_and_run(
    run: "type[PretrainingRun]",
    groups: tuple[type, ...],
    argv: list[str] | None,
    description: str,
    program: str = "%(prog)s",
) -> dict[str, float]:
    """Parse a command line, and run pre-training with the given flags.

    Args:
        run: class of the pre-training run.
        groups: dataclasses of the model, data, masking and training flags, in this order.
        argv (`list[str]`, *optional*): flags; default: the flags of the process.
        description (`str`): description; `--help` shows its first paragraph.
        program (`str`): program name in `--help`.
    """
    with ExitOnUserError() as errors:
        parsed, _ = parse_flags(
            groups,
            argv,
            description=description,
            usage=f"{program} --train_data FILES --train_tokenizer unigram --preset v3-small --output_dir FOLDER ...",
            defaults=run.defaults,
            elsewhere=ELSEWHERE,
            recipe=partial(settings_of_run, run),
        )
        errors.resume_advice = resume_advice(argv, program)
        return run(*parsed).run()


def settings_of_run(
    run: "type[PretrainingRun]", flags: dict[str, Any], processes: int, device: torch.device | None
) -> tuple[dict[str, Any], str | None]:
    """Return defaults of flags and a text to print, both from `chosen_settings`. Prepared data give further defaults."""
    prepared = prepared_settings(flags)
    settings, text = chosen_settings(flags | prepared, processes, device, rtd=run.rtd)
    return settings | prepared, text


class PretrainingRun:
    """Pre-training run, from flags to report. Subclasses define the model and the trainer."""

    trainer_class: ClassVar[type[RunTrainer]]
    # Default values of flags.
    defaults: ClassVar[Mapping[str, Any]] = {}
    # True if the run trains replaced token detection, which determines the recipes that --recipe accepts.
    rtd: ClassVar[bool] = False

    def __init__(
        self, model_args: ModelArguments, data_args: DataArguments, masking_args: MaskingArguments, args: TrainingArguments
    ):
        self.model_args, self.data_args, self.masking_args, self.args = model_args, data_args, masking_args, args
        self.tokenizer_facts: Mapping[str, Any] = {}
        self.reports: Mapping[str, PackingReport] = {}

    def configuration(self) -> DebertaExtConfig:
        """Return the configuration of the model, before the tokenizer is known."""
        return model_config(self.model_args)

    def check(self):
        """Check that the flags fit together and fit the model configuration. The base class checks nothing."""

    def new_model(self) -> DebertaExtPreTrainedModel:
        """Return the model with random weights."""
        raise NotImplementedError

    def load_model(self, **options: Any) -> DebertaExtPreTrainedModel:
        """Load the model from --model; `options` are arguments of `from_pretrained`."""
        raise NotImplementedError

    def run(self) -> dict[str, float]:
        """Check the flags, read data, train, evaluate and report; return the metrics of the evaluation."""
        began = time.perf_counter()
        model_args, data_args, args = self.model_args, self.data_args, self.args

        # 1. Raise user errors before any long computation
        checkpoint = find_checkpoint(args)
        check_arguments(data_args, model_args, args)
        if args.train_longer == "same_schedule" and self.masking_args.final_masking_rate is not None:
            raise ValueError(
                "--train_longer same_schedule cannot be combined with --final_masking_rate, because masking rates depend on "
                "the number of steps; use --train_longer new_schedule"
            )
        options = masking_options(self.masking_args, data_args.max_length)
        self.config = self.configuration()
        check_length(self.config, data_args.max_length, model_args)
        self.check()
        with torch.device("meta"):
            set_attention(self.new_model(), model_args)

        # 2. Documents, tokenizer and model
        flags = repeated_arguments((model_args, data_args, self.masking_args), args)
        tokenizer = None
        if model_args.train_tokenizer is None:
            tokenizer = self.given_tokenizer()
        if args.should_save:
            lock_folder(args.output_dir)
        corpus, held_out = corpora(data_args, model_args)
        if data_args.streaming:
            flags["data_digest"] = stream_digest(data_args.train_data, corpus, held_out)
        if tokenizer is None:
            tokenizer = self.trained_tokenizer(corpus, checkpoint is not None)
        set_seed(args.seed)
        vocabulary = MaskingVocabulary.from_tokenizer(tokenizer)
        model = self.build(tokenizer, vocabulary)

        # 3. Documents -> examples -> masked batches
        nsp, sop = getattr(args, "nsp_weight", 0) > 0, getattr(args, "sop_weight", 0) > 0
        train_set, eval_set, self.reports = numbered_examples(corpus, held_out, tokenizer, data_args, args, nsp=nsp)
        collator = MaskingCollator(
            vocabulary, options, seed=args.seed, duplicates=self.masking_args.masking_duplicates, sentence_order=sop
        )

        # 4. Train, evaluate, report
        trainer = self.trainer_class(
            model, args, data_collator=collator, train_dataset=train_set, eval_dataset=eval_set, processing_class=tokenizer
        )
        metrics = train_and_evaluate(trainer, checkpoint, flags)
        if args.should_save:
            self.report(trainer, metrics, time.perf_counter() - began)
        if args.push_to_hub:
            trainer.push_to_hub()
        trainer.print_divergence()
        release_folder()
        return metrics

    def given_tokenizer(self) -> Any:
        """Load the tokenizer from --tokenizer or --model, and check that it fits the model and the prepared rows."""
        model_args, config = self.model_args, None
        source, flag, options = model_args.model, "--model", model_args.model_download()
        if model_args.tokenizer is not None:
            source, flag, options = model_args.tokenizer, "--tokenizer", model_args.download()
        if model_args.model is not None:
            config = self.config
        with named_tokenizer(source, flag):
            tokenizer = load_tokenizer(source, model_max_length=self.data_args.max_length, **options)
        check_tokenizer(tokenizer, config, needs_mask=True)
        self.tokenizer_facts = {"source": source}
        if self.data_args.is_prepared:
            folder = self.data_args.train_data[0]
            prepared, digest = read_manifest(folder)["tokenizer"], tokenizer_digest(tokenizer)
            if prepared["digest"] != digest:
                raise ValueError(
                    f"the rows in {folder} were prepared with another tokenizer ({prepared['vocabulary']} tokens, digest "
                    f"{prepared['digest']}) than {source} ({len(tokenizer)} tokens, digest {digest}); pass --tokenizer "
                    f"{folder}/tokenizer, or prepare the corpus again with {source}"
                )
        return tokenizer

    def trained_tokenizer(self, corpus: Any, resuming: bool) -> Any:
        """Train the tokenizer on the corpus in the main process; load the result in other processes and resumed runs."""
        kind, vocab_size = self.model_args.train_tokenizer, self.model_args.vocab_size
        folder = Path(self.args.output_dir, TOKENIZER_FOLDER)
        with self.args.main_process_first(desc="training the tokenizer"):
            if (folder / "training.json").is_file() and (resuming or not self.args.should_save):
                self.tokenizer_facts = read_json(folder / "training.json")
                return load_tokenizer(folder)
            options = tokenizer_options(self.model_args)
            tokenizer = train_tokenizer(
                kind, texts(corpus), vocab_size, model_max_length=self.data_args.max_length, **options
            )
            report = tokenizer_report(tokenizer, texts(itertools.islice(corpus, 1000)))
            self.tokenizer_facts = {"kind": kind, "vocabulary": len(tokenizer)} | report
            print(f"tokenizer: {len(tokenizer)} of {vocab_size} requested tokens", flush=True)
            with replaced_folder(folder) as part:
                tokenizer.save_pretrained(part)
                (part / "training.json").write_text(json.dumps(self.tokenizer_facts, indent=2) + "\n", encoding="utf-8")
            return tokenizer

    def build(self, tokenizer: Any, vocabulary: MaskingVocabulary) -> DebertaExtPreTrainedModel:
        """Create or load the model, and copy special ids (for a new model, also the vocabulary size) from the tokenizer."""
        config, model_args = self.config, self.model_args
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        if model_args.model is None:
            config.vocab_size = max(tokenizer.get_vocab().values()) + 1
            config.pad_token_id = tokenizer.pad_token_id
            check_tokenizer(tokenizer, config, needs_mask=True)
            model = self.new_model()
        else:
            with readable_weights(model_args.model, model_args.config_overrides):
                # Parameters are trained in float32, even if the checkpoint is saved in half precision.
                model = self.load_model(config=config, dtype=torch.float32, **model_args.model_download())
        return set_attention(model, model_args)

    def report(self, trainer: RunTrainer, metrics: Mapping[str, float], seconds: float):
        """Draw the curves, and write and print the results; `seconds` is the duration of all stages."""
        raise NotImplementedError

    def write_report(self, trainer: RunTrainer, seconds: float, table: str, rows: Mapping[str, Any], **objectives: str):
        """Write run_report.json and the model cards, and print the results.

        Args:
            seconds (`float`): duration of all stages.
            table (`str`): table of the results to print.
            rows (`dict`): first rows of the training table in the card.
            objectives (`str`): title of each objective, by the name of the objective in the results.
        """
        folder = self.args.output_dir
        facts = self.facts(trainer, seconds, rows, objectives)
        report = dict(
            seconds=round(seconds, 1),
            tokenizer=self.tokenizer_facts,
            packing={name: vars(packed) for name, packed in self.reports.items()},
            versions=facts.hardware["versions"],
            changed_args=facts.training.get("changed when resumed"),
        )
        replace_text(Path(folder, REPORT_FILE), json.dumps(report, indent=2) + "\n")
        write_run_card(folder, facts)
        print(f"\n{table}\n\n{folder_summary(folder)}")

    def facts(self, trainer: RunTrainer, seconds: float, rows: Mapping[str, Any], objectives: Mapping[str, str]) -> RunFacts:
        """Return the facts of the run for its model cards; for the arguments, see `write_report`."""
        model_args, data_args, args = self.model_args, self.data_args, self.args
        sources, licenses = data_args.train_data, {}
        if data_args.is_prepared:
            prepared = read_manifest(sources[0])["sources"]
            sources = [item["source"] for item in prepared]
            licenses = {shown_source(item["source"]): item["license"] for item in prepared if item["license"]}
        options = dataclasses.asdict(trainer.data_collator.options)
        masking = {name: value for name, value in options.items() if name != "max_length" and value is not None}
        masking["masks"] = "new in each epoch"
        if self.masking_args.masking_duplicates is not None:
            masking["masks"] = f"{self.masking_args.masking_duplicates} fixed ones per example"
        tokenizer = dict(self.tokenizer_facts)
        if "source" in tokenizer:
            tokenizer["source"] = shown_source(tokenizer["source"])
        training = {
            **rows,
            "recipe": model_args.recipe,
            "data": [shown_source(source) for source in sources],
            "licences of the data": licenses or None,
            "packing": f"{data_args.packing}, {data_args.max_length} tokens",
            **{f"packed, {name}": packed.summary() for name, packed in self.reports.items()},
            "masking": masking,
            "tokenizer": tokenizer,
            "steps": trainer.state.global_step,
            "batch": batch_summary(args),
            "learning rate": f"{args.learning_rate}, warm-up {args.warmup_steps:g}",
            "optimizer": optimizer_name(args),
            "seed": args.seed,
            "changed when resumed": accepted_changes(args.output_dir),
        }
        hardware = hardware_facts(args, results=read_json(Path(args.output_dir, "all_results.json")))
        # The total duration of a resumed run is unknown.
        if args.resume_from_checkpoint is None:
            hardware["seconds of all stages"] = round(seconds, 1)
        base, packed = model_args.model, self.reports.get("train")
        return RunFacts(
            objectives=objectives,
            measured_on=", ".join(map(shown_source, data_args.validation_data)) or None,
            datasets=[source for source in sources if is_on_hub(source)],
            base_model=base and shown_source(base),
            base_model_id=base if is_on_hub(base) else None,
            from_scratch=base is None,
            training=drop_none(training),
            hardware=hardware,
            longest=data_args.max_length,
            tokens=packed and packed.packed_tokens,
            seeds=[args.seed],
            language=as_list(data_args.card_language),
            license=model_args.license,
            figure=CURVES_FILE,
            diverged=trainer.divergence(),
        )


def corpora(
    data_args: DataArguments, model_args: ModelArguments
) -> "tuple[Dataset | DocumentStream | PreparedRows, Dataset | PreparedRows]":
    """Load the training documents and the held-out documents. From a prepared corpus, load packed rows instead."""
    from datasets import Dataset

    common = dict(
        documents=data_args.documents,
        text_column=data_args.text_column,
        name=data_args.data_config,
        cache_dir=model_args.cache_dir,
        token=model_args.token,
    )
    held_out = None
    if data_args.validation_data:
        held_out = load_corpus(data_args.validation_data, split=data_args.validation_split, **common)
    if data_args.is_prepared:
        folder = data_args.train_data[0]
        cached = partial(PreparedRows, folder, cache_dir=model_args.cache_dir)
        if held_out is None:
            held_out = cached(held_out=True, limit=data_args.max_eval_samples)
        if not len(held_out):
            raise ValueError(f"the prepared corpus {folder} has no held-out rows; pass --validation_data")
        return cached(limit=data_args.max_train_samples, buffer=data_args.shuffle_buffer), held_out
    corpus = load_corpus(data_args.train_data, split=data_args.train_split, streaming=data_args.streaming, **common)
    if data_args.streaming:
        sizes = text_sizes(data_args.train_data)
        if held_out is not None:
            return DocumentStream(corpus, 0, sizes), held_out
        count = data_args.validation_documents or 100
        stream = DocumentStream(corpus, count, sizes)
        if next(iter(stream), None) is None:
            raise ValueError(f"--validation_documents {count} leaves no document to train on; pass --validation_data")
        return stream, Dataset.from_list(stream.held_out)
    if held_out is not None:
        return corpus, held_out
    count = data_args.validation_documents or min(100, max(1, len(corpus) // 10))
    if count >= len(corpus):
        raise ValueError(
            f"--validation_documents must be less than {len(corpus)}, the number of documents, got {count}; pass a lower "
            "number, pass --validation_data, or make each line a document with --documents line"
        )
    split = corpus.train_test_split(test_size=count, seed=0)
    return split["train"], split["test"]


def stream_digest(sources: Sequence[str], corpus: Any, held_out: Any) -> str:
    """Return a digest of the names and sizes of a stream's files, its held-out documents and its first 100 documents."""
    names = []
    for source in sources:
        files = list_files(source)
        if files is None:
            names.append([source])
        else:
            names.append([(Path(path).name, size) for path, size, _ in files])
    return json_digest([names, list(texts(held_out)), list(texts(itertools.islice(corpus, 100)))])


def numbered_examples(
    corpus: Any, held_out: Any, tokenizer: Any, data_args: DataArguments, args: TrainingArguments, *, nsp: bool = False
) -> tuple[NumberedExamples | NumberedStream, NumberedExamples, dict[str, PackingReport]]:
    """Pack documents into examples for `MaskingCollator`.

    Args:
        nsp (`bool`, default False): make pairs for next sentence prediction instead of pairs of consecutive segments.
    Returns:
        The training examples, the evaluation examples, and a dict with the packing reports ("train", "held_out").
    """
    packing = dict(
        mode=data_args.packing,
        max_length=data_args.max_length,
        min_tokens=data_args.min_tokens,
        sentence_pairs="nsp" if nsp else "consecutive",
        language=data_args.language,
        seed=args.seed if args.data_seed is None else args.data_seed,
    )
    reports = {}
    with args.main_process_first(desc="packing"):
        if isinstance(corpus, PreparedRows):
            reports["train"] = corpus.report
        elif not data_args.streaming:
            corpus, reports["train"] = pack(corpus, tokenizer, num_proc=data_args.num_proc, **packing)
            corpus = first(corpus, data_args.max_train_samples)
        if not isinstance(held_out, PreparedRows):
            held_out, reports["held_out"] = pack(held_out, tokenizer, num_proc=data_args.num_proc, **packing)
            held_out = first(held_out, data_args.max_eval_samples)
    for name, report in reports.items():
        print(f"{name.replace('_', ' ')}: {report.summary()}", flush=True)
    eval_set = NumberedExamples(held_out, fixed=True)
    if data_args.streaming:
        return packed_stream(corpus, tokenizer, packing, data_args, args), eval_set, reports
    if nsp and not reports["train"].negative_pairs:
        raise ValueError(
            "next sentence prediction needs pairs whose segments are from different documents, got none from "
            f"{reports['train'].documents} documents; add documents, or check --documents, which sets where a document ends"
        )
    return NumberedExamples(corpus), eval_set, reports


def packed_stream(
    corpus: DocumentStream, tokenizer: Any, packing: dict[str, Any], data_args: DataArguments, args: TrainingArguments
) -> NumberedStream:
    """Return a stream of examples, which reads and packs the documents during the training."""
    most = data_args.max_train_samples
    if most is not None:
        # One stream, so that the first rows come from the first files.
        streams = corpus.split(1)
    else:
        streams = corpus.split(max_streams(args))
    # Divide the buffers, so that all streams together use as much memory as one.
    count = max(100, 1000 // len(streams))
    buffer = max(1, data_args.shuffle_buffer // len(streams))
    shuffled = []
    for stream in streams:
        rows, _ = pack(stream, tokenizer, batch_size=count, **packing)
        # Number the rows before shuffling, so that static masks are the same in each epoch.
        rows = rows.map(lambda row, number: {"example": number}, with_indices=True)
        if most is not None:
            rows = rows.take(most)
        shuffled.append(rows.shuffle(seed=packing["seed"], buffer_size=buffer))
    return NumberedStream(
        *shuffled, endless=True, block=args.train_batch_size, process=args.process_index, processes=args.world_size
    )


def set_attention(model: DebertaExtPreTrainedModel, model_args: ModelArguments) -> DebertaExtPreTrainedModel:
    """Set the attention backend from --attn_implementation, if given, and return the model."""
    if model_args.attn_implementation is not None:
        model.set_attn_implementation(model_args.attn_implementation)
    return model


def train_and_evaluate(trainer: RunTrainer, checkpoint: str | None, flags: Mapping[str, Any]) -> dict[str, float]:
    """Train or resume, save the model, evaluate, and write metrics and state to the output folder.

    Args:
        checkpoint (`str`, *optional*): checkpoint to resume from.
        flags (`dict`): flags of the script that must not change when the run is resumed.
    """
    trainer.flags = flags
    trainer.train_and_save(checkpoint)
    metrics = trainer.record("eval", trainer.evaluate())
    trainer.save_state()
    return metrics


def is_on_hub(source: str | None) -> bool:
    """Return True if a source is a Hub id, not a local path."""
    return source is not None and not Path(source).exists() and is_hub_id(source)
