# SPDX-License-Identifier: Apache-2.0
"""Pack documents into examples of at most `max_length` tokens; each token is used exactly once.

Implements the four input formats that RoBERTa compares (Liu et al. 2019, section 4.2), and best-fit packing of whole
documents for attention within documents. A document is tokenised as a whole; sentence starts only determine where the tokens
can be split. Only documents of the same batch of `batch_size` documents share rows or exchange segments.
"""

import dataclasses
import itertools
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._version import __version__
from .sentence_pairs import SegmentPair, cut_pairs

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["MODES", "PAIR_MODES", "PackingReport", "check_packing", "pack"]

PAIR_MODES = ("segment_pair", "sentence_pair")
MODES = ("full_sentences", "document_sentences", *PAIR_MODES, "best_fit")
# Characters to tokenise at once. Encodings take 50 times the memory of the text; with 100,000 characters, packing is about
# 15 % slower.
TOKENIZED_TOGETHER = 1_000_000
# Characters to pass to sentencex at once: it searches the rest of the paragraph for the end of each quotation.
SPLIT_TOGETHER = 50_000
COUNTS = ("documents", "empty_documents", "short_documents", "tokens", "dropped_tokens", "packed_tokens", "negative_pairs")


@dataclasses.dataclass
class PackingReport:
    """Counts of documents and examples; tokens = packed_tokens + dropped_tokens, without special tokens.

    `negative_pairs` counts examples with sentence label 1 (next sentence prediction). `mean_length` includes special tokens.
    `fill` is mean_length / max_length, the share of tokens that are not padding in examples padded to max_length.
    """

    documents: int
    empty_documents: int
    short_documents: int
    tokens: int
    dropped_tokens: int
    packed_tokens: int
    negative_pairs: int
    examples: int
    max_length: int
    mean_length: float
    fill: float

    @classmethod
    def of(cls, counts: Mapping[str, int], examples: int, tokens: int, max_length: int) -> "PackingReport":
        """Create a report from `counts` and from the numbers of examples and of their tokens, including special tokens."""
        mean = tokens / examples
        kept = {name: counts[name] for name in COUNTS}
        return cls(**kept, examples=examples, max_length=max_length, mean_length=mean, fill=mean / max_length)

    def summary(self) -> str:
        """Format the report as one line for a log."""
        negative = ""
        if self.negative_pairs:
            negative = f", {self.negative_pairs} with a second segment from another document"
        return (
            f"{self.documents} documents ({self.empty_documents} empty and {self.short_documents} short ones dropped), "
            f"{self.tokens} tokens ({self.dropped_tokens} dropped) -> {self.examples} examples of at most "
            f"{self.max_length} tokens, {self.mean_length:.1f} on average ({self.fill:.1%} filled){negative}"
        )


def pack(
    corpus: "Dataset | IterableDataset",
    tokenizer: Any,
    *,
    mode: Literal["full_sentences", "document_sentences", "segment_pair", "sentence_pair", "best_fit"],
    max_length: int,
    sentence_pairs: Literal["nsp", "consecutive"] = "nsp",
    language: str = "en",
    min_tokens: int = 1,
    seed: int = 0,
    num_proc: int | None = None,
    batch_size: int = 1000,
    cache: bool = True,
) -> "tuple[Dataset | IterableDataset, PackingReport | None]":
    """Pack the documents of `load_corpus` into examples with special tokens, without padding.

    | mode                 | example                                                               | more columns    |
    |----------------------|-----------------------------------------------------------------------|-----------------|
    | "full_sentences"     | [CLS] s s [SEP] s [SEP]: whole sentences; [SEP] ends a document       |                 |
    | "document_sentences" | [CLS] s s s [SEP]: whole sentences of one document                    |                 |
    | "segment_pair"       | [CLS] A [SEP] B [SEP]: segments of one or several sentences           | *               |
    | "sentence_pair"      | [CLS] A [SEP] B [SEP]: one sentence each; the last B may have two     | *               |
    | "best_fit"           | [CLS] d [SEP] [CLS] d [SEP]: whole documents, best-fit decreasing     | document_ids    |

    * token_type_ids and sentence_labels

    Text that does not fit is split between sentences. A sentence that is longer than an example is split at any token. In
    mode "sentence_pair", an odd last sentence of a document is added to the last segment B if it fits.

    Next sentence prediction ("nsp"; Devlin et al. 2019, section 3.1): each pair is selected with probability 1/2. Two
    selected pairs of different documents exchange their segments B, and get sentence_labels 1. Selected pairs without a
    partner keep label 0. With "consecutive", all pairs have label 0; for sentence order prediction, `MaskingCollator` swaps
    segments later.

    Args:
        corpus (`Dataset` or `IterableDataset`): documents in the column "text", one per row; null is an empty document.
        tokenizer: fast tokenizer with [CLS] and [SEP].
        mode (`str`): format of the examples, see the table.
        max_length (`int`): maximum number of tokens of an example, including special tokens; at least 8.
        sentence_pairs (`str`, default `"nsp"`): "nsp" or "consecutive", only for pairs.
        language (`str`, default `"en"`): ISO 639-1 code of the language, for sentence splitting by `sentencex`. For an
            unknown code, `sentencex` uses the rules of a related language or of English.
        min_tokens (`int`, default 1): minimum tokens of a document; shorter documents are dropped. At least 2 for pairs.
        seed (`int`, default 0): seed of the random choices. Each batch combines it with the index of its first document.
        num_proc (`int`, *optional*): number of processes. Each process packs its own part of the corpus, so that the
            examples at the borders of the parts depend on `num_proc`. Not for an `IterableDataset`.
        batch_size (`int`, default 1000): number of documents that are packed together.
        cache (`bool`, default True): reuse the result of an earlier call with the same corpus and arguments.
    Returns:
        (data set with input_ids and the columns of the table, `PackingReport`). An `IterableDataset` is packed while
        iterating, and its report is None.
    Raises:
        ValueError: if `mode` or `sentence_pairs` is unknown, max_length is below 8, the tokenizer has no [CLS] or [SEP], or
            all documents are dropped.
    """
    from datasets import Features, IterableDataset, Sequence, Value

    check_packing(tokenizer, mode, max_length, sentence_pairs)
    features = {"input_ids": Sequence(Value("int32"))}
    if mode in PAIR_MODES:
        features |= {"token_type_ids": Sequence(Value("int8")), "sentence_labels": Value("int8")}
    else:
        # Modes without random choices are packed and cached once for all seeds.
        seed = 0
    if mode == "best_fit":
        features["document_ids"] = Sequence(Value("int32"))
    packing = dict(mode=mode, max_length=max_length, sentence_pairs=sentence_pairs, language=language, min_tokens=min_tokens)
    is_stream = isinstance(corpus, IterableDataset)
    arguments = dict(tokenizer=tokenizer, packing=packing, seed=seed, counted=not is_stream, version=__version__)
    options = dict(batched=True, with_indices=True, batch_size=batch_size, remove_columns=corpus.column_names or ["text"])
    if is_stream:
        return corpus.map(_pack_batch, features=Features(features), fn_kwargs=arguments, **options), None
    features["counts"] = Sequence(Value("int64"))
    options |= dict(num_proc=num_proc, load_from_cache_file=cache, desc=f"Packing ({mode})")
    packed = corpus.map(_pack_batch, features=Features(features), fn_kwargs=arguments, **options)
    return _split_off_report(packed, max_length, min_tokens)


def check_packing(tokenizer: Any, mode: str, max_length: int, sentence_pairs: str):
    """Check the arguments of `pack`; `tokenizer` may be None."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if sentence_pairs not in ("nsp", "consecutive"):
        raise ValueError(f"sentence_pairs must be nsp or consecutive, got {sentence_pairs!r}")
    if max_length < 8:
        raise ValueError(f"max_length must be at least 8, including special tokens, got {max_length}")
    if tokenizer is not None and None in (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ValueError(
            f"the tokenizer must have [CLS] and [SEP], got cls_token {tokenizer.cls_token!r} and sep_token "
            f"{tokenizer.sep_token!r}; load the tokenizer with hf_deberta_ext.tokenization.load_tokenizer"
        )


def _split_off_report(packed: "Dataset", max_length: int, min_tokens: int) -> "tuple[Dataset, PackingReport]":
    """Return the data set without the column "counts" and without empty rows, and a report with the sums of "counts"."""
    import pyarrow.compute as pc

    counts = np.asarray(pc.list_flatten(packed.data.column("counts")))
    counts = dict(zip(COUNTS, counts.reshape(-1, len(COUNTS)).sum(axis=0).tolist(), strict=True))
    lengths = np.asarray(pc.list_value_length(packed.data.column("input_ids")))
    packed = packed.remove_columns("counts")
    if not lengths.all():
        packed = packed.select(np.flatnonzero(lengths))
    if not len(packed):
        raise ValueError(
            f"empty corpus: all {counts['documents']} documents are empty or shorter than min_tokens = {min_tokens}"
        )
    return packed, PackingReport.of(counts, len(packed), int(lengths.sum()), max_length)


def _pack_batch(
    batch: dict[str, list],
    indices: list[int],
    *,
    tokenizer: Any,
    packing: dict[str, Any],
    seed: int,
    counted: bool,
    version: str,
) -> dict[str, list]:
    """Pack a batch of documents; return the columns of the examples.

    Args:
        packing (`dict`): arguments of `pack_documents`.
        counted (`bool`): if True, add a column "counts" with the counts of the batch in its first row. A batch without
            examples gets one empty row for its counts. If False, rows are lists, which an `IterableDataset` needs.
        version (`str`): not used, but part of the cache key, so that rows packed by another release are not reused.
    """
    columns, counts = pack_documents(batch["text"], tokenizer, **packing, draws=f"{seed} {indices[0]}")
    rows = len(columns["input_ids"])
    for name in columns:
        if counted and rows == 0:
            columns[name] = [0] if name == "sentence_labels" else [[]]
        elif not counted and name != "sentence_labels":
            columns[name] = [row.tolist() for row in columns[name]]
    if counted:
        columns["counts"] = [list(counts.values())] + [[]] * (rows - 1)
    return columns


def pack_documents(
    texts: Iterable[str | None],
    tokenizer: Any,
    *,
    mode: str,
    max_length: int,
    sentence_pairs: str,
    language: str,
    min_tokens: int,
    draws: str,
) -> tuple[dict[str, list], dict[str, int]]:
    """Pack a batch of documents; return the columns of the examples (lists of arrays or labels), and a dict of `COUNTS`.

    `draws` is the seed of the random choices; `pack` describes the other arguments.
    """
    counts = dict.fromkeys(COUNTS, 0)
    least = max(min_tokens, 2 if mode in PAIR_MODES else 1)
    documents = list(tokenize_documents(texts, tokenizer, language, least, counts))
    cls = np.array([tokenizer.cls_token_id], dtype=np.int32)
    sep = np.array([tokenizer.sep_token_id], dtype=np.int32)
    if mode in PAIR_MODES:
        pairs = segment_pairs(documents, mode, max_length - 3)
        labels = cut_pairs(pairs, max_length - 3, random.Random(draws), exchange=sentence_pairs == "nsp")
        counts["negative_pairs"] = sum(labels)
        types = np.array([0, 1], dtype=np.int8)
        columns = {
            "input_ids": [np.concatenate([cls, pair.A, sep, pair.B, sep]) for pair in pairs],
            "token_type_ids": [np.repeat(types, [len(pair.A) + 2, len(pair.B) + 1]) for pair in pairs],
            "sentence_labels": labels,
        }
    elif mode == "full_sentences":
        columns = {"input_ids": full_sentences(documents, max_length, cls, sep)}
    else:
        pieces = []
        for ids, ends in documents:
            for start, end in _sentence_spans(ends, max_length - 2):
                pieces.append(np.concatenate([cls, ids[start:end], sep]))
        columns = {"input_ids": pieces} if mode == "document_sentences" else best_fit(pieces, max_length)
    return columns, counts


def tokenize_documents(
    texts: Iterable[str | None], tokenizer: Any, language: str, least: int, counts: dict[str, int]
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Yield (token ids, end index of each sentence) for each document with at least `least` tokens.

    `counts` is updated for all documents, including empty and shorter ones.
    """
    texts = [text or "" for text in texts]
    ends = itertools.accumulate(map(len, texts))
    for _, group in itertools.groupby(zip(texts, ends, strict=True), key=lambda item: item[1] // TOKENIZED_TOGETHER):
        group_texts = [text for text, _ in group]
        # verbose=False disables the warning about texts longer than the model's inputs.
        without = dict(return_attention_mask=False, return_token_type_ids=False, verbose=False)
        encoded = tokenizer(group_texts, add_special_tokens=False, **without)
        for text, ids, encoding in zip(group_texts, encoded["input_ids"], encoded.encodings, strict=True):
            n = len(ids)
            counts["documents"] += 1
            counts["tokens"] += n
            is_empty = n == 0 or not text.strip()
            if is_empty or n < least:
                counts["empty_documents"] += is_empty
                counts["short_documents"] += not is_empty
                counts["dropped_tokens"] += n
                continue
            counts["packed_tokens"] += n
            cuts = first_tokens(encoding, sentence_starts(text, language))
            yield np.array(ids, dtype=np.int32), [*sorted({cut for cut in cuts if 0 < cut < n}), n]


def first_tokens(encoding: Any, starts: list[int]) -> list[int]:
    """For each character index in `starts`, return the index of the first token that ends after it, or the token count."""
    ends = np.fromiter(itertools.chain.from_iterable(encoding.offsets), dtype=np.int64)[1::2]
    # Normalisers can reorder offsets: make them monotone.
    return np.searchsorted(np.maximum.accumulate(ends), starts, side="right").tolist()


def sentence_starts(text: str, language: str) -> list[int]:
    """Return the character indices at which the second and all later sentences start.

    A sentence starts at the space directly before its first word, because tokenizers join this space to the word. Other
    white space between sentences belongs to the earlier sentence.
    """
    from sentencex import get_sentence_boundaries

    starts: list[int] = []
    begin = 0
    # sentencex has no rules for regions: pass en for en-US.
    language = language.partition("-")[0]
    while begin < len(text):
        sentences = get_sentence_boundaries(language, text[begin : begin + SPLIT_TOGETHER])
        # Skip white space before sentences, and the first start, which is known or lies inside a very long sentence.
        new_starts = [begin + s["end_index"] - len(s["text"].lstrip()) for s in sentences if s["text"].strip()][1:]
        starts += new_starts
        if begin + SPLIT_TOGETHER >= len(text):
            break
        # The last sentence of a chunk may be incomplete.
        begin = new_starts[-1] if new_starts else begin + SPLIT_TOGETHER
    return [start - (text[start - 1] == " ") for start in starts]


def _sentence_spans(ends: list[int], room: int, *, least: int = 1, sentences: int | None = None) -> list[tuple[int, int]]:
    """Split a document into spans of as many whole sentences as fit in `room` tokens; sentences that do not fit are split.

    Args:
        ends (`list[int]`): token index at the end of each sentence; the last is the length of the document.
        least (`int`, default 1): minimum number of tokens of each span except the last.
        sentences (`int`, *optional*): maximum number of sentences of a span.
    """
    n = ends[-1]
    spans: list[tuple[int, int]] = []
    start = 0
    while start < n:
        first = bisect_right(ends, start)
        last = bisect_right(ends, start + room)
        if sentences is not None:
            last = min(last, first + sentences)
        end = ends[last - 1] if last > first else start + room
        if end - start < least and end < n:
            end = min(start + room, n)
        spans.append((start, end))
        start = end
    return spans


def full_sentences(
    documents: list[tuple[np.ndarray, list[int]]], max_length: int, cls: np.ndarray, sep: np.ndarray
) -> list[np.ndarray]:
    rows: list[np.ndarray] = []
    row: list[np.ndarray] = []
    length = 0
    for ids, ends in documents:
        separator = 1
        for start, end in _sentence_spans(ends, max_length - 2, sentences=1):
            if row and length + separator + end - start + 1 > max_length:
                rows.append(np.concatenate([*row, sep]))
                row = []
            if not row:
                row, length = [cls], 1
            elif separator:
                row.append(sep)
                length += 1
            row.append(ids[start:end])
            length += end - start
            separator = 0
    if row:
        rows.append(np.concatenate([*row, sep]))
    return rows


def best_fit(pieces: list[np.ndarray], max_length: int) -> dict[str, list[np.ndarray]]:
    """Pack pieces of documents by best fit, and return the columns; "document_ids" numbers the pieces of a row from 1."""
    lengths = [len(piece) for piece in pieces]
    columns: dict[str, list[np.ndarray]] = {"input_ids": [], "document_ids": []}
    for row in _best_fit_decreasing(lengths, max_length):
        numbers = np.arange(1, len(row) + 1, dtype=np.int32)
        columns["input_ids"].append(np.concatenate([pieces[i] for i in row]))
        columns["document_ids"].append(np.repeat(numbers, [lengths[i] for i in row]))
    return columns


def _best_fit_decreasing(lengths: list[int], max_length: int) -> list[list[int]]:
    """Put each piece, longest first, into the fullest row that has room; return the indices of each row's pieces."""
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = bisect_left(spaces, (lengths[i], 0))
        if at == len(spaces):
            space, row = max_length, len(rows)
            rows.append([])
        else:
            space, row = spaces.pop(at)
        rows[row].append(i)
        insort(spaces, (space - lengths[i], row))
    # Sort by order in the corpus, not by length.
    return sorted(sorted(row) for row in rows)


def segment_pairs(documents: list[tuple[np.ndarray, list[int]]], mode: str, room: int) -> list[SegmentPair]:
    """Return the segment pairs of all documents. A pair of only one sentence is split in the middle of this sentence."""
    pairs = []
    sentences = 2 if mode == "sentence_pair" else None
    for document, (ids, ends) in enumerate(documents):
        spans = _sentence_spans(ends, room, least=2, sentences=sentences)
        _fit_last_span(spans, ends, room)
        for start, end in spans:
            cuts = [cut - start for cut in ends[bisect_right(ends, start) : bisect_left(ends, end)]]
            if mode == "sentence_pair":
                cuts = cuts[:1]
            pairs.append(SegmentPair(document, ids[start:end], cuts or [(end - start) // 2]))
    return pairs


def _fit_last_span(spans: list[tuple[int, int]], ends: list[int], room: int) -> None:
    """If the last span is one sentence, and fits in `room` tokens together with the previous span, merge the two spans.
    Otherwise, if the last span has only one token, extend it to the left, to two or more tokens."""
    n = ends[-1]
    if len(spans) < 2:
        return
    (start, end), _ = spans[-2:]
    if bisect_right(ends, end) == len(ends) - 1 and n - start <= room:
        spans[-2:] = [(start, n)]
    elif n - end < 2:
        # The previous span is full: move its last sentence, or one token, to the last span.
        borders = [border for border in ends[-3:] if max(start + 2, n - room) <= border <= n - 2]
        border = max(borders, default=n - 2)
        spans[-2:] = [(start, border), (border, n)]
