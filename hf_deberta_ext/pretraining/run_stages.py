# SPDX-License-Identifier: Apache-2.0
"""The stages of a pre-training script: documents, tokenizer, examples, training and reports."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments

from ..data.columns import first
from ..files import as_list, is_hub_id, replace_text, shown_source
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.modeling_deberta_ext import DebertaExtPreTrainedModel
from ..publishing.card import write_run_card
from ..publishing.facts import REPORT_FILE, RunFacts
from ..tokenization import check_tokenizer, load_tokenizer
from ..training.batch_size import hardware_facts, versions
from ..training.checkpoints import replaced_folder
from ..training.digests import json_digest, tokenizer_digest
from ..training.folder_lock import lock_folder
from ..training.model_sources import named_tokenizer
from ..training.published_optimizer import optimizer_name
from ..training.run_folder import TOKENIZER_FOLDER, accepted_changes, read_json
from ..training.trainer import RunTrainer
from .corpus import DocumentStream, file_bytes, list_files, load_corpus, texts
from .dynamic_masking import NumberedExamples, NumberedStream
from .packing import PackingReport, pack
from .prepared_corpus import PreparedRows, most_lanes, read_manifest
from .report import CURVES_FILE
from .run_arguments import DataArguments, MaskingArguments, ModelArguments, tokenizer_options
from .tokenizer_training import tokenizer_report, train_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["begin", "fit_to_tokenizer", "numbered_examples", "report_run", "set_attention", "train_and_evaluate"]


def corpora(
    data_args: DataArguments, model_args: ModelArguments
) -> "tuple[Dataset | DocumentStream | PreparedRows, Dataset | PreparedRows]":
    """Return the documents to train on and the held-out documents; of a prepared folder its rows.

    Raises:
        ValueError: nothing is left to train on.
    """
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
        return prepared_rows(data_args, model_args.cache_dir, held_out)
    corpus = load_corpus(data_args.train_data, split=data_args.train_split, streaming=data_args.streaming, **common)
    if data_args.streaming:
        return document_stream(data_args, corpus, held_out)
    if held_out is not None:
        return corpus, held_out
    count = data_args.validation_documents or min(100, max(1, len(corpus) // 10))
    if count >= len(corpus):
        raise ValueError(
            f"--validation_documents {count} leaves nothing of {len(corpus)} documents: give fewer, or --validation_data "
            "(--documents line makes each line a document)"
        )
    split = corpus.train_test_split(test_size=count, seed=0)
    return split["train"], split["test"]


def prepared_rows(data_args: DataArguments, cache_dir: str | None, held_out: Any) -> tuple[PreparedRows, Any]:
    """Return the rows of a prepared folder; `held_out` are documents of --validation_data."""
    folder = data_args.train_data[0]
    if held_out is None:
        held_out = PreparedRows(folder, held_out=True, limit=data_args.max_eval_samples, cache_dir=cache_dir)
        if not len(held_out):
            raise ValueError(f"{folder} has no rows that were held out: give --validation_data")
    rows = PreparedRows(folder, limit=data_args.max_train_samples, buffer=data_args.shuffle_buffer, cache_dir=cache_dir)
    return rows, held_out


def document_stream(data_args: DataArguments, corpus: Any, held_out: Any) -> tuple[DocumentStream, Any]:
    """Return the documents of a stream; its first ones are held out where --validation_data gives none."""
    from datasets import Dataset

    files = [list_files(source) for source in data_args.train_data]
    sizes = None
    if None not in files:
        sizes = [file_bytes(path, size) for path, size, _ in itertools.chain(*files)]
    if held_out is not None:
        return DocumentStream(corpus, 0, sizes), held_out
    count = data_args.validation_documents or 100
    stream = DocumentStream(corpus, count, sizes)
    if next(iter(stream), None) is None:
        raise ValueError(f"--validation_documents {count} leaves no document to train on: give --validation_data")
    return stream, Dataset.from_list(stream.held_out)


def begin(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: TrainingArguments,
    config: DebertaExtConfig,
    arguments: dict[str, Any],
    checkpoint: str | None,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Lock the folder of the run, read the documents, and load or train the tokenizer.

    Args:
        arguments (`dict`): that a resumed run must repeat. The digest of a stream is added; `RunTrainer` has others.
        checkpoint (`str`, *optional*): from which the run is resumed.
    Returns:
        documents to train on, held-out documents, the tokenizer and facts about it.
    Raises:
        ValueError: the tokenizer does not fit the model, another run works in the folder, and as `corpora`.
    """
    if model_args.train_tokenizer is None:
        source, flag, options = model_args.model, "--model", model_args.model_download()
        if model_args.tokenizer is not None:
            source, flag, options = model_args.tokenizer, "--tokenizer", model_args.download()
        with named_tokenizer(source, flag):
            tokenizer = load_tokenizer(source, model_max_length=data_args.max_length, **options)
        facts = {"source": source}
        check_tokenizer(tokenizer, None if model_args.model is None else config, needs_mask=True)
        if data_args.is_prepared:
            check_same_tokenizer(data_args.train_data[0], source, tokenizer)
    if args.should_save:
        lock_folder(args.output_dir)
    corpus, held_out = corpora(data_args, model_args)
    if data_args.streaming:
        arguments["data_digest"] = stream_digest(data_args.train_data, corpus, held_out)
    if model_args.train_tokenizer is not None:
        tokenizer, facts = trained_tokenizer(model_args, data_args, args, corpus, checkpoint is not None)
    return corpus, held_out, tokenizer, facts


def check_same_tokenizer(folder: str, source: str, tokenizer: Any):
    """Check that the rows of a prepared folder are of this tokenizer.

    Raises:
        ValueError: they are not.
    """
    prepared, digest = read_manifest(folder)["tokenizer"], tokenizer_digest(tokenizer)
    if prepared["digest"] != digest:
        raise ValueError(
            f"the rows of {folder} are of another tokenizer ({prepared['vocabulary']} tokens, digest {prepared['digest']}) "
            f"than {source} ({len(tokenizer)}, {digest}): take {folder}/tokenizer, or prepare the corpus with this one"
        )


def stream_digest(sources: Sequence[str], corpus: Any, held_out: Any) -> str:
    """Return a digest of the names and sizes of the files of a stream, and of its first documents."""
    names = []
    for source in sources:
        files = list_files(source)
        if files is None:
            names.append([source])
        else:
            names.append([(Path(path).name, size) for path, size, _ in files])
    return json_digest([names, list(texts(held_out)), list(texts(itertools.islice(corpus, 100)))])


def trained_tokenizer(
    model_args: ModelArguments, data_args: DataArguments, args: TrainingArguments, corpus: Any, resuming: bool
) -> tuple[Any, dict[str, Any]]:
    """Train the tokenizer on the corpus, and return it with facts about it."""
    folder = Path(args.output_dir, TOKENIZER_FOLDER)
    facts = folder / "training.json"
    with args.main_process_first(desc="training the tokenizer"):
        # The main process trains it; the others, and a resumed run, load it.
        if facts.is_file() and (resuming or not args.should_save):
            return load_tokenizer(folder), json.loads(facts.read_text(encoding="utf-8"))
        tokenizer = train_tokenizer(
            model_args.train_tokenizer,
            texts(corpus),
            model_args.vocab_size,
            model_max_length=data_args.max_length,
            **tokenizer_options(model_args),
        )
        report = tokenizer_report(tokenizer, texts(itertools.islice(corpus, 1000)))
        new_facts = {"kind": model_args.train_tokenizer, "vocabulary": len(tokenizer)} | report
        print(f"tokenizer: {len(tokenizer)} tokens of {model_args.vocab_size} asked for", flush=True)
        with replaced_folder(folder) as part:
            tokenizer.save_pretrained(part)
            (part / facts.name).write_text(json.dumps(new_facts, indent=2) + "\n", encoding="utf-8")
        return tokenizer, new_facts


def fit_to_tokenizer(config: DebertaExtConfig, tokenizer: Any, model_args: ModelArguments):
    """Set the tokenizer's special ids in the configuration and, for a new model, its size.

    Raises:
        ValueError: the tokenizer cannot serve a new model.
    """
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    if model_args.model is None:
        config.vocab_size = max(tokenizer.get_vocab().values()) + 1
        config.pad_token_id = tokenizer.pad_token_id
        check_tokenizer(tokenizer, config, needs_mask=True)


def numbered_examples(
    corpus: Any, held_out: Any, tokenizer: Any, data_args: DataArguments, args: TrainingArguments, *, nsp: bool = False
) -> tuple[NumberedExamples | NumberedStream, NumberedExamples, dict[str, PackingReport]]:
    """Pack documents into examples for `MaskingCollator`.

    Args:
        nsp (`bool`): pairs are for next sentence prediction; else their segments are consecutive.
    Returns:
        examples to train on, examples to evaluate on, counts of documents and examples.
    Raises:
        ValueError: `nsp`, and no pair has a second segment from elsewhere.
    """
    seed = args.seed if args.data_seed is None else args.data_seed
    packing = dict(
        mode=data_args.packing,
        max_length=data_args.max_length,
        min_tokens=data_args.min_tokens,
        sentence_pairs="nsp" if nsp else "consecutive",
        language=data_args.language,
        seed=seed,
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
            f"no pair of the training data has a B of another document ({reports['train'].documents} documents): there is "
            "nothing to learn for next sentence prediction; give more documents (--documents says what one is)"
        )
    return NumberedExamples(corpus), eval_set, reports


def packed_stream(
    corpus: DocumentStream, tokenizer: Any, packing: dict[str, Any], data_args: DataArguments, args: TrainingArguments
) -> NumberedStream:
    """Pack the documents of a stream while it is read."""
    most = data_args.max_train_samples
    if most is not None:
        # The first rows of a stream come from its first files.
        lanes = corpus.lanes(1)
    else:
        lanes = corpus.lanes(most_lanes(args))
        readers = args.world_size * max(1, args.dataloader_num_workers)
        if args.should_save:
            # To read it once, a text is parted into files of about the same size, as many as readers or a multiple.
            times = readers // math.gcd(len(lanes), readers)
            print(
                f"stream: {corpus.files} files for {readers} processes and workers, each file is read by {times}", flush=True
            )
    # All lanes together hold as many documents and rows in memory as one.
    count = max(100, 1000 // len(lanes))
    buffer = max(1, data_args.shuffle_buffer // len(lanes))
    shuffled = []
    for lane in lanes:
        rows, _ = pack(lane, tokenizer, batch_size=count, **packing)
        # Numbered before they are shuffled again in each epoch, so that static masks recur.
        rows = rows.map(lambda row, number: {"example": number}, with_indices=True)
        if most is not None:
            rows = rows.take(most)
        shuffled.append(rows.shuffle(seed=packing["seed"], buffer_size=buffer))
    return NumberedStream(
        *shuffled, endless=True, block=args.train_batch_size, process=args.process_index, processes=args.world_size
    )


def set_attention(model: DebertaExtPreTrainedModel, model_args: ModelArguments) -> DebertaExtPreTrainedModel:
    """Set the attention backend of --attn_implementation, if it is given, and return the model."""
    if model_args.attn_implementation is not None:
        model.set_attn_implementation(model_args.attn_implementation)
    return model


def train_and_evaluate(trainer: RunTrainer, checkpoint: str | None, flags: Mapping[str, Any]) -> dict[str, float]:
    """Train, from a checkpoint if one is given, save the model, evaluate; metrics and state go to the output folder.

    Args:
        flags (`dict`): of the script, that a resumed run must repeat.
    """
    trainer.flags = flags
    trainer.train_and_save(checkpoint)
    metrics = trainer.record("eval", trainer.evaluate())
    trainer.save_state()
    return metrics


def report_run(
    trainer: RunTrainer,
    flags: tuple[DataArguments, ModelArguments, MaskingArguments],
    tokenizer_facts: Mapping[str, Any],
    reports: Mapping[str, PackingReport],
    *,
    seconds: float,
    **facts: Any,
):
    """Write run_report.json, with duration, tokenizer, packing and versions, and the model cards.

    Args:
        facts: `rows` and `objectives` of `run_facts`.
    """
    folder = trainer.args.output_dir
    run_report = dict(
        seconds=round(seconds, 1),
        tokenizer=dict(tokenizer_facts),
        packing={name: dataclasses.asdict(report) for name, report in reports.items()},
        versions=versions(),
        resumed_anyway=accepted_changes(folder),
    )
    replace_text(Path(folder, REPORT_FILE), json.dumps(run_report, indent=2) + "\n")
    write_run_card(folder, run_facts(trainer, *flags, run_report=run_report, reports=reports, **facts))


def run_facts(
    trainer: RunTrainer,
    data_args: DataArguments,
    model_args: ModelArguments,
    masking_args: MaskingArguments,
    *,
    run_report: Mapping[str, Any],
    reports: Mapping[str, PackingReport],
    rows: Mapping[str, Any],
    objectives: Mapping[str, str] | None = None,
) -> RunFacts:
    """Return the facts of a pre-training for its model cards.

    Args:
        run_report (`dict`): the content of run_report.json.
        rows (`dict`): of the table of the training, before the usual ones.
        objectives (`dict[str, str]`, *optional*): name in the results -> title.
    """
    args = trainer.args
    sources, licenses = data_args.train_data, {}
    if data_args.is_prepared:
        prepared = read_manifest(sources[0])["sources"]
        sources = [item["source"] for item in prepared]
        licenses = {shown_source(item["source"]): item["license"] for item in prepared if item["license"]}
    options = dataclasses.asdict(trainer.data_collator.options)
    masking = {name: value for name, value in options.items() if name != "max_length" and value is not None}
    masking["copies"] = "dynamic"
    if masking_args.masking_duplicates is not None:
        masking["copies"] = f"{masking_args.masking_duplicates}, static"
    tokenizer = dict(run_report["tokenizer"])
    if "source" in tokenizer:
        tokenizer["source"] = shown_source(tokenizer["source"])
    training = {
        **rows,
        "recipe": model_args.recipe,
        "data": [shown_source(source) for source in sources],
        "licences of the data": licenses or None,
        "packing": f"{data_args.packing}, {data_args.max_length} tokens",
        **{f"packed, {name}": report.summary() for name, report in reports.items()},
        "masking": masking,
        "tokenizer": tokenizer,
        "steps": trainer.state.global_step,
        "batch": f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size} processes",
        "learning rate": f"{args.learning_rate}, warm-up {args.warmup_steps:g}",
        "optimizer": optimizer_name(args),
        "seed": args.seed,
        "resumed with other": run_report.get("resumed_anyway") or None,
    }
    hardware = hardware_facts(args, results=read_json(Path(args.output_dir, "all_results.json")))
    # Nobody knows how long a resumed run took.
    if args.resume_from_checkpoint is None:
        hardware["seconds of all stages"] = run_report["seconds"]
    hardware["versions"] = hardware.pop("versions")
    base, packed = model_args.model, reports.get("train")
    return RunFacts(
        objectives=objectives or {},
        measured_on=", ".join(map(shown_source, data_args.validation_data)) or None,
        datasets=[source for source in sources if is_on_hub(source)],
        base_model=base and shown_source(base),
        base_model_id=base if is_on_hub(base) else None,
        from_scratch=base is None,
        training={name: value for name, value in training.items() if value is not None},
        hardware=hardware,
        longest=data_args.max_length,
        tokens=packed and packed.packed_tokens,
        seeds=[args.seed],
        language=as_list(data_args.card_language),
        license=model_args.license,
        figure=CURVES_FILE,
        diverged=trainer.divergence(),
    )


def is_on_hub(source: str | None) -> bool:
    """Return whether a model or data set is named by its id on the Hub."""
    return source is not None and not Path(source).exists() and is_hub_id(source)
