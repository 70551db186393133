# SPDX-License-Identifier: Apache-2.0
"""Prepare a corpus for pre-training: filter, deduplicate, decontaminate, train a tokenizer, pack rows into shards.

On this machine, with two processes; then a training from it (`pip install "hf_deberta_ext[train,prepare]"`):

    python examples/prepare_corpus.py --train_data articles/ --licenses cc-by-sa-4.0 --deduplicate exact minhash \\
        --quality gopher_quality --decontaminate glue/dev.tsv --train_tokenizer unigram --vocab_size 32000 \\
        --max_length 512 --workers 2 --output_dir prepared
    python examples/run_mlm.py --train_data prepared --max_length 512 --preset v3-small --max_steps 100000 --output_dir mine

On a cluster, with a folder that all machines see:

    python examples/prepare_corpus.py --train_data s3://bucket/articles --tokenizer mine --executor slurm --workers 500 \\
        --executor_options partition=cpu,time=24:00:00 --output_dir /shared/prepared

A tiny one, in seconds:

    python -c "import this" > zen.txt
    python examples/prepare_corpus.py --train_data zen.txt --documents line --validation_documents 3 \\
        --train_tokenizer byte-level-bpe --vocab_size 300 --max_length 64 --output_dir prepared

datatrove runs the stages. A preparation that was stopped is resumed by the same command: tasks that are finished are not run
again. The shards depend on the data and the flags, not on --workers or the executor. The output folder holds the
shards, tokenizer/, manifest.json (`deberta-ext info prepared` shows it) and work/, which may be removed at the end. A file
is read by one task, and a shard is made of --part_bytes of text.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

from hf_deberta_ext.pretraining import corpus_arguments as flags
from hf_deberta_ext.pretraining.packing import PAIR_MODES, check_packing
from hf_deberta_ext.pretraining.prepared_corpus import load_manifest, manifest_text, read_manifest, write_manifest
from hf_deberta_ext.tokenization import check_tokenizer, load_tokenizer
from hf_deberta_ext.training.digests import tokenizer_digest
from hf_deberta_ext.training.flags import option, overrides, parse_flags
from hf_deberta_ext.training.folder_lock import locked_folder
from hf_deberta_ext.training.model_sources import named_tokenizer
from hf_deberta_ext.training.user_errors import ExitOnUserError


@dataclass
class PreparationArguments(flags.CorpusArguments, flags.TokenizerArguments):
    output_dir: str | None = option(None, "folder of the prepared corpus, or its URL")
    licenses: list[str] = option(list, "of each of --train_data, or one of all, for the manifest and model cards")
    tokenizer_sample: int = option(2 * 10**9, "characters that --train_tokenizer learns from")
    sentence_pairs: str = option(
        "consecutive", "nsp: half of the pairs have a B of elsewhere", choices=["consecutive", "nsp"]
    )
    seed: int = option(0, "of the random choices of nsp")
    languages: list[str] = option(list, "keep only documents of these languages")
    language_model: str | None = option(None, "fastText's .bin file that tells them; default: lid.176, downloaded")
    language_threshold: float = option(0.65, "probability from which on a document is of a language")
    quality: list[str] = option(list, "filters of quality", choices=["gopher_repetition", "gopher_quality", "fineweb"])
    deduplicate: list[str] = option(
        list, "exact: documents that are equal, minhash: nearly equal", choices=["exact", "minhash"]
    )
    decontaminate: list[str] = option(list, "files of evaluation sets: documents with an n-gram of theirs are dropped")
    decontaminate_ngram: int = option(13, "words of such an n-gram")
    part_bytes: int = option(2**26, "of text, in one shard")
    executor: str = option("local", "of datatrove", choices=["local", "slurm", "ray"])
    workers: int = option(1, "tasks that run at once")
    executor_options: str | None = option(None, "other arguments of the executor: partition=cpu,time=24:00:00")


# Flags that may differ when a preparation is resumed.
FREE = ("output_dir", "executor", "workers", "executor_options")
CONTENTS = dict(
    groups="the files of --train_data", evaluation_files="the files of --decontaminate", tokenizer_digest="the tokenizer"
)


def main(argv: list[str] | None = None) -> dict:
    with ExitOnUserError():
        (args,), _ = parse_flags((PreparationArguments,), argv, description=__doc__, elsewhere=flags.ELSEWHERE)
        return run(args)


def run(args: PreparationArguments) -> dict:
    # 1. Errors of the user end the run here, before anything long begins
    check(args)
    try:
        from hf_deberta_ext.pretraining import preparation
        from hf_deberta_ext.pretraining.preparation_blocks import save_tokenizer
    except ImportError as error:
        raise ImportError(f'{error}; the preparation needs datatrove: pip install "hf_deberta_ext[prepare]"') from error

    groups = preparation.grouped_sources(
        args.train_data,
        part_bytes=args.part_bytes,
        text_column=args.text_column,
        config=args.data_config,
        split=args.train_split,
    )
    evaluation_files = preparation.evaluation_files(args.decontaminate)
    evaluation_hashes = preparation.ngram_hashes(evaluation_files, args.decontaminate_ngram)
    filters = preparation.language_filters(args.languages, args.language_threshold, args.language_model)
    packing = dict(
        mode=args.packing,
        max_length=args.max_length,
        sentence_pairs=args.sentence_pairs,
        language=args.language,
        min_tokens=args.min_tokens,
        seed=args.seed if args.packing in PAIR_MODES else 0,
    )
    request = {name: value for name, value in dataclasses.asdict(args).items() if name not in FREE} | {"groups": groups}
    if evaluation_files:
        request["evaluation_files"] = evaluation_files
    trained_tokenizer = None
    if args.tokenizer is not None:
        with named_tokenizer(args.tokenizer, "--tokenizer"):
            tokenizer = load_tokenizer(args.tokenizer)
        check_tokenizer(tokenizer, None, needs_mask=True)
        check_packing(tokenizer, args.packing, args.max_length, args.sentence_pairs, args.min_tokens)
        request["tokenizer_digest"] = tokenizer_digest(tokenizer)
    else:
        trained_tokenizer = dict(kind=args.train_tokenizer, vocab_size=args.vocab_size, model_max_length=args.max_length)
        trained_tokenizer |= flags.tokenizer_options(args)
    licenses = args.licenses or [None]
    if len(licenses) == 1:
        licenses *= len(args.train_data)
    manifest = dict(
        finished=False,
        # As JSON gives it back.
        request=json.loads(json.dumps(request)),
        packing=packing,
        held_out_documents=args.validation_documents,
        sources=[dict(source=source, license=name) for source, name in zip(args.train_data, licenses, strict=True)],
        tokenizer=dict(source=args.tokenizer or args.train_tokenizer),
    )
    with in_folder(args.output_dir):
        begin(args, manifest)

        # 2. Tokenizer and evaluation sets
        if args.tokenizer is not None:
            save_tokenizer(tokenizer, args.output_dir)
        filters |= preparation.document_filters(
            args.output_dir, quality=args.quality, evaluation_hashes=evaluation_hashes, ngram=args.decontaminate_ngram
        )

        # 3. Stages
        stages = preparation.prepare(
            args.output_dir,
            groups,
            reading=dict(documents=args.documents, text_column=args.text_column),
            filters=filters,
            deduplicate=args.deduplicate,
            trained_tokenizer=trained_tokenizer,
            tokenizer_sample=args.tokenizer_sample,
            packing=packing,
            held_out=args.validation_documents,
            manifest=manifest,
        )
        options = overrides(args.executor_options, "--executor_options")
        preparation.run_stages(stages, args.output_dir, args.executor, args.workers, options)
        if args.executor == "slurm":
            print(f"submitted: {args.output_dir} is prepared when the job prepare_manifest has ended")
            return manifest
        manifest = read_manifest(args.output_dir)
        print(manifest_text(manifest))
        return manifest


@contextlib.contextmanager
def in_folder(folder: str) -> Iterator[None]:
    """Lock the folder of a preparation, if it is local."""
    if "://" in folder:
        yield
        return
    with locked_folder(folder):
        yield


def check(args: PreparationArguments):
    """Check flags that are wrong by themselves, or together."""
    flags.check_corpus(args)
    if args.output_dir is None:
        raise ValueError("there is no place for the result: give --output_dir")
    if (args.tokenizer is None) == (args.train_tokenizer is None):
        raise ValueError("rows need one tokenizer: give --tokenizer, or --train_tokenizer unigram (or byte-level-bpe)")
    if len(args.licenses) not in (0, 1, len(args.train_data)):
        raise ValueError(
            f"--licenses names {len(args.licenses)}, --train_data {len(args.train_data)}: one each, or one of all"
        )
    for name in ("workers", "part_bytes", "tokenizer_sample", "decontaminate_ngram"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.language_model is not None and not args.languages:
        raise ValueError("--language_model has nothing to tell: give --languages")
    flags.tokenizer_options(args)
    check_packing(None, args.packing, args.max_length, args.sentence_pairs, args.min_tokens)


def begin(args: PreparationArguments, manifest: dict):
    """Write the manifest of an unfinished preparation, or compare it with the one that is there.

    Raises:
        ValueError: the folder holds a preparation of other files or flags.
    """
    begun = load_manifest(args.output_dir)
    if not begun:
        write_manifest(args.output_dir, manifest)
        return
    before, now = begun.get("request", {}), manifest["request"]
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = ", ".join(CONTENTS.get(name, f"--{name}") for name in changed)
        raise ValueError(
            f"{args.output_dir} was begun with other values of {names}: repeat them, or give another --output_dir"
        )


if __name__ == "__main__":
    main()
