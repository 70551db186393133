# SPDX-License-Identifier: Apache-2.0
"""Export a model to ONNX, in float32 and int8, and compare both files with the PyTorch model.

A fine-tuned classifier, with the accuracy of all three on the rows of a file, and inputs taken from a text:

    python examples/export_onnx.py --model sst2 --output onnx/model.onnx --int8 --text_file article.txt \\
        --rows_file validation.jsonl --text_columns sentence --label_column label

Without --model, a classifier of v3-xsmall's shape with random weights, 3 layers and 8,000 words; a minute on two cores:

    python examples/export_onnx.py --int8 --output random/model.onnx

The same folder gets model_int8.onnx (with --int8) and parity.json, which holds all numbers. The table shows the largest
absolute difference of any output at a real token, the share of equal decisions (labels, words, ends of answers), and the
time of a call relative to torch: medians of alternating calls, with the same number of threads. The exit status is 1 if the
float32 file differs from the model by more than rounding explains. Needs `pip install 'hf_deberta_ext[onnx]'`.
"""

import argparse
import json
import platform
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from benchmarks.measuring import onnx_session, positive, take_turns

import hf_deberta_ext
from hf_deberta_ext import DebertaExtConfig, DebertaExtForSequenceClassification
from hf_deberta_ext.analysis.results import markdown_table
from hf_deberta_ext.data.columns import check_columns
from hf_deberta_ext.data.files import read_files
from hf_deberta_ext.export import export_onnx, quantise_onnx, reads_absolute_positions
from hf_deberta_ext.tokenization import check_tokenizer, load_tokenizer
from hf_deberta_ext.training.user_errors import ExitOnUserError

TASKS = {
    "feature-extraction": hf_deberta_ext.DebertaExtModel,
    "fill-mask": hf_deberta_ext.DebertaExtForMaskedLM,
    "replaced-token-detection": hf_deberta_ext.DebertaExtForReplacedTokenDetection,
    "text-classification": hf_deberta_ext.DebertaExtForSequenceClassification,
    "token-classification": hf_deberta_ext.DebertaExtForTokenClassification,
    "question-answering": hf_deberta_ext.DebertaExtForQuestionAnswering,
    "multiple-choice": hf_deberta_ext.DebertaExtForMultipleChoice,
}
RANDOM = dict(preset="v3-xsmall", num_hidden_layers=3, vocab_size=8000)
# Relative to the largest output: float32 has 24 bits, and an output accumulates about a hundred rounded sums.
ROUNDING = 1e-4


def main(argv: list[str] | None = None) -> dict:
    args = parse_args(argv)
    with ExitOnUserError(expected=(ValueError, TypeError, OSError, ImportError)):
        results = run(args)
    worst = max(row["difference"] / max(row["largest"], 1e-12) for row in results["parity"]["float32"])
    if worst > ROUNDING:
        sys.exit(f"export_onnx: {args.output} differs by {worst:.1e} of the largest output, more than {ROUNDING:.0e}")
    return results


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or Hub id of a DeBERTa model (default: random weights)")
    parser.add_argument("--task", default="auto", choices=["auto", *TASKS], help="task (auto: as the model was saved)")
    parser.add_argument("--output", type=Path, default=Path("onnx/model.onnx"))
    parser.add_argument("--overwrite", action="store_true", help="overwrite the files of an earlier run")
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--int8", action="store_true", help="also write model_int8.onnx (dynamic quantisation)")
    parser.add_argument("--int8_embeddings", action="store_true", help="with --int8: also quantise the embeddings")
    parser.add_argument("--lengths", type=positive, nargs="+", default=[1, 16, 128, 600], help="input lengths to measure")
    parser.add_argument("--batch", type=positive, default=2, help="rows of these inputs; every second one is padded")
    parser.add_argument("--repeats", type=positive, default=5, help="timed calls of each model (default 5)")
    parser.add_argument("--text_file", type=Path, help="take the inputs from this text (default: random tokens)")
    parser.add_argument(
        "--rows_file", type=Path, help="measure a classifier's accuracy on this file (csv, tsv, json, jsonl, parquet)"
    )
    parser.add_argument("--text_columns", nargs="+", default=["sentence"], help="columns of the text; two for pairs")
    parser.add_argument("--label_column", default="label", help="column with numbers or names of labels")
    parser.add_argument("--threads", type=positive, help="number of threads of torch and onnxruntime")
    args = parser.parse_args(argv)
    if args.int8_embeddings and not args.int8:
        parser.error("--int8_embeddings needs --int8")
    return args


def run(args: argparse.Namespace) -> dict:
    if args.threads:
        torch.set_num_threads(args.threads)
    # 1. Load
    model = load(args)
    tokens = rows = None
    if args.text_file is not None or args.rows_file is not None:
        if args.model is None:
            raise ValueError("--text_file and --rows_file need a tokenizer: pass --model")
        tokenizer = load_tokenizer(args.model)
        check_tokenizer(tokenizer, model)
        if args.rows_file is not None:
            rows = encode(args, tokenizer, model)
        if args.text_file is not None:
            text = args.text_file.read_text(encoding="utf-8")
            tokens = tokenizer(text, add_special_tokens=False, verbose=False).input_ids

    # 2. Write
    files = {"float32": export_onnx(model, args.output, opset=args.opset, overwrite=args.overwrite)}
    if args.int8:
        int8 = args.output.with_name(f"{args.output.stem}_int8.onnx")
        files["int8"] = quantise_onnx(args.output, int8, embeddings=args.int8_embeddings, overwrite=args.overwrite)

    # 3. Measure
    lengths, limit = args.lengths, model.config.max_position_embeddings
    if reads_absolute_positions(model) and max(lengths) > limit:
        print(f"The model reads absolute positions, so inputs are truncated to {limit} tokens.")
        lengths = sorted({min(length, limit) for length in lengths})
    shapes = [(1, length, "none") for length in lengths]
    shapes += [(args.batch, length, "right") for length in lengths if length > 1 and args.batch > 1]
    parity, sizes = {}, {}
    for name, file in files.items():
        parity[name] = measure(model, file, shapes, tokens, args.repeats)
        # Including its data file.
        sizes[name] = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
    results = {
        "model": args.model or "random weights: " + ", ".join(f"{name} {value}" for name, value in RANDOM.items()),
        "architecture": type(model).__name__,
        "parameters": model.num_parameters(),
        "opset": args.opset,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "versions": {name: version(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime")},
        "bytes": sizes,
        "parity": parity,
    }
    if rows is not None:
        results["accuracy"] = accuracy(model, files, rows)

    # 4. Report
    print(f"{results['architecture']}, {results['parameters'] / 1e6:.1f} million parameters ({results['model']})")
    print(", ".join(f"{name}: {size / 1e6:.1f} MB" for name, size in sizes.items()) + "\n")
    print(table(parity))
    for name, score in results.get("accuracy", {}).items():
        print(f"\naccuracy of {name} on {score['rows']} rows: {100 * score['accuracy']:.2f} %", end="")
        if name != "torch":
            print(f", {100 * score['agreement']:.2f} % of the decisions as torch", end="")
    print()
    # The folder may be published, so the model's local path is left out.
    results["model"] = Path(results["model"]).name
    file = args.output.with_name("parity.json")
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return results


def load(args: argparse.Namespace):
    if args.model is None:
        model_class = TASKS.get(args.task, DebertaExtForSequenceClassification)
        torch.manual_seed(0)
        fields = dict(RANDOM)
        return model_class(DebertaExtConfig.from_preset(fields.pop("preset"), **fields)).eval()
    model_class = TASKS.get(args.task)
    if model_class is None:
        (saved_as,) = DebertaExtConfig.from_pretrained(args.model).architectures or ["nothing"]
        for candidate in TASKS.values():
            # transformers' models have the same heads: DebertaV2ForMaskedLM.
            if candidate.__name__.partition("For")[2] == saved_as.partition("For")[2]:
                model_class = candidate
    if model_class is None:
        raise ValueError(f"{args.model} was saved as {saved_as}; choose a --task: {', '.join(TASKS)}")
    # Checkpoints in half precision run in float32 on both sides.
    return model_class.from_pretrained(args.model, dtype=torch.float32).eval()


def measure(model, file: Path, shapes: list[tuple[int, int, str]], tokens: list[int] | None = None, repeats: int = 1):
    """Compare an ONNX file with its model on the same inputs, and time both alternately.

    Args:
        shapes (`list[tuple[int, int, str]]`): batch size, length, and padding ("none", "right" or "left") of the inputs.
        tokens (`list[int]`, *optional*): token ids of a text, from which the rows are taken; None for random tokens.

    Returns:
        A dict for each shape. "difference" is the largest absolute difference of any output at a real token, and "largest"
        the largest output there; "agreement" is the share of equal decisions (labels, words, ends of answers, replaced or
        not), or None for an encoder and for regression; "torch_seconds" and "onnx_seconds" are medians.
    """
    session = onnx_session(file)
    rows = []
    for batch, length, padding in shapes:
        inputs = make_inputs(model, batch, length, padding, tokens)
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        outputs = {}

        def run_torch(inputs=inputs, outputs=outputs):
            with torch.inference_mode():
                outputs["torch"] = model(**inputs)

        def run_onnx(arrays=arrays, outputs=outputs):
            outputs["onnx"] = session.run(None, arrays)

        times = take_turns({"torch": run_torch, "onnx": run_onnx}, repeats)
        names = [output.name for output in session.get_outputs()]
        got = {name: torch.from_numpy(array) for name, array in zip(names, outputs["onnx"], strict=True)}
        row = dict(batch=batch, length=length, padding=padding)
        row |= compare(model, {name: outputs["torch"][name] for name in names}, got, inputs["attention_mask"].bool())
        row |= {f"{side}_seconds": statistics.median(seconds) for side, seconds in times.items()}
        rows.append(row)
    return rows


def make_inputs(model, batch: int, length: int, padding: str, tokens: list[int] | None) -> dict[str, torch.Tensor]:
    """Return inputs [B, N], or [B, 3, N] for multiple choice; every second row is padded to half of its length."""
    shape = (batch, length)
    if isinstance(model, hf_deberta_ext.DebertaExtForMultipleChoice):
        shape = (batch, 3, length)
    ids = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    if tokens is not None:
        if len(tokens) < ids.numel():
            raise ValueError(f"inputs of shape {list(shape)} take {ids.numel()} tokens, got {len(tokens)} in --text_file")
        ids = torch.tensor(tokens[: ids.numel()]).view(shape)
    mask = torch.ones_like(ids)
    if padding == "right":
        mask[1::2, ..., max(1, length // 2) :] = 0
    elif padding == "left":
        mask[1::2, ..., : length // 2] = 0
    inputs = {"input_ids": ids.masked_fill(mask == 0, model.config.pad_token_id or 0), "attention_mask": mask}
    if model.config.type_vocab_size > 0:
        inputs["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(shape).contiguous()
    return inputs


def compare(model, expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], mask: torch.Tensor) -> dict:
    """Return the largest difference and the largest value at real tokens, and the share of equal decisions."""
    differences, sizes, decisions = [], [], []
    for name, values in expected.items():
        exported = got[name]
        if name in ("start_logits", "end_logits"):
            decisions.append(values.where(mask, -torch.inf).argmax(1) == exported.where(mask, -torch.inf).argmax(1))
        if values.shape[:2] == mask.shape and not isinstance(model, DebertaExtForSequenceClassification):
            values, exported = values[mask], exported[mask]
        differences.append((values - exported).abs().max().item())
        sizes.append(values.abs().max().item())
        if isinstance(model, hf_deberta_ext.DebertaExtForReplacedTokenDetection):
            decisions.append((values > 0) == (exported > 0))
        elif name == "logits" and values.shape[-1] > 1:
            decisions.append(values.argmax(-1) == exported.argmax(-1))
    agreement = None
    if decisions:
        agreement = torch.cat(decisions).float().mean().item()
    return dict(difference=max(differences), largest=max(sizes), agreement=agreement)


def table(parity: dict[str, list[dict]]) -> str:
    header = ["rows x tokens", "padding", "largest output"]
    for name in parity:
        header += [f"{name}: difference", "equal decisions", "time / torch"]
    lines = [header]
    for rows in zip(*parity.values(), strict=True):
        first = rows[0]
        cells = [f"{first['batch']} x {first['length']}", first["padding"], f"{first['largest']:.2f}"]
        for row in rows:
            agreement = ""
            if row["agreement"] is not None:
                agreement = f"{100 * row['agreement']:.1f} %"
            cells += [f"{row['difference']:.1e}", agreement, f"{row['onnx_seconds'] / row['torch_seconds']:.2f}"]
        lines.append(cells)
    return markdown_table(*lines)


def encode(args: argparse.Namespace, tokenizer, model) -> list[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Return batches of rows of similar length: inputs and labels."""
    if not isinstance(model, DebertaExtForSequenceClassification):
        raise ValueError(f"--rows_file needs a text classifier, got {type(model).__name__}")
    table = read_files(args.rows_file, source="--rows_file")
    check_columns(table, [*args.text_columns, args.label_column], source=f"{args.rows_file}")
    rows = table.to_list()
    names = {name: number for number, name in model.config.id2label.items()}
    names |= {str(number): number for number in model.config.id2label}
    unknown = {str(row[args.label_column]) for row in rows} - names.keys()
    if unknown:
        raise ValueError(f"the model has no label {', '.join(sorted(unknown))}; it has {', '.join(names)}")
    rows.sort(key=lambda row: sum(len(row[name]) for name in args.text_columns))
    batches = []
    for part in (rows[first : first + 32] for first in range(0, len(rows), 32)):
        texts = [[row[name] for row in part] for name in args.text_columns]
        length = model.config.max_position_embeddings
        inputs = tokenizer(*texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in inputs}
        batches.append((inputs, torch.tensor([names[str(row[args.label_column])] for row in part])))
    return batches


def accuracy(model, files: dict[str, Path], batches) -> dict[str, dict]:
    """Return the accuracy of the model and of each ONNX file, with its share of decisions that equal the model's."""
    labels = torch.cat([labels for _, labels in batches])
    with torch.inference_mode():
        own = torch.cat([model(**inputs).logits.argmax(-1) for inputs, _ in batches])
    scores = {"torch": {"rows": len(labels), "accuracy": (own == labels).float().mean().item()}}
    for name, file in files.items():
        session = onnx_session(file)
        names = {value.name for value in session.get_inputs()}
        chosen = []
        for inputs, _ in batches:
            arrays = {name: tensor.numpy() for name, tensor in inputs.items() if name in names}
            chosen.append(torch.from_numpy(session.run(["logits"], arrays)[0]).argmax(-1))
        decisions = torch.cat(chosen)
        accuracy, agreement = (decisions == labels).float().mean().item(), (decisions == own).float().mean().item()
        scores[name] = {"rows": len(labels), "accuracy": accuracy, "agreement": agreement}
    return scores


if __name__ == "__main__":
    main()
