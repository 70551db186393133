# SPDX-License-Identifier: Apache-2.0
"""Times examples/prepare_corpus.py on generated text, beside its tokenizer alone in as many processes, with its memory.

    python tests/support/time_preparation.py --gigabytes 1 --workers 2 --tokenizer examples/models/deberta-ext-small-en \\
        --articles $DEBERTA_EXT_DATA/wikipedia_en/train.jsonl.gz --folder ../preparation

Documents are paragraphs of real articles, drawn anew. The folder keeps the text for another run, and no prepared corpus.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

# Bytes of one file of text, and of the text that the tokenizer alone is timed with in each process.
FILE_BYTES, TIMED_BYTES = 100_000_000, 20_000_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1, help="of .jsonl (default 1)")
    parser.add_argument("--workers", type=int, default=2, help="processes of both sides (default 2)")
    parser.add_argument("--tokenizer", required=True, help="folder of a fast tokenizer")
    parser.add_argument("--articles", required=True, help=".jsonl.gz of real articles")
    parser.add_argument("--folder", type=Path, required=True, help="place of the text")
    parser.add_argument("--flags", default="", help='others of prepare_corpus.py, such as "--deduplicate exact"')
    args = parser.parse_args()
    files = generate(args.articles, args.folder / "text", round(args.gigabytes * 1e9 / FILE_BYTES) or 1)
    before = tokens_per_second(args.tokenizer, files, args.workers)
    shutil.rmtree(args.folder / "prepared", ignore_errors=True)
    command = (
        f"{sys.executable} {ROOT}/examples/prepare_corpus.py --tokenizer {args.tokenizer} --max_length 512 {args.flags}"
    )
    command += f" --train_data {args.folder}/text --workers {args.workers} --output_dir {args.folder}/prepared"
    start = time.monotonic()
    process = subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True)
    peaks = (0, 0)
    while process.poll() is None:
        peaks = tuple(map(max, peaks, memory(process.pid)))
        time.sleep(1)
    seconds = time.monotonic() - start
    if process.returncode:
        raise SystemExit(process.returncode)
    print(process.stdout.read(), end="")
    tokens = json.loads((args.folder / "prepared/manifest.json").read_text(encoding="utf-8"))["report"]["tokens"]
    alone = (before + tokens_per_second(args.tokenizer, files, args.workers)) / 2
    size = sum(file.stat().st_size for file in files) / 1e9
    print(f"{size:.2f} GB, {tokens:,} tokens: {seconds:.0f} s, {tokens / seconds:,.0f} tokens a second")
    print(f"tokenizer alone: {alone:,.0f} tokens a second; ratio {tokens / seconds / alone:.2f}")
    print(f"memory: {peaks[0] / 1e9:.2f} GB in all processes, {peaks[1] / 1e9:.2f} GB in one")
    shutil.rmtree(args.folder / "prepared")


def generate(articles: str, folder: Path, count: int) -> list[Path]:
    from hf_deberta_ext.data.files import read_rows

    folder.mkdir(parents=True, exist_ok=True)
    files, paragraphs = [folder / f"{number:03}.jsonl" for number in range(count)], []
    for number, file in enumerate(files):
        if file.exists():
            continue
        if not paragraphs:
            paragraphs = [line for _, row in read_rows(articles) for line in row["text"].split("\n") if line.strip()]
        draws, part = random.Random(number), file.with_suffix(".part")
        with part.open("w", encoding="utf-8") as lines:
            while lines.tell() < FILE_BYTES:
                lines.write(json.dumps({"text": "\n".join(draws.choices(paragraphs, k=draws.randint(2, 30)))}) + "\n")
        part.rename(file)
    for file in {*folder.iterdir()} - {*files}:
        file.unlink()
    return files


def tokens_per_second(tokenizer: str, files: list[Path], workers: int) -> float:
    """Sum over processes that tokenize at the same time, each in batches of 1,000 texts."""
    with ProcessPoolExecutor(workers) as pool:
        chosen = [files[number % len(files)] for number in range(workers)]
        return sum(pool.map(tokenize, itertools.repeat(tokenizer), chosen))


def tokenize(tokenizer: str, file: Path) -> float:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from hf_deberta_ext.tokenization import load_tokenizer

    loaded, texts = load_tokenizer(tokenizer), []
    with file.open(encoding="utf-8") as lines:
        size = 0
        while size < TIMED_BYTES:
            texts.append(json.loads(lines.readline())["text"])
            size += len(texts[-1])
    start, tokens = time.perf_counter(), 0
    for first in range(0, len(texts), 1000):
        tokens += sum(map(len, loaded(texts[first : first + 1000], add_special_tokens=False)["input_ids"]))
    return tokens / (time.perf_counter() - start)


def memory(process: int) -> tuple[int, int]:
    """Proportional set size of a process and its descendants, in bytes: the sum, and the largest."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    members, sizes = {process}, []
    while children := {child for child, parent in parents.items() if parent in members} - members:
        members |= children
    for member in members:
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
            sizes.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")))
        except (OSError, StopIteration):
            continue
    return sum(sizes), max(sizes, default=0)


if __name__ == "__main__":
    main()
