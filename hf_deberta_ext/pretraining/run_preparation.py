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
    output_dir: str | None = option(None, "folder of the prepared corpus, or its URL")
    licenses: list[str] = option(list, "of each of --train_data, or one of all, for the manifest and model cards")
    tokenizer_sample: int = option(2 * 10**9, "characters that --train_tokenizer learns from")
    sentence_pairs: str = option("consecutive", "nsp: half of the pairs have another B", choices=["consecutive", "nsp"])
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


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s") -> dict[str, Any]:
    """Parse the flags of a command line, run all stages, and return the manifest.

    Args:
        argv (`list[str]`, *optional*): flags; None = the flags of the command line.
        description (`str`): `--help` shows its first paragraph.
        program (`str`): its name in `--help`.
    """
    usage = f"{program} --train_data FILES --train_tokenizer unigram --max_length 512 --output_dir FOLDER ..."
    with ExitOnUserError():
        (args,), _ = parse_flags((PreparationArguments,), argv, description=description, usage=usage, elsewhere=ELSEWHERE)
        return run(args)


def run(args: PreparationArguments) -> dict[str, Any]:
    """Check the flags, run the stages, and return the manifest."""
    # 1. Errors of the user end the run here, before anything long begins
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
        # As JSON gives it back.
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
            print(f"submitted: {output} is prepared when the job prepare_manifest has ended")
            return manifest
        manifest = read_manifest(output)
        print(manifest_text(manifest))
        return manifest


def check(args: PreparationArguments):
    """Check flags that are wrong by themselves, or together."""
    check_corpus(args)
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
    tokenizer_options(args)
    check_packing(None, args.packing, args.max_length, args.sentence_pairs)


def begin(output: str, manifest: dict[str, Any]):
    """Write the manifest of an unfinished preparation; refuse a folder that was begun with other files or flags."""
    begun = load_manifest(output)
    if not begun:
        write_manifest(output, manifest)
        return
    before, now = begun.get("request", {}), manifest["request"]
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        names = ", ".join(CONTENTS.get(name, f"--{name}") for name in changed)
        raise ValueError(f"{output} was begun with other values of {names}: repeat them, or give another --output_dir")
