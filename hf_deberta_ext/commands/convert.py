# SPDX-License-Identifier: Apache-2.0
"""`deberta-ext convert`: convert checkpoints to this package's format, to int8, ONNX or deberta-v2, and verify them."""

import argparse

from ..heads import HEADS

__all__ = ["EXAMPLE", "HELP", "add_arguments", "run"]

HELP = "convert a checkpoint to this package's format, int8, ONNX, or back to deberta-v2"
EXAMPLE = """\
deberta-ext convert microsoft/deberta-v3-base deberta-v3-base
deberta-ext convert microsoft/deberta-base deberta-base --head masked-lm --dtype float32
deberta-ext convert runs/mnli mnli-stock --to deberta-v2
deberta-ext convert runs/mnli mnli-int8 --to int8 --texts texts.txt
deberta-ext convert runs/mnli mnli-onnx --to onnx"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder, or the id of a Hub repository")
    parser.add_argument("output", metavar="OUTPUT", help="the folder to write")
    formats = ("deberta-ext", "deberta-v2", "int8", "onnx", "onnx-int8")
    parser.add_argument("--to", choices=formats, default="deberta-ext", help="format (int8: for CPUs); default %(default)s")
    parser.add_argument("--head", choices=("auto", *HEADS), default="auto", help="head; default: auto, the head in SOURCE")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="dtype of weights; default: as saved")
    parser.add_argument("--max_shard_size", metavar="SIZE", help='maximum file size, such as "2GB"; only --to deberta-ext')
    parser.add_argument("--lossy", action="store_true", help="allow --to deberta-v2 if it changes the model's outputs")
    parser.add_argument("--tokenizer", metavar="SOURCE", help="folder or Hub id of the tokenizer, or none; default SOURCE")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument("--texts", metavar="FILE", help="texts, one per line, to compare int8 or ONNX with SOURCE")
    parser.add_argument("--overwrite", action="store_true", help="if OUTPUT exists, rename it to OUTPUT.old-1")


def run(arguments: argparse.Namespace) -> None:
    """Convert and verify the checkpoint, then write OUTPUT in one step; no files are left after an error."""
    from ..conversion.convert import convert

    options = vars(arguments).copy()
    for name in ("command", "debug"):
        options.pop(name, None)
    convert(**options)
