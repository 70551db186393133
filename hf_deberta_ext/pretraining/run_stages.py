# SPDX-License-Identifier: Apache-2.0
"""The stages of a pre-training script: documents, tokenizer, examples, training and reports."""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import TrainingArguments

from ..data.columns import first
from ..model.configuration_deberta_ext import DebertaExtConfig
from ..model.pretrained_model import DebertaExtPreTrainedModel
from ..publishing.card import write_run_card
from ..publishing.card_metadata import as_list, is_hub_id
from ..publishing.facts import REPORT_FILE, RunFacts, shown_source
from ..tokenization import check_tokenizer, load_tokenizer
from ..training.batch_size import hardware_facts, versions
from ..training.checkpoints import replaced_folder
from ..training.digests import json_digest, tokenizer_digest
from ..training.disk_space import write_text
from ..training.model_sources import named_tokenizer
from ..training.published_optimizer import optimizer_name
from ..training.run_folder import TOKENIZER_FOLDER, accepted_changes, begin_run, claim_folder
from ..training.trainer import RunTrainer
from .corpus import DocumentStream, file_bytes, list_files, load_corpus, texts
from .dynamic_masking import NumberedExamples, NumberedStream
from .packing import PackingReport, pack
from .prepared_corpus import PreparedRows, is_prepared, most_lanes, read_manifest
from .report import CURVES_FILE
from .run_arguments import DataArguments, MaskingArguments, ModelArguments, tokenizer_options
from .tokenizer_training import tokenizer_report, train_tokenizer

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "begin",
    "fit_to_tokenizer",
    "numbered_examples",
    "report_run",
    "run_facts",
    "set_attention",
    "train_and_evaluate",
]


def corpora(
    data_args: DataArguments, model_args: ModelArguments
) -> "tuple[Dataset | DocumentStream | PreparedRows, Dataset | PreparedRows]":
    """Documents to train on and held-out documents; of a prepared folder its rows.

    Raises:
        ValueError: nothing is left to train on.
    """
    common = dict(
        documents=data_args.documents, text_column=data_args.text_column, name=data_args.data_config,
        cache_dir=model_args.cache_dir, token=model_args.token,
    )  # fmt: skip
    if data_args.validation_data:
        held_out = load_corpus(data_args.validation_data, split=data_args.validation_split, **common)
    if is_prepared(*data_args.train_data):
        (folder,) = data_args.train_data
        options = dict(cache_dir=model_args.cache_dir)
        if not data_args.validation_data:
            held_out = PreparedRows(folder, held_out=True, limit=data_args.max_eval_samples, **options)
            if not len(held_out):
                raise ValueError(f"{folder} has no rows that were held out: give --validation_data")
        limits = dict(limit=data_args.max_train_samples, buffer=data_args.shuffle_buffer)
        return PreparedRows(folder, **limits, **options), held_out
    corpus = load_corpus(data_args.train_data, split=data_args.train_split, streaming=data_args.streaming, **common)
    count = data_args.validation_documents
    if data_args.streaming:
        from datasets import Dataset

        files = [list_files(source) for source in data_args.train_data]
        sizes = None if None in files else [file_bytes(path, size) for path, size, _ in itertools.chain(*files)]
        if data_args.validation_data:
            return DocumentStream(corpus, 0, sizes), held_out
        stream = DocumentStream(corpus, count := count or 100, sizes)
        if next(iter(stream), None) is None:
            raise ValueError(f"--validation_documents {count} leaves no document to train on: give --validation_data")
        return stream, Dataset.from_list(stream.held_out)
    if data_args.validation_data:
        return corpus, held_out
    count = count or min(100, max(1, len(corpus) // 10))
    if count >= len(corpus):
        raise ValueError(
            f"--validation_documents {count} leaves nothing of {len(corpus)} documents: give fewer, or --validation_data "
            "(--documents line makes each line a document)"
        )
    order = np.random.default_rng(0).permutation(len(corpus))
    return documents_at(corpus, order[count:]), documents_at(corpus, order[:count])


def documents_at(corpus: "Dataset", numbers: np.ndarray) -> "Dataset":
    """`corpus.select(numbers)`, which takes 100 bytes of memory for each number, of what `load_corpus` gives."""
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    indices = InMemoryTable.from_arrays([pa.array(numbers.astype(np.uint64))], names=["indices"])
    return Dataset(corpus.data, info=corpus.info, split=corpus.split, indices_table=indices)


def begin(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: TrainingArguments,
    config: DebertaExtConfig,
    arguments: dict[str, Any],
    checkpoint: str | None,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Begin the folder of the run, read the documents, and load or train the tokenizer.

    Args:
        arguments (`dict`): that a resumed run must repeat. The digest of a stream is added; `RunTrainer` has others.
        checkpoint (`str`, *optional*): from which the run goes on.
    Returns:
        documents to train on, held-out documents, the tokenizer and facts about it.
    Raises:
        ValueError: the tokenizer does not fit the model, and as `begin_run` and `corpora`.
    """
    if model_args.train_tokenizer is None:
        source, flag, options = model_args.model, "--model", model_args.model_download()
        if model_args.tokenizer is not None:
            source, flag, options = model_args.tokenizer, "--tokenizer", model_args.download()
        with named_tokenizer(source, flag, **options):
            tokenizer = load_tokenizer(source, model_max_length=data_args.max_length, **options)
        facts = {"source": source}
        check_tokenizer(tokenizer, None if model_args.model is None else config, needs_mask=True)
        if is_prepared(*data_args.train_data):
            check_same_tokenizer(data_args.train_data[0], source, tokenizer)
    if args.should_save:
        claim_folder(args.output_dir, is_new=checkpoint is None)
        begin_run(args.output_dir, arguments, checkpoint, args.resume_anyway)
    corpus, held_out = corpora(data_args, model_args)
    if data_args.streaming:
        arguments["data_digest"] = stream_digest(data_args.train_data, corpus, held_out)
    if model_args.train_tokenizer is not None:
        tokenizer, facts = trained_tokenizer(model_args, data_args, args, corpus, checkpoint is not None)
    return corpus, held_out, tokenizer, facts


def check_same_tokenizer(folder: str, source: str, tokenizer: Any):
    """
    Raises:
        ValueError: the rows of a prepared folder are of another tokenizer.
    """
    prepared, digest = read_manifest(folder)["tokenizer"], tokenizer_digest(tokenizer)
    if prepared["digest"] != digest:
        raise ValueError(
            f"the rows of {folder} are of another tokenizer ({prepared['vocabulary']} tokens, digest {prepared['digest']}) "
            f"than {source} ({len(tokenizer)}, {digest}): take {folder}/tokenizer, or prepare the corpus with this one"
        )


def stream_digest(sources: Sequence[str], corpus: Any, held_out: Any) -> str:
    """Digest of the names and sizes of the files of a stream, and of its first documents."""
    files = [
        [source] if (files := list_files(source)) is None else [(Path(path).name, size) for path, size, _ in files]
        for source in sources
    ]
    return json_digest([files, [*texts(held_out)], [*texts(itertools.islice(corpus, 100))]])


def trained_tokenizer(
    model_args: ModelArguments, data_args: DataArguments, args: TrainingArguments, corpus: Any, resuming: bool
) -> tuple[Any, dict[str, Any]]:
    """The tokenizer trained on the corpus, and facts about it."""
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
        sample = itertools.islice(corpus, 1000) if data_args.streaming else first(corpus, 1000)
        report = tokenizer_report(tokenizer, texts(sample))
        new_facts = {"kind": model_args.train_tokenizer, "vocabulary": len(tokenizer)} | report
        few = len(tokenizer) < model_args.vocab_size
        note = f" of {model_args.vocab_size} asked for: the text has no more" if few else ""
        print(f"tokenizer: {len(tokenizer)} tokens{note}", flush=True)
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
    """Pack documents into examples for `MaskingCollator`: (to train on, to evaluate on, counts of documents and examples).

    Args:
        nsp (`bool`): pairs are for next sentence prediction; else their segments are consecutive.
    Raises:
        ValueError: `nsp`, and no pair has a second segment from elsewhere.
    """
    seed = args.seed if args.data_seed is None else args.data_seed

    def packed(documents, **options):
        return pack(
            documents, tokenizer, mode=data_args.packing, max_length=data_args.max_length, min_tokens=data_args.min_tokens,
            sentence_pairs="nsp" if nsp else "consecutive", language=data_args.language, seed=seed,
            num_proc=data_args.num_proc, **options,
        )  # fmt: skip

    is_ready, eval_report = isinstance(corpus, PreparedRows), None
    with args.main_process_first(desc="packing"):
        if not data_args.streaming:
            train_set, report = (corpus, corpus.report) if is_ready else packed(corpus)
        eval_set = held_out
        if not isinstance(held_out, PreparedRows):
            eval_set, eval_report = packed(held_out)
            eval_set = first(eval_set, data_args.max_eval_samples)
    eval_set = NumberedExamples(eval_set, fixed=True)
    if is_ready:
        print(f"train, prepared: {report.summary()}; held out: {len(eval_set)} examples", flush=True)
        return NumberedExamples(train_set), eval_set, {"train": report} | ({"held_out": eval_report} if eval_report else {})
    if not data_args.streaming:
        print(f"train: {report.summary()}\nheld out: {eval_report.summary()}", flush=True)
        if nsp and not report.negative_pairs:
            raise ValueError(
                f"no pair of the training data has a B of another document ({report.documents} documents): there is "
                "nothing to learn for next sentence prediction; give more documents (--documents says what one is)"
            )
        train_set = NumberedExamples(first(train_set, data_args.max_train_samples))
        return train_set, eval_set, {"train": report, "held_out": eval_report}
    most = data_args.max_train_samples
    # The first rows of a stream are those of its first files.
    lanes = corpus.lanes(most_lanes(args) if most is None else 1)
    if args.should_save and most is None:
        print(readers_line(corpus.files, len(lanes), args), flush=True)
    # All lanes together hold as many documents and rows in memory as one.
    count, buffer = max(100, 1000 // len(lanes)), max(1, data_args.shuffle_buffer // len(lanes))
    rows = []
    for lane in lanes:
        # Numbered before they are shuffled anew in each epoch, so that static masks recur.
        row = packed(lane, batch_size=count)[0].map(lambda row, number: {"example": number}, with_indices=True)
        rows.append((row if most is None else row.take(most)).shuffle(seed=seed, buffer_size=buffer))
    train_set = NumberedStream(
        *rows, endless=True, block=args.train_batch_size, process=args.process_index, processes=args.world_size
    )
    return train_set, eval_set, {"held_out": eval_report}


def readers_line(files: int, lanes: int, args: TrainingArguments) -> str:
    """The line that says how often the files of a stream are read in a pass, and how to read them once."""
    workers = max(1, args.dataloader_num_workers)
    readers = args.world_size * workers
    times = readers // math.gcd(lanes, readers)
    line = f"stream: files {files}, lanes {lanes}, readers {readers} (processes {args.world_size} x workers {workers})"
    if times == 1:
        return f"{line}: each file is read by one"
    return (
        f"{line}: each file is read by {times} of them. To read it once, part the text into files of about the same size, "
        "as many as readers or a multiple, or prepare it with prepare_corpus.py"
    )


def set_attention(model: DebertaExtPreTrainedModel, model_args: ModelArguments) -> DebertaExtPreTrainedModel:
    """The model with the backend of --attn_implementation, or its own choice."""
    if model_args.attn_implementation is not None:
        model.set_attn_implementation(model_args.attn_implementation)
    return model


def train_and_evaluate(
    trainer: RunTrainer, checkpoint: str | None, flags: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Train, from a checkpoint if one is given, save the model, evaluate; metrics and state go to the output folder.

    Args:
        flags (`dict`, *optional*): of the script, that a resumed run must repeat.
    """
    trainer.flags = flags or {}
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
    write_text(Path(folder, REPORT_FILE), json.dumps(run_report, indent=2) + "\n")
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
    """Facts of a pre-training for its model cards.

    Args:
        run_report (`dict`): the content of run_report.json.
        rows (`dict`): of the table of the training, before the usual ones.
        objectives (`dict[str, str]`, *optional*): name in the results -> title.
    """
    args, options = trainer.args, trainer.data_collator.options
    masking = dataclasses.asdict(options)
    masking = {name: value for name, value in masking.items() if name != "max_length" and value is not None}
    copies = masking_args.masking_duplicates
    sources, licenses = data_args.train_data, {}
    if is_prepared(*sources):
        prepared = read_manifest(sources[0])["sources"]
        sources = [item["source"] for item in prepared]
        licenses = {shown_source(item["source"]): item["license"] for item in prepared if item["license"]}
    tokenizer = {name: shown_source(value) if name == "source" else value for name, value in run_report["tokenizer"].items()}
    training = {} if model_args.recipe is None else {"recipe": model_args.recipe}
    training |= {
        "data": [shown_source(source) for source in sources],
        **({"licences of the data": licenses} if licenses else {}),
        "packing": f"{data_args.packing}, {data_args.max_length} tokens",
        **{f"packed, {name}": report.summary() for name, report in reports.items()},
        "masking": masking | {"copies": "dynamic" if copies is None else f"{copies}, static"},
        "tokenizer": tokenizer,
        "steps": trainer.state.global_step,
        "batch": f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size} processes",
        "learning rate": f"{args.learning_rate}, warm-up {args.warmup_steps:g}",
        "optimizer": optimizer_name(args),
        "seed": args.seed,
    }
    if changes := run_report.get("resumed_anyway"):
        training["resumed with other"] = changes
    results = Path(args.output_dir, "all_results.json")
    hardware = hardware_facts(args, results=json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {})
    versions_row = {"versions": hardware.pop("versions")}
    # Of a run that was resumed nobody knows how long it took.
    seconds = {"seconds of all stages": run_report["seconds"]} if args.resume_from_checkpoint is None else {}
    base, packed = model_args.model, reports.get("train")
    return RunFacts(
        objectives=objectives or {},
        measured_on=", ".join(map(shown_source, data_args.validation_data)) or None,
        datasets=[source for source in sources if not Path(source).exists() and is_hub_id(source)],
        base_model=None if base is None else shown_source(base),
        base_model_id=None if base is None or Path(base).exists() or not is_hub_id(base) else base,
        from_scratch=base is None,
        training={**rows, **training},
        hardware=hardware | seconds | versions_row,
        longest=data_args.max_length,
        tokens=None if packed is None else packed.packed_tokens,
        seeds=[args.seed],
        language=as_list(data_args.card_language),
        license=model_args.license,
        figure=CURVES_FILE,
        diverged=trainer.divergence(),
    )
