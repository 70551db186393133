# SPDX-License-Identifier: Apache-2.0
# hf_deberta_ext model code
"""The model classes: ONE table, from which registration, configurations, conversion, export, model cards and tests read."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["HEADS", "PARTS", "PEFT_TASKS", "Head"]

# The halves of a joint model, which are folders and models by themselves.
PARTS = ("generator", "discriminator")
# The Hub's name of a task -> the name of the task for which peft has its own class.
PEFT_TASKS = {"text-classification": "SEQ_CLS", "token-classification": "TOKEN_CLS", "question-answering": "QUESTION_ANS"}


@dataclass(frozen=True)
class Head:
    """A model class of modeling_deberta_ext.py, and its names elsewhere.

    Args:
        model_class (`str`): its name.
        description (`str`): opens a new model card.
        outputs (`tuple[str, ...]`): its tensors without the loss, as exported graphs give them.
        labels (*optional*): "words": ids of the vocabulary [B, N]; "tokens": classes [B, N]; "row": classes [B]; "span":
            start_positions and end_positions [B]; "choice": [B], for inputs [B, choices, N]; "entities": 0 or 1 [B, E].
        auto_class (`str`, *optional*): the Auto class of transformers that loads it; None = only by its own name.
        stock_class (`str`, *optional*): the class of transformers that loads it once it is written as deberta-v2.
        pipeline_tag (`str`, *optional*): on the Hub.
    """

    model_class: str
    description: str
    outputs: tuple[str, ...] = ("logits",)
    labels: Literal["words", "tokens", "row", "span", "choice", "entities"] | None = None
    auto_class: str | None = None
    stock_class: str | None = None
    pipeline_tag: str | None = None


def task_head(task: str, description: str, pipeline_tag: str, **fields) -> Head:
    """Make the head of a task that transformers has too, under names that end alike."""
    names = dict(auto_class=f"AutoModelFor{task}", stock_class=f"DebertaV2For{task}")
    return Head(f"DebertaExtFor{task}", description, pipeline_tag=pipeline_tag, **names, **fields)


# By their names on the command line.
HEADS = {
    "base": Head(
        "DebertaExtModel", "A DeBERTa encoder", outputs=("last_hidden_state",), auto_class="AutoModel",
        stock_class="DebertaV2Model", pipeline_tag="feature-extraction",
    ),
    "masked-lm": task_head("MaskedLM", "A DeBERTa masked language model", "fill-mask", labels="words"),
    "replaced-token-detection": Head(
        "DebertaExtForReplacedTokenDetection", "A DeBERTa encoder", labels="tokens", stock_class="DebertaV2Model"
    ),
    "sequence-classification": task_head(
        "SequenceClassification", "A DeBERTa text classifier", "text-classification", labels="row"
    ),
    "token-classification": task_head(
        "TokenClassification", "A DeBERTa token classifier", "token-classification", labels="tokens"
    ),
    "question-answering": task_head(
        "QuestionAnswering", "A DeBERTa model that finds answers in texts", "question-answering", labels="span",
        outputs=("start_logits", "end_logits"),
    ),
    "multiple-choice": task_head(
        "MultipleChoice", "A DeBERTa model that chooses among answers", "multiple-choice", labels="choice"
    ),
    "entity-scoring": Head(
        "DebertaExtForEntityScoring", "A DeBERTa model that scores the entities of a text", labels="entities"
    ),
    "pretraining": Head(
        "DebertaExtForPreTraining", "Generator and discriminator of replaced token detection (DeBERTaV3)",
        outputs=("generator_logits", "discriminator_logits"), labels="words", auto_class="AutoModelForPreTraining",
    ),
}  # fmt: skip
