# SPDX-License-Identifier: Apache-2.0
"""Run a teacher on the training texts once, and store its signals in files.

A signal is an output of a model that an objective compares between student and teacher, such as logits or hidden states.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..checkpoints.files import optional_file
from ..files import format_size
from ..finetuning.arguments import ModelArguments
from ..finetuning.input_lengths import longest_input
from ..finetuning.models import load_config, load_model, load_tokenizer_for
from ..training.digests import json_digest, tokenizer_digest
from ..training.run_folder import weights_digest
from .alignment import Spans, align, encode_spans
from .arguments import DistillationArguments
from .objectives import attention_recorded, signals

__all__ = ["CachedSignal", "Teacher", "cached_signals", "for_student", "principal_directions"]

# Number of rows in a file, and number of rows to compute principal directions from
CHUNK, SAMPLE = 4096, 8192
Texts = Sequence[tuple[str, ...]]


class Teacher:
    """Teacher in evaluation mode: a model of transformers, or of sentence-transformers if only its embeddings are used.

    Args:
        model_args (`ModelArguments`): source, dtype and download flags.
        args (`DistillationArguments`): objectives, layer, batch size, device and precision.
        auto_class: Auto class of the model.
        pipeline (`str`): name of the task's pipeline, such as "token-classification".
        max_length (`int`): maximum number of tokens of an input.
    """

    # Columns of the teacher's logits in the order of the student's labels; None: the columns in the teacher's order
    order: Sequence[int] | None = None

    def __init__(
        self, model_args: ModelArguments, args: DistillationArguments, auto_class: Any, pipeline: str, max_length: int
    ):
        self.source, self.args, self.names = model_args.model_name_or_path, args, [*args.objectives]
        self.is_answer, self.encoder = pipeline == "question-answering", None
        self.per_row = {"embeddings"}
        if pipeline not in ("token-classification", "question-answering"):
            self.per_row.add("soft_labels")
        if self.names == ["embeddings"] and optional_file(self.source, "modules.json", **model_args.model_download()):
            from sentence_transformers import SentenceTransformer

            self.encoder = SentenceTransformer(self.source, device=str(args.device), token=model_args.token)
            self.tokenizer = self.encoder.tokenizer
            self.max_length = self.encoder.max_seq_length = min(max_length, self.encoder.max_seq_length or max_length)
            return
        self.config = load_config(model_args)
        self.tokenizer = load_tokenizer_for(self.config, model_args)
        model, _ = load_model(model_args, self.config, auto_class, is_trained="soft_labels" not in self.names)
        self.model = model.eval().to(args.device)
        self.max_length = longest_input(self.tokenizer, self.config, None, max_length)
        if hasattr(model, "set_unpadding"):
            # Recorded projections must be [B, N, W].
            model.set_unpadding(False)

    @torch.inference_mode()
    def run(self, texts: Texts) -> list[dict[str, np.ndarray]]:
        """Run the teacher on texts or pairs; return a dict of signals by objective for each text or pair.

        A signal is [N, W] for the N tokens of the text or pair, or [1, W] for the text or pair as a whole."""
        size, rows = self.args.per_device_eval_batch_size, [{} for _ in texts]
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            if self.encoder is not None:
                vectors = self.encoder.encode([text for (text,) in texts], batch_size=size)
                return [{"embeddings": vector[None]} for vector in vectors]
            # Batches of texts of similar length
            order = sorted(range(len(texts)), key=lambda row: sum(map(len, texts[row])))
            for start in range(0, len(texts), size):
                numbers = order[start : start + size]
                columns = map(list, zip(*map(texts.__getitem__, numbers), strict=True))
                options = dict(truncation=True, max_length=self.max_length, padding=True, padding_side="right")
                inputs = self.tokenizer(*columns, **options, return_tensors="pt").to(self.args.device)
                with attention_recorded(self.model, self.args.teacher_layer, self.names) as attention:
                    outputs = self.model(**inputs, output_hidden_states=True)
                mask = inputs["attention_mask"]
                for name, values in signals(self.names, outputs, mask, attention, self.args.teacher_layer).items():
                    if name == "soft_labels" and self.order is not None:
                        values = values[..., self.order]
                    for row, value, length in zip(numbers, values.float().cpu().numpy(), mask.sum(1).tolist(), strict=True):
                        rows[row][name] = value[:length]
        return rows


class CachedSignal:
    """One signal of all training rows, stored in files of `CHUNK` rows; `signal[row]` is [N, W].

    Args:
        files (`list[Path]`): .npy files, [sum of N over the file's rows, W].
        lengths (`list[int]`): N of each row.
    """

    def __init__(self, files: Sequence[Path], lengths: Sequence[int]):
        self.chunks = [np.load(file, mmap_mode="r") for file in files]
        self.ends = np.concatenate([[0], np.cumsum(lengths)])

    def __getitem__(self, row: int) -> np.ndarray:
        first = self.ends[row - row % CHUNK]
        return self.chunks[row // CHUNK][self.ends[row] - first : self.ends[row + 1] - first]


def cached_signals(
    teacher: Teacher, texts: Texts, ids: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase, width: int, folder: Path
) -> dict[str, CachedSignal]:
    """Return the teacher's signals for the student's tokens; run the teacher only on rows whose signals are not in `folder`.

    Print the expected size of all files before the first is written, and the number of tokens that are not aligned.

    Args:
        texts: text or pair of each training row.
        ids: the student's token ids of each row. If a row is a later window (part) of a long context, none is aligned.
        tokenizer: tokenizer of the student.
        width (`int`): hidden size of the student. Wider embeddings and hidden states of the teacher are projected on their
            principal directions.
    """
    args, names, longest = teacher.args, teacher.names, max(map(len, ids))
    digests = tokenizer_digest(tokenizer), tokenizer_digest(teacher.tokenizer), weights_digest(teacher.source)
    settings = args.teacher_layer, teacher.order, teacher.max_length, args.bf16, longest, width, args.cache_dtype
    folder = folder / json_digest([teacher.source, names, digests, settings, json_digest([texts, ids])])
    folder.mkdir(parents=True, exist_ok=True)
    directions = cached_directions(teacher, texts, width, folder)
    tokens = missing = 0
    starts = range(0, len(texts), CHUNK)
    for start in tqdm(starts, unit=f" x {CHUNK} rows", desc="teacher", mininterval=10):
        files = {name: folder / f"{name}-{start}.npy" for name in names}
        if all(map(Path.is_file, files.values())):
            continue
        part = slice(start, start + CHUNK)
        rows, not_aligned = rows_for_student(teacher, texts[part], ids[part], tokenizer, longest)
        tokens += sum(map(len, ids[part]))
        missing += not_aligned
        arrays = {}
        for name in names:
            values = np.concatenate([row[name] for row in rows])
            if name in directions:
                values = values @ directions[name]
            arrays[name] = values.astype(args.cache_dtype)
        size = sum(array.nbytes for array in arrays.values()) * len(texts) // len(rows)
        if start == 0:
            # Above the progress bar
            tqdm.write(f"outputs of the teacher: {len(texts):,} rows, about {format_size(size)} in {folder}")
        if size > args.max_cache_gb * 1e9:
            raise ValueError(f"the outputs need {format_size(size)}: raise --max_cache_gb, or use fewer rows or objectives")
        for name, array in arrays.items():
            save(files[name], array)
    if tokens and not teacher.per_row.issuperset(names):
        print(f"not aligned with the teacher: {missing:,} of {tokens:,} tokens", flush=True)
    cached = {}
    for name in names:
        lengths = [1] * len(ids) if name in teacher.per_row else [*map(len, ids)]
        cached[name] = CachedSignal([folder / f"{name}-{start}.npy" for start in starts], lengths)
    return cached


def cached_directions(teacher: Teacher, texts: Texts, width: int, folder: Path) -> dict[str, np.ndarray]:
    """Return the principal directions of embeddings and hidden states, computed from `SAMPLE` rows or read from `folder`."""
    directions, sample = {}, []
    for name in ("embeddings", "hidden"):
        if name not in teacher.names:
            continue
        file = folder / f"{name}_directions.npy"
        if not file.is_file():
            places = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)
            sample = sample or teacher.run([texts[row] for row in places])
            save(file, principal_directions(np.concatenate([row[name] for row in sample]), width))
        directions[name] = np.load(file)
    return directions


def rows_for_student(
    teacher: Teacher, texts: Texts, ids: Sequence[list[int]], tokenizer: PreTrainedTokenizerBase, longest: int
) -> tuple[list[dict[str, np.ndarray]], int]:
    """Return the teacher's signals for the student's tokens, row by row, and the number of tokens that are not aligned."""
    rows, missing = teacher.run(texts), 0
    for row, text in zip(rows, texts, strict=True):
        if "embeddings" in row and not any(text):
            # The row is a later window of a long context (see `texts_of`), so there is no embedding to compare.
            row["embeddings"] = np.full_like(row["embeddings"], np.nan)
    of_tokens = {*teacher.names} - teacher.per_row
    if not of_tokens:
        return rows, 0
    is_same = tokenizer_digest(tokenizer) == tokenizer_digest(teacher.tokenizer)
    sides = encode_spans(tokenizer, texts, longest), encode_spans(teacher.tokenizer, texts, teacher.max_length)
    for row, student, taught, row_ids in zip(rows, *sides, ids, strict=True):
        aligned = alignment(student, taught, row_ids, is_same)
        missing += int((~aligned.any(1)).sum())
        for name in of_tokens:
            row[name] = for_student(row[name], aligned, name == "soft_labels", teacher.is_answer)
    return rows, missing


def save(file: Path, array: np.ndarray):
    """Write an array to a file under a temporary name, and rename the file when it is complete."""
    part = file.with_name(f".{file.name}.part.npy")
    np.save(part, array)
    os.replace(part, file)


def principal_directions(values: np.ndarray, width: int) -> np.ndarray:
    """Return the principal directions [W, width] of vectors [n, W]; the identity if W is at most `width`.

    The vectors are not centred, so that the projections on these directions keep the cosines between vectors."""
    if values.shape[1] <= width:
        return np.eye(values.shape[1], dtype=np.float32)
    _, vectors = np.linalg.eigh(values.T.astype(np.float64) @ values)
    return vectors[:, : -width - 1 : -1].astype(np.float32)


def alignment(student: Spans, teacher: Spans, ids: list[int], is_same: bool) -> np.ndarray:
    """Return the aligned tokens of a row, in the format of `align`. If its `ids` differ from `student.ids`, no token is
    aligned. Otherwise, if both models have the same tokenizer (`is_same`) and `ids` equal `teacher.ids`, each token is
    aligned with itself. In all other cases, `align` is called."""
    if ids != student.ids:
        return np.zeros((len(ids), len(teacher.ids)), dtype=bool)
    if is_same and ids == teacher.ids:
        return np.eye(len(ids), dtype=bool)
    return align(student, teacher)


def for_student(values: np.ndarray, aligned: np.ndarray, is_logit: bool = False, is_answer: bool = False) -> np.ndarray:
    """Convert a teacher's signal [N_t, W] to the student's tokens, [N, W]; NaN for tokens that are not aligned.

    States are averaged over the aligned teacher tokens; logits are copied from the first aligned teacher token.

    Start and end logits (`is_answer`) are converted for each group of neighbouring student tokens that are aligned with the
    same teacher tokens. The first student token of the group gets the start logit of the first of these teacher tokens. The
    last student token of the group gets the end logit of the last of these teacher tokens. All other start and end logits of
    the group are -inf.
    """
    result = aligned @ values / np.maximum(aligned.sum(1, keepdims=True), 1)
    if is_logit:
        result = values[aligned.argmax(1)]
    if is_logit and is_answer:
        result[:, 1] = values[aligned.shape[1] - 1 - aligned[:, ::-1].argmax(1), 1]
        continues = (aligned[1:] & aligned[:-1]).any(1)
        result[1:][continues, 0] = -np.inf
        result[:-1][continues, 1] = -np.inf
    result[~aligned.any(1)] = np.nan
    return result
