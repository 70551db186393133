# SPDX-License-Identifier: Apache-2.0
"""Short user journeys through other packages; outside/run_clients.py runs them in the environments of these packages.

A journey takes a folder of saved models (encoder, classifier, scorer, masked_lm) and returns numbers and words. They depend
on the weights only: transformers' deberta-v2 with the same weights must give the same results.
"""

import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from scripts import PAGES
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TEXTS = [
    "Ada Lovelace wrote the first program in London.",
    "Shards of an index are read where they are needed, and damaged files are named.",
    "No test depends on time.",
    "Microsoft published DeBERTa in Redmond, after Google published BERT.",
]
KINDS = ["person", "place", "company"]
ROOT = Path(__file__).resolve().parents[2]
REMOTE = {"trust_remote_code": True}
# Arguments of Trainer and its subclasses.
QUIET = dict(save_strategy="no", report_to="none")
SIZES = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=512,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, type_vocab_size=0, pad_token_id=0, position_buckets=16,
)  # fmt: skip


def make_models(folder: Path, sizes: dict = SIZES, names=("encoder", "classifier", "scorer", "masked_lm"), tokenizer=None):
    """Save the models ours/, stock/ (same weights) and bert/, each with its tokenizer, and ours/model.onnx."""
    from tiny_constants import random_weights

    from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForSequenceClassification, DebertaExtModel
    from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2
    from hf_deberta_ext.export import export_onnx
    from hf_deberta_ext.pretraining import train_unigram

    lines = [line for name in (*PAGES, "CONTRIBUTING.md") for line in (ROOT / name).read_text("utf-8").splitlines()]
    tokenizer = tokenizer or train_unigram(
        [line for line in lines if line], vocab_size=500, model_max_length=512, show_progress=False
    )
    sizes = sizes | {"vocab_size": len(tokenizer)}
    classes = {"encoder": DebertaExtModel, "masked_lm": DebertaExtForMaskedLM}
    for name in names:
        model_class = classes.get(name, DebertaExtForSequenceClassification)
        config = DebertaExtConfig(**sizes, num_labels=1 if name == "scorer" else 2)
        model = random_weights(model_class(config), std=1.4 / config.hidden_size**0.5)
        model.save_pretrained(folder / "ours" / name)
        save_as_deberta_v2(model, folder / "stock" / name, lossy=name == "masked_lm")
        if name == "classifier":
            export_onnx(model, folder / "ours" / "model.onnx")
    bert = transformers.BertModel(transformers.BertConfig(**sizes | {"type_vocab_size": 2}))
    bert.save_pretrained(folder / "bert" / "encoder")
    for place in folder.glob("*/*/config.json"):
        tokenizer.save_pretrained(place.parent)


def classifier(root: Path, **options):
    model = AutoModelForSequenceClassification.from_pretrained(root / "classifier", **REMOTE, **options)
    return model.eval(), AutoTokenizer.from_pretrained(root / "classifier")


def draw_anew(model, prefixes: tuple[str, ...], added_rows: int = 0):
    """Draw the parameters that begin with a prefix, and the last embeddings, from a new generator."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if added_rows and "word_embeddings" in name:
                parameter = parameter[-added_rows:]
            elif not name.startswith(prefixes):
                continue
            parameter.copy_(torch.empty(parameter.shape).normal_(0, 0.2, generator=generator))


def logits(root: Path, library: str = "transformers", name: str = "AutoModelForSequenceClassification", **options) -> list:
    """Return the logits of a padded batch and of one text, by a class of transformers or of a library for other runtimes."""
    tokenizer = AutoTokenizer.from_pretrained(root / "classifier")
    model = getattr(importlib.import_module(library), name).from_pretrained(root / "classifier", **REMOTE, **options)
    batches = tokenizer(TEXTS, padding=True, return_tensors="pt"), tokenizer(TEXTS[1], return_tensors="pt")
    with torch.no_grad():
        return [model(**batch).logits.tolist() for batch in batches]


def openvino_file(root: Path) -> list:
    """Run the file of our ONNX export with OpenVINO and compare it with the PyTorch model."""
    import openvino

    tokenizer = AutoTokenizer.from_pretrained(root / "classifier")
    model = openvino.Core().compile_model(str(root / "model.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    batches = tokenizer(TEXTS, padding=True, return_tensors="np"), tokenizer(TEXTS[1:2], return_tensors="np")
    for batch, expected in zip(batches, logits(root), strict=True):
        found = torch.from_numpy(model({node.any_name: batch[node.any_name] for node in model.inputs})[0])
        assert torch.allclose(found, torch.tensor(expected), atol=1e-4)
    return []


def int8_weights(root: Path) -> list:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model, tokenizer = classifier(root)
    quantize_(model, Int8WeightOnlyConfig())
    assert type(model.deberta.encoder.layer[0].attention.self.query_proj.weight.data) is not torch.Tensor
    with torch.no_grad():
        return model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.tolist()


def reward(root: Path) -> list:
    """Return the losses of three steps on preferences."""
    import datasets
    from trl import RewardConfig, RewardTrainer

    model, tokenizer = classifier(root, num_labels=1, ignore_mismatched_sizes=True)
    draw_anew(model, ("classifier.",))
    rows = datasets.Dataset.from_list([{"chosen": TEXTS[i % 4], "rejected": TEXTS[(i + 1) % 4]} for i in range(8)])
    arguments = RewardConfig(
        tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4, logging_steps=1, learning_rate=1e-2,
        use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=48, **QUIET,
    )  # fmt: skip
    trainer = RewardTrainer(model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def adapter(root: Path, config: str) -> list:
    """Return the modules that peft adapts, and the logits after two steps, saving and loading."""
    import peft

    model, tokenizer = classifier(root)
    torch.manual_seed(0)
    options = dict(target_modules=["key_proj", "value_proj"])
    if config == "IA3Config":
        options["feedforward_modules"] = []
    model = peft.get_peft_model(model, getattr(peft, config)(task_type="SEQ_CLS", **options))
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt") | {"labels": torch.tensor([0, 1, 0, 1])}
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.save_pretrained(folder := tempfile.mkdtemp())
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(classifier(root)[0], folder).eval()(**batch).logits
        assert (found - model.eval()(**batch).logits).abs().max() < 1e-5
    return [*sorted({name.rsplit(".", 1)[-1] for name in model.base_model.targeted_module_names}), found.tolist()]


def replaced(model):
    from hf_deberta_ext import replace_attention

    assert replace_attention(model).replaced


def gliner(root: Path, replace: bool = False, packed: bool = False) -> list:
    """Return entities after saving and loading."""
    from gliner import GLiNER
    from gliner.infer_packing import InferencePackingConfig

    model = GLiNER.from_config(dict(model_name=str(root / "encoder"), hidden_size=32, max_len=64, dropout=0.0))
    heads = [name for name, _ in model.model.named_children() if name != "token_rep_layer"]
    draw_anew(model.model, tuple(heads), added_rows=2)
    model.save_pretrained(folder := tempfile.mkdtemp())
    model = GLiNER.from_pretrained(folder)
    if replace:
        replaced(model)
    packing = InferencePackingConfig(max_length=128, streams_per_batch=2) if packed else None
    found = model.inference(TEXTS, KINDS, threshold=0.3, batch_size=4, packing_config=packing)
    assert any(found)
    return [[[entity["text"], entity["label"], entity["score"]] for entity in row] for row in found]


def gliclass(root: Path, replace: bool = False) -> list:
    """Return label scores after saving and loading."""
    from gliclass import GLiClassModel, GLiClassModelConfig, ZeroShotClassificationPipeline

    encoder = transformers.AutoConfig.from_pretrained(root / "encoder")
    tokenizer = AutoTokenizer.from_pretrained(root / "encoder")
    tokenizer.add_tokens(["<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>"], special_tokens=True)
    tokens = dict(class_token_index=len(tokenizer) - 3, text_token_index=len(tokenizer) - 2)
    config = GLiClassModelConfig(encoder_config=encoder, encoder_model=str(root / "encoder"), hidden_size=32, **tokens)
    model = GLiClassModel(config, from_pretrained=True)
    model.resize_token_embeddings(len(tokenizer))
    draw_anew(model, ("model.text_projector", "model.classes_projector", "model.logit_scale", "model.scorer"), added_rows=3)
    model.save_pretrained(folder := tempfile.mkdtemp())
    model = GLiClassModel.from_pretrained(folder).eval()
    if replace:
        replaced(model)
    pipe = ZeroShotClassificationPipeline(model, tokenizer, classification_type="multi-label", device="cpu", max_length=64)
    return [[[answer["label"], answer["score"]] for answer in row] for row in pipe(TEXTS, KINDS, threshold=0.0)]


def bert_score(root: Path, replace: bool = False) -> list:
    """Return precision, recall and F1 of pairs, from the first of two layers."""
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=str(root / "encoder"), num_layers=1, device="cpu")
    scorer._tokenizer.model_max_length = 64
    if replace:
        replaced(scorer._model)
    return [values.tolist() for values in scorer.score(TEXTS, TEXTS[::-1])]


def setfit(root: Path) -> list:
    """Return probabilities after two steps with a classification head."""
    import datasets
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(str(root / "encoder"), device="cpu", **REMOTE)
    rows = datasets.Dataset.from_list([{"text": text, "label": i % 2} for i, text in enumerate(TEXTS)])
    arguments = TrainingArguments(tempfile.mkdtemp(), max_steps=2, batch_size=4, **QUIET)
    Trainer(model, args=arguments, train_dataset=rows).train()
    model.save_pretrained(folder := tempfile.mkdtemp())
    return SetFitModel.from_pretrained(folder, device="cpu", **REMOTE).predict_proba(TEXTS).tolist()


def span_marker(root: Path) -> list:
    from span_marker import SpanMarkerModel

    lengths = dict(model_max_length=64, entity_max_length=4, marker_max_length=32)
    model = SpanMarkerModel.from_pretrained(str(root / "encoder"), labels=["O", *KINDS], **lengths, **REMOTE)
    draw_anew(model, ("classifier.",))
    return [[[entity["span"], entity["label"], entity["score"]] for entity in row] for row in model.predict(TEXTS)]


def cross_encoder(root: Path) -> list:
    """Return scores of pairs before and after two training steps, saving and loading."""
    import datasets
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments

    model = CrossEncoder(str(root / "scorer"), device="cpu", **REMOTE)
    before = model.predict(list(zip(TEXTS, TEXTS[::-1], strict=True)))
    rows = datasets.Dataset.from_dict({"query": TEXTS, "answer": TEXTS[::-1], "label": [1.0, 0.0, 1.0, 0.0]})
    arguments = CrossEncoderTrainingArguments(tempfile.mkdtemp(), max_steps=2, use_cpu=True, learning_rate=1e-3, **QUIET)
    CrossEncoderTrainer(model, args=arguments, train_dataset=rows).train()
    model.save_pretrained(folder := tempfile.mkdtemp())
    after = CrossEncoder(folder, device="cpu", **REMOTE).predict(list(zip(TEXTS, TEXTS[::-1], strict=True)))
    assert abs(after - before).max() > 1e-5
    return [before.tolist(), after.tolist()]


def embeddings(root: Path, kind: str, models: str) -> list:
    """Return embeddings of a SentenceTransformer or SparseEncoder after saving and loading."""
    encoder_class = getattr(importlib.import_module("sentence_transformers"), kind)
    encoder_class(str(root / models), device="cpu", **REMOTE).save_pretrained(folder := tempfile.mkdtemp())
    return torch.as_tensor(encoder_class(folder, device="cpu", **REMOTE).encode(TEXTS)).to_dense().tolist()


# A local metric in the working folder, because `evaluate` would download the real one from the Hub. The accuracy is real,
# so that logits of another shape are noticed.
METRIC = """
import datasets
import evaluate
class Metric(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo("", "", datasets.Features({"predictions": datasets.Value("int8")}))
    def add_batch(self, **_):
        "Nothing."
    def compute(self, predictions=(), references=(), **_):
        "The accuracy, and zeros."
        right = [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]
        names = "exact_match f1 overall_precision overall_recall overall_f1 overall_accuracy"
        return dict.fromkeys(names.split(), 0.0) | {"accuracy": sum(right) / max(1, len(right))}
"""
SCRIPTS = [f"{name}{rest}" for rest in ("", "_no_trainer") for name in (
    "text-classification/run_glue", "question-answering/run_qa", "token-classification/run_ner",
    "multiple-choice/run_swag", "language-modeling/run_mlm",
)]  # fmt: skip
FLAGS = {"run_qa": "--max_seq_length 64 --doc_stride 16", "run_mlm": "--max_seq_length 32"}
ANSWER = {"question": TEXTS[0], "context": "The index names its shards", "answers": {"text": ["index"], "answer_start": [4]}}


def example_script(root: Path, name: str, labels: tuple = (0, 1)) -> list:
    """Run an unmodified script of transformers; its output folder must load as the class that its configuration names."""
    script = Path(os.environ["TRANSFORMERS_EXAMPLES"]) / f"{name}.py"
    task, folder = script.stem.removesuffix("_no_trainer"), Path(tempfile.mkdtemp())
    rows = {
        "run_glue": [{"sentence1": text, "label": labels[i % 2]} for i, text in enumerate(TEXTS * 2)],
        "run_qa": [{"data": [ANSWER | {"id": str(i)} for i in range(8)]}],
        "run_ner": [{"tokens": text.split(), "ner_tags": ["O"] * len(text.split())} for text in TEXTS * 2],
        "run_swag": [{"sent1": "In", "sent2": "it", "label": 0} | {f"ending{i}": TEXTS[i] for i in range(4)}] * 8,
        "run_mlm": [{"text": text} for text in TEXTS * 8],
    }[task]
    data = folder / "data.json"
    data.write_text("\n".join(map(json.dumps, rows)))
    for metric in ("accuracy", "seqeval", "squad"):
        (folder / metric).mkdir()
        (folder / metric / f"{metric}.py").write_text(METRIC)
    flags = f"--train_file {data} --validation_file {data} --output_dir {folder}/out --per_device_train_batch_size 2 "
    flags += FLAGS.get(task, "")
    if script.stem == task:
        flags += " --do_train --do_eval --max_steps 2 --save_strategy no --report_to none --use_cpu --trust_remote_code"
    else:
        flags += " --max_train_steps 2 --trust_remote_code" + " true" * (task == "run_glue")
    command = [sys.executable, str(script), "--model_name_or_path", str(root / "encoder"), *flags.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    config = json.loads((folder / "out" / "config.json").read_text())
    (architecture,) = config["architectures"]
    auto_class = getattr(transformers, "AutoModelFor" + architecture.split("For")[1])
    assert type(auto_class.from_pretrained(folder / "out", **REMOTE)).__name__ == architecture
    assert labels == (0, 1) or {*labels} == {*config["label2id"]}
    return []


class Journey(NamedTuple):
    """A user's task with our models, and with other models as a control.

    Attributes:
        control: folder of the control's models, and its options where they differ.
        package: import hf_deberta_ext first; otherwise only the code in the model's folder is available.
        same: ours and the control must give the same numbers; otherwise the control only runs where ours fails.
        known: words of an expected error that the guide explains.
    """

    title: str
    function: Callable
    options: dict[str, Any] = {}  # noqa: RUF012
    models: str = "ours"
    control: tuple = ("stock",)
    package: bool = False
    same: bool = True
    known: str | None = None


ORT = dict(library="optimum.onnxruntime", name="ORTModelForSequenceClassification", export=True)
OPENVINO = dict(library="optimum.intel", name="OVModelForSequenceClassification", export=True)
OPENVINO["ov_config"] = {"INFERENCE_PRECISION_HINT": "f32"}
SPARSE = dict(kind="SparseEncoder", models="masked_lm")
PACKED, PACKED_STOCK = {"packed": True}, {"packed": True, "replace": True}
# Client -> (requirements, journeys); the version of the first requirement is shown.
# fmt: off
CLIENTS: dict[str, tuple[list[str], list[Journey]]] = {
    "trl": (["trl"], [
        Journey("RewardTrainer, remote code", reward),
        Journey("RewardTrainer, package", reward, package=True),
    ]),
    "peft": (["peft"], [
        Journey(f"{config}, {way}", adapter, {"config": config}, package=way == "package")
        for config in ("LoraConfig", "IA3Config") for way in ("remote code", "package")
    ]),
    "gliner": (["gliner"], [
        Journey("stock model, replace_attention", gliner, {"replace": True}, "stock", ("stock", {}), True),
        Journey("stock model, replace_attention, packed", gliner, PACKED_STOCK, "stock", ("stock", {}), True),
        Journey("our encoder, package", gliner, package=True),
        Journey("our encoder, package, packed (control: BERT)", gliner, PACKED, control=("bert",), package=True, same=False),
    ]),
    "gliclass": (["gliclass"], [
        Journey("stock model, replace_attention", gliclass, {"replace": True}, "stock", ("stock", {}), True),
        Journey("our encoder, package", gliclass, package=True),
    ]),
    "bert-score": (["bert-score"], [
        Journey("stock model, replace_attention", bert_score, {"replace": True}, "stock", ("stock", {}), True),
        Journey("our encoder, package", bert_score, package=True),
    ]),
    "setfit": (["setfit"], [Journey("SetFitModel, Trainer, remote code", setfit)]),
    "span-marker": (["span-marker"], [Journey("SpanMarkerModel, remote code", span_marker)]),
    "sentence-transformers": (["sentence-transformers[train]"], [
        Journey("CrossEncoder, its trainer, remote code", cross_encoder),
        Journey("SentenceTransformer, remote code", embeddings, dict(kind="SentenceTransformer", models="encoder")),
        # transformers' DebertaV2ForMaskedLM has a different decoder.
        Journey("SparseEncoder, remote code", embeddings, SPARSE, same=False),
    ]),
    "optimum-onnx": (["optimum-onnx[onnxruntime]", "onnxscript"], [
        Journey("ORTModel, save_as_deberta_v2", logits, ORT, "stock", ("stock", {})),
        Journey("AutoModel, remote code", logits, known="needs transformers"),
    ]),
    "optimum-intel": (["optimum-intel"], [
        Journey("OVModel, save_as_deberta_v2", logits, OPENVINO, "stock", ("stock", {})),
        Journey("OVModel, remote code", logits, OPENVINO, known="custom export configuration"),
    ]),
    "openvino": (["openvino", "transformers"], [Journey("file of our export", openvino_file, same=False)]),
    "torchao": (["torchao", "transformers"], [Journey("Int8WeightOnlyConfig, remote code", int8_weights)]),
    "examples": (["transformers", "accelerate", "datasets", "evaluate", "scikit-learn", "scipy"], [
        *(Journey(f"{name}.py, remote code", example_script, {"name": name}, same=False) for name in SCRIPTS),
        Journey("run_glue.py, words as labels", example_script, dict(name=SCRIPTS[0], labels=("good", "bad")), same=False),
    ]),
}
# fmt: on


def run(journey: Journey, root: Path, options: dict) -> dict:
    """Run a journey; return {"values": ...} or {"error": message}."""
    random.seed(0)
    torch.manual_seed(0)
    try:
        return {"values": journey.function(root, **options)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def main(client: str, number: str, models: str, result: str):
    """Write {"ours": result, "control": result}."""
    journey, answers = CLIENTS[client][1][int(number)], {}
    if journey.package:
        importlib.import_module("hf_deberta_ext")
    else:
        sys.modules["hf_deberta_ext"] = None  # makes its import fail even if it is installed
    answers["ours"] = run(journey, Path(models, journey.models), journey.options)
    if journey.same or "error" in answers["ours"]:
        folder, options = (*journey.control, journey.options)[:2]
        answers["control"] = run(journey, Path(models, folder), options)
    Path(result).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
