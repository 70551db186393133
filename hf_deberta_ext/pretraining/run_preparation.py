# SPDX-License-Identifier: Apache-2.0
"""Prepare a corpus for pre-training: filter, deduplicate, decontaminate, train a tokenizer, pack rows into shards."""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from ..tokenization import check_tokenizer, load_tokenizer
from ..training.digests import tokenizer_digest
from ..training.flags import option, parse_flags
from ..training.folder_lock import locked_folder
from ..training.model_sources import named_tokenizer
from ..training.user_errors import ExitOnUserError, needs_extra
from .corpus_arguments import ELSEWHERE, CorpusArguments, TokenizerArguments, check_corpus, tokenizer_options
from .packing import PAIR_MODES, check_packing
from .prepared_corpus import load_manifest, manifest_text, read_manifest, write_manifest

__all__ = ["PreparationArguments", "main"]


@dataclass
class PreparationArguments(CorpusArguments, TokenizerArguments):
    """Flags of corpus preparation, in addition to the flags for corpora and tokenizers."""

    output_dir: str | None = option(None, "folder or URL of the prepared corpus; required")
    licenses: list[str] = option(list, "one license for all --train_data, or one for each; for manifest and model cards")
    tokenizer_sample: int = option(2 * 10**9, "maximum number of characters to train the tokenizer on")
    sentence_pairs: str = option(
        "consecutive",
        "nsp: in about half of the pairs, the second segment is from another document; consecutive: in no pair",
        choices=["consecutive", "nsp"],
    )
    seed: int = option(0, "random seed, only used for pairs (--packing segment_pair or sentence_pair)")
    languages: list[str] = option(list, "only keep documents in these languages")
    language_model: str | None = option(None, "fastText .bin file for language detection; default: download lid.176")
    language_threshold: float = option(0.65, "minimum probability of the detected language")
    quality: list[str] = option(list, "quality filters", choices=["gopher_repetition", "gopher_quality", "fineweb"])
    deduplicate: list[str] = option(
        list, "remove duplicates (exact) or near-duplicates (minhash)", choices=["exact", "minhash"]
    )
    decontaminate: list[str] = option(list, "files of evaluation sets: remove documents with an n-gram from these files")
    decontaminate_ngram: int = option(13, "length of the n-grams of --decontaminate, in words")
    part_bytes: int = option(2**26, "bytes of text per shard")
    executor: str = option("local", "datatrove executor that runs the tasks", choices=["local", "slurm", "ray"])
    workers: int = option(1, "number of parallel tasks")
    executor_options: str | None = option(None, "more arguments of the executor, such as partition=cpu,time=24:00:00")


# Flags that may change when a preparation is resumed.
FREE = ("output_dir", "executor", "workers", "executor_options")
CONTENTS = dict(
    groups="the files of --train_data", evaluation_files="the files of --decontaminate", tokenizer_digest="the tokenizer"
)


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s") -> dict[str, Any]:
    """Parse a command line, prepare the corpus, and return its manifest.

    Args:
        argv (`list[str]`, *optional*): flags; default: the flags of the process.
        description (`str`): description; `--help` shows its first paragraph.
        program (`str`): program name in `--help`.
    """
    usage = f"{program} --train_data FILES --train_tokenizer unigram --max_length 512 --output_dir FOLDER ..."
    with ExitOnUserError():
        (args,), _ = parse_flags((PreparationArguments,), argv, description=description, usage=usage, elsewhere=ELSEWHERE)
        return run(args)


def run(args: PreparationArguments) -> dict[str, Any]:
    """Check the flags, run the stages, and return the manifest."""
    # 1. Raise user errors before any long computation
    check(args)
    with needs_extra("prepare"):
        from . import preparation, preparation_blocks

    output = args.output_dir
    groups = preparation.grouped_sources(args)
    evaluation_files = preparation.evaluation_files(args.decontaminate)
    evaluation_hashes = preparation.ngram_hashes(evaluation_files, args.decontaminate_ngram)
    filters = preparation.language_filters(args)
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
    tokenizer = None
    if args.tokenizer is not None:
        with named_tokenizer(args.tokenizer, "--tokenizer"):
            tokenizer = load_tokenizer(args.tokenizer)
        check_tokenizer(tokenizer, None, needs_mask=True)
        check_packing(tokenizer, args.packing, args.max_length, args.sentence_pairs)
        request["tokenizer_digest"] = tokenizer_digest(tokenizer)
    licenses = args.licenses or [None]
    if len(licenses) == 1:
        licenses *= len(args.train_data)
    manifest = dict(
        finished=False,
        # Converted to JSON and back, to equal the saved request.
        request=json.loads(json.dumps(request)),
        packing=packing,
        held_out_documents=args.validation_documents,
        sources=[dict(source=source, license=name) for source, name in zip(args.train_data, licenses, strict=True)],
        tokenizer=dict(source=args.tokenizer or args.train_tokenizer),
    )
    lock = contextlib.nullcontext()
    if "://" not in output:
        lock = locked_folder(output)
    with lock:
        begin(output, manifest)

        # 2. Tokenizer and evaluation sets
        if tokenizer is not None:
            preparation_blocks.save_tokenizer(tokenizer, output)
        filters |= preparation.document_filters(args, evaluation_hashes)

        # 3. Stages
        preparation.run_stages(preparation.stages_of(args, groups, filters, manifest), args)
        if args.executor == "slurm":
            print(f"submitted to Slurm: {output} is complete when the job prepare_manifest has finished")
            return manifest
        manifest = read_manifest(output)
        print(manifest_text(manifest))
        return manifest


def check(args: PreparationArguments):
    """Raise a ValueError for invalid flags or combinations of flags."""
    check_corpus(args)
    if args.output_dir is None:
        raise ValueError("--output_dir is missing; pass a folder or URL for the prepared corpus")
    if (args.tokenizer is None) == (args.train_tokenizer is None):
        raise ValueError("expected one tokenizer; pass either --tokenizer, or --train_tokenizer (unigram or byte-level-bpe)")
    if len(args.licenses) not in (0, 1, len(args.train_data)):
        raise ValueError(
            f"--licenses must have one entry, or one for each of the {len(args.train_data)} values of --train_data, got "
            f"{len(args.licenses)} entries"
        )
    for name in ("workers", "part_bytes", "tokenizer_sample", "decontaminate_ngram"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.language_model is not None and not args.languages:
        raise ValueError("--language_model needs --languages; pass the languages to keep, such as --languages en")
    tokenizer_options(args)
    check_packing(None, args.packing, args.max_length, args.sentence_pairs)


def begin(output: str, manifest: dict[str, Any]):
    """Write the initial manifest; raise a ValueError if the folder already has a manifest with other files or flags."""
    begun = load_manifest(output)
    if not begun:
        write_manifest(output, manifest)
        return
    before, now = begun.get("request", {}), manifest["request"]
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = ", ".join(CONTENTS.get(name, f"--{name}") for name in changed)
        raise ValueError(f"{output} was started with other values of {names}; pass the same values, or another --output_dir")
