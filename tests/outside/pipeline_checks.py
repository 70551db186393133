# SPDX-License-Identifier: Apache-2.0
"""Expected answers of pipelines: stands in for the tests of transformers' tests/pipelines, which its source distribution
lacks. PipelineTesterMixin loads the model, asks for a pipeline, and runs batches itself."""

import torch
from transformers import pipeline

TEXTS = ["a cat saw the dog", "the dog", "a dog saw a cat here , and the cat ran"]
CANDIDATES = ["cat", "dog", "here"]
TOLERANCE = {"float32": 1e-5, "float16": 5e-3}


class PipelineChecks:
    """Each answer, one text at a time and all in one batch, beside what the model itself computes."""

    task: str

    def get_test_pipeline(self, model, tokenizer, dtype="float32", **processors):
        self.model, self.tokenizer, self.tolerance = model.to(getattr(torch, dtype)), tokenizer, TOLERANCE[dtype]
        options = {"zero-shot-classification": dict(candidate_labels=CANDIDATES), "fill-mask": dict(top_k=3)}
        task = "zero-shot-classification" if self.task == "zero-shot" else self.task
        self.pipe = pipeline(task, model=self.model, tokenizer=tokenizer, dtype=dtype, **options.get(task, {}))
        texts = [f"{text} {tokenizer.mask_token} ." for text in TEXTS] if task == "fill-mask" else TEXTS
        return self.pipe, texts

    def run_pipeline_test(self, pipe, texts):
        expect = getattr(self, self.task.replace("-", "_"))
        for text, together in zip(texts, pipe(texts, batch_size=len(texts)), strict=True):
            for answer in (together, pipe(text)):
                expect(text, answer)

    def outputs(self, *texts):
        with torch.no_grad():
            return self.model(**self.tokenizer(*texts, return_tensors="pt"))

    def close(self, result, expected):
        result, expected = torch.as_tensor(result).double(), torch.as_tensor(expected).double()
        torch.testing.assert_close(result, expected, atol=self.tolerance, rtol=self.tolerance)

    def feature_extraction(self, text, answer):
        states = self.outputs(text).last_hidden_state
        # In a batch with what it computed at padding.
        self.close(torch.as_tensor(answer)[:, : states.shape[1]], states)

    def text_classification(self, text, answer):
        (answer,) = answer if isinstance(answer, list) else (answer,)
        probabilities = self.outputs(text).logits[0].float().softmax(-1)
        self.close(answer["score"], probabilities.max())
        self.close(probabilities[self.model.config.label2id[answer["label"]]], probabilities.max())

    def token_classification(self, text, answer):
        probabilities = self.outputs(text).logits[0].float().softmax(-1)
        words = self.tokenizer.convert_ids_to_tokens(self.tokenizer(text)["input_ids"])
        assert answer and all(words[entry["index"]] == entry["word"] for entry in answer), answer
        for entry in answer:
            self.close(entry["score"], probabilities[entry["index"]].max())

    def fill_mask(self, text, answer):
        place = self.tokenizer(text)["input_ids"].index(self.tokenizer.mask_token_id)
        probabilities = self.outputs(text).logits[0, place].float().softmax(-1)
        self.close([entry["score"] for entry in answer], probabilities.topk(3).values)
        self.close([probabilities[entry["token"]] for entry in answer], probabilities.topk(3).values)

    def zero_shot(self, text, answer):
        entailment = self.model.config.label2id["entailment"]
        logits = [self.outputs(text, f"This example is {label}.").logits[0, entailment] for label in answer["labels"]]
        assert sorted(answer["labels"]) == sorted(CANDIDATES), answer
        self.close(answer["scores"], torch.stack(logits).float().softmax(-1))
