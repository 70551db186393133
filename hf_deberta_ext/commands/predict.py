# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext predict`: run a fine-tuned model on the rows of a file, and write its predictions."""

import argparse
from pathlib import Path

from ..training.user_errors import needs_extra

__all__ = ["EXAMPLE", "HELP", "SHOWS_PROGRESS", "add_arguments", "run"]

HELP = "predict new rows with a fine-tuned model: a table with labels and probabilities"
EXAMPLE = """deberta-ext predict mine new.csv --output predictions.csv
deberta-ext predict mine new.jsonl.gz --output predictions.parquet --text_columns review --max_seq_length 256
deberta-ext predict names new.conll --per_device_eval_batch_size 64"""
SHOWS_PROGRESS = True


def add_arguments(parser: argparse.ArgumentParser):
    parser.takes_flags = True
    parser.add_argument("model", metavar="MODEL", help="folder or repository of a fine-tuned model")
    parser.add_argument("file", metavar="FILE", help="rows in csv, tsv, json, jsonl, parquet or CoNLL; also .gz")
    parser.add_argument("--output", type=Path, default=Path("predictions.csv"), help="new .csv or .parquet file")
    parser.add_argument("flags", nargs="*", help="data and model flags of `finetune TASK`: --text_columns, --bf16, ...")


def run(arguments: argparse.Namespace) -> None:
    """Write the table, and print the number of rows and the rows per second."""
    from . import command_parser

    parser = command_parser("predict")
    parser.takes_flags = False
    own, flags = parser.parse_known_args(arguments.flags)
    if own.output.exists():
        raise ValueError(f"{own.output} already exists; pass another --output")
    with needs_extra("train"):
        from ..finetuning.prediction import predict_file

    rows, seconds = predict_file(own.model, own.file, own.output, flags)
    print(f"{own.output}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.1f} rows per second")
