# SPDX-License-Identifier: Apache-2.0
"""examples/run_superglue.py end to end: a class of texts, answers in groups, a multiple choice, and what it refuses."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, pipeline

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM
from hf_deberta_ext.pretraining.tokenizer_training import train_byte_level_bpe

for package in ("accelerate", "datasets", "matplotlib"):
    pytest.importorskip(package)

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_superglue.py"
BOOLQ = [
    {"question": f"is it {word}", "passage": f"It is {fact}.", "idx": n, "label": word == fact}
    for n, (word, fact) in enumerate([("cold", "cold"), ("cold", "hot"), ("hot", "hot"), ("hot", "cold")] * 4)
]
MULTIRC = [
    {
        "paragraph": "Ann is cold, Bob is hot.",
        "question": f"who is {word}?",
        "answer": name,
        "idx": {"paragraph": 0, "question": question, "answer": answer},
        "label": int((name == "Ann") == (word == "cold")),
    }
    for answer, (question, word, name) in enumerate((q, w, n) for q, w in enumerate(("cold", "hot")) for n in ("Ann", "Bob"))
]
COPA = [
    {
        "premise": "It is cold.",
        "choice1": "Ann is hot.",
        "choice2": "Ann is cold.",
        "question": "effect",
        "label": 1,
        "idx": n,
    }
    for n in range(4)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folder of a tiny model of ours, trained on nothing."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_byte_level_bpe(["It is cold. who is hot? Ann Bob"] * 5, vocab_size=300, show_progress=False)
    config = DebertaExtConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, position_buckets=16,
    )  # fmt: skip
    DebertaExtForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def arguments(model, folder, task, rows, *more, kinds=("train", "validation", "test")):
    files = []
    for kind in kinds:
        file = folder / f"{kind}.jsonl"
        unlabelled = [{name: cell for name, cell in row.items() if name != "label"} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in (unlabelled if kind == "test" else rows)))
        files += [f"--{kind}_file", str(file)]
    return [
        "--model_name_or_path", str(model), "--task_name", task, *files, "--output_dir", str(folder / "out"),
        "--report_to", "none", "--disable_tqdm", "true", "--per_device_train_batch_size", "4", *more,
    ]  # fmt: skip


ALL = ("--do_train", "--do_eval", "--do_predict", "--max_steps", "2")


def test_boolq_leaves_a_model_results_and_a_file_for_the_server(run_superglue, model, tmp_path):
    metrics = run_superglue.main(arguments(model, tmp_path, "boolq", BOOLQ, *ALL))
    out = tmp_path / "out"
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert json.loads((out / "eval_results.json").read_text())["eval_samples"] == 16
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "False", "1": "True"}
    written = [json.loads(line) for line in (out / "BoolQ.jsonl").read_text().splitlines()]
    assert [row["idx"] for row in written] == [*range(16)]
    classify = pipeline("text-classification", model=str(out), tokenizer=AutoTokenizer.from_pretrained(out))
    answers = [classify({"text": row["question"], "text_pair": row["passage"]}) for row in BOOLQ[:4]]
    answers = [answer[0] if isinstance(answer, list) else answer for answer in answers]
    assert [answer["label"].lower() for answer in answers] == [row["label"] for row in written[:4]]


def test_multirc_has_metrics_of_questions(run_superglue, model, tmp_path):
    metrics = run_superglue.main(arguments(model, tmp_path, "multirc", MULTIRC, *ALL))
    assert {"eval_exact_match", "eval_f1_m", "eval_f1_a"} <= {*metrics}
    assert (tmp_path / "out" / "eval_predictions.jsonl").is_file()
    (row,) = (tmp_path / "out" / "MultiRC.jsonl").read_text().splitlines()
    assert len(json.loads(row)["passage"]["questions"]) == 2


def test_copa_is_trained_as_a_choice(run_superglue, model, tmp_path):
    metrics = run_superglue.main(arguments(model, tmp_path, "copa", COPA, *ALL))
    assert 0 <= metrics["eval_accuracy"] <= 1
    assert len((tmp_path / "out" / "COPA.jsonl").read_text().splitlines()) == 4


def test_a_trained_checkpoint_is_evaluated_in_its_own_order_of_labels(run_superglue, tmp_path, model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    shape = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, max_position_embeddings=64)
    config = BertConfig(
        vocab_size=len(tokenizer), **shape, id2label={0: "True", 1: "False"}, label2id={"True": 0, "False": 1}
    )
    classifier = BertForSequenceClassification(config)
    # Always its label 0, which is True.
    classifier.classifier.weight.data.zero_()
    classifier.classifier.bias.data.copy_(classifier.classifier.bias.new_tensor([1.0, 0.0]))
    checkpoint = tmp_path / "checkpoint"
    classifier.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    rows = BOOLQ[:3]
    flags = arguments(checkpoint, tmp_path, "boolq", rows, "--do_eval", "--do_predict", kinds=("validation", "test"))
    assert run_superglue.main(flags)["eval_accuracy"] == pytest.approx(2 / 3)
    written = [json.loads(line)["label"] for line in (tmp_path / "out" / "BoolQ.jsonl").read_text().splitlines()]
    assert written == ["true"] * 3


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("sst2", BOOLQ, "--task_name must be one of axb, axg, boolq"),
        ("cb", BOOLQ, "has no column 'premise', 'hypothesis'"),
        ("boolq", [{**BOOLQ[0], "label": 3}], "row 1 of --train_file has the label 3"),
    ],
)
def test_what_a_user_can_mend_is_one_line(run_superglue, model, tmp_path, capsys, task, rows, message):
    with pytest.raises(SystemExit) as stopped:
        run_superglue.main(arguments(model, tmp_path, task, rows, *ALL))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
