# SPDX-License-Identifier: Apache-2.0
"""Pipelines of transformers load folders of this package after importing it, without other steps."""

import json
import subprocess
import sys

from scripts import ROOT
from tiny_models import HEADS, save_tokenizer, tiny_model
from transformers.pipelines import SUPPORTED_TASKS

TEXT = "w7 [MASK] w9 w12"
CLASSIFIER = "AutoModelForSequenceClassification"
LABELS = {"contradiction": 0, "neutral": 1, "entailment": 2}
# task: head, arguments, keys of a result. transformers 5.4 still has question-answering.
PIPELINES = {
    "feature-extraction": ("AutoModel", [TEXT], set()),
    "fill-mask": ("AutoModelForMaskedLM", [TEXT], {"score", "token_str", "sequence"}),
    "question-answering": ("AutoModelForQuestionAnswering", [{"question": "w7", "context": "w9 w12"}], {"answer", "score"}),
    "text-classification": (CLASSIFIER, [TEXT], {"label", "score"}),
    "token-classification": ("AutoModelForTokenClassification", [TEXT], {"entity", "score", "word"}),
    "zero-shot-classification": (CLASSIFIER, [TEXT, ["w20", "w21"]], {"labels", "scores"}),
}
CODE = """
import json, sys
from transformers import pipeline
import hf_deberta_ext
results = {}
for task, (folder, arguments, _) in json.loads(sys.argv[1]).items():
    pipe = pipeline(task, model=folder, device="cpu")
    assert type(pipe.model).__module__.startswith("hf_deberta_ext."), type(pipe.model)
    results[task] = pipe(*arguments)
print(json.dumps(results, default=str))
"""


def test_pipelines_of_all_heads_need_only_an_import(tmp_path):
    jobs = {}
    for task, (head, arguments, keys) in PIPELINES.items():
        if task in SUPPORTED_TASKS:
            jobs[task] = str(tmp_path / head), arguments, sorted(keys)
            tiny_model(HEADS[head], id2label=dict(enumerate(LABELS)), label2id=LABELS).save_pretrained(tmp_path / head)
            save_tokenizer(tmp_path / head)
    command = [sys.executable, "-c", CODE, json.dumps(jobs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    # [CLS] and [SEP] around four words, with a vector each.
    assert [len(token) for token in results.pop("feature-extraction")[0]] == [32] * 6
    for task, result in results.items():
        first = result[0] if isinstance(result, list) else result
        assert PIPELINES[task][2] <= {*first}, task
