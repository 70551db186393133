# SPDX-License-Identifier: Apache-2.0
"""`HEADS`, the table of all model classes, used by Auto-class registration, conversion, export, model cards and tests."""

from dataclasses import dataclass
from typing import Any, Literal

from .model import modeling_deberta_ext, replaced_tokens_deberta_ext
from .model.configuration_deberta_ext import AUTO_MAP
from .model.replaced_tokens_deberta_ext import PARTS

__all__ = ["HEADS", "PARTS", "Head", "model_class"]


@dataclass(frozen=True)
class Head:
    """Entry of `HEADS`: a model class with its outputs, labels, transformers class and pipeline tag.

    Args:
        model_class (`str`): name of the class.
        description (`str`): beginning of the first sentence in a new model card.
        outputs (`tuple[str, ...]`): names of the output tensors except the loss, also used in exported graphs.
        labels (*optional*): kind of labels. "words": vocabulary ids [B, N]; "tokens": classes [B, N]; "row": classes [B];
            "span": start_positions and end_positions [B]; "choice": index of the correct choice [B], for inputs
            [B, choices, N]; "entities": 0 or 1 [B, E].
        stock_class (`str`, *optional*): transformers class that loads the model after conversion to deberta-v2.
        pipeline_tag (`str`, *optional*): pipeline tag on the Hub.
    """

    model_class: str
    description: str
    outputs: tuple[str, ...] = ("logits",)
    labels: Literal["words", "tokens", "row", "span", "choice", "entities"] | None = None
    stock_class: str | None = None
    pipeline_tag: str | None = None

    @property
    def auto_class(self) -> str | None:
        """Auto class of transformers that loads the model; None if there is none."""
        names = [auto for auto, entry in AUTO_MAP.items() if entry.endswith(f".{self.model_class}")]
        return names[0] if names else None


def task_head(task: str, description: str, pipeline_tag: str, **fields) -> Head:
    """Create the `Head` of a task for which transformers has a class, DebertaV2For`task`."""
    return Head(f"DebertaExtFor{task}", description, pipeline_tag=pipeline_tag, stock_class=f"DebertaV2For{task}", **fields)


# Keys are the values of --head on the command line.
HEADS = {
    "base": Head(
        "DebertaExtModel",
        "A DeBERTa encoder",
        outputs=("last_hidden_state",),
        stock_class="DebertaV2Model",
        pipeline_tag="feature-extraction",
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
        "QuestionAnswering",
        "A DeBERTa model that finds answers in texts",
        "question-answering",
        labels="span",
        outputs=("start_logits", "end_logits"),
    ),
    "multiple-choice": task_head(
        "MultipleChoice", "A DeBERTa model that chooses among answers", "multiple-choice", labels="choice"
    ),
    "entity-scoring": Head(
        "DebertaExtForEntityScoring", "A DeBERTa model that scores the entities of a text", labels="entities"
    ),
    "pretraining": Head(
        "DebertaExtForPreTraining",
        "Generator and discriminator of replaced token detection (DeBERTaV3)",
        outputs=("generator_logits", "discriminator_logits"),
        labels="words",
    ),
}


def model_class(name: str) -> type[Any]:
    """Return the model class for a key of `HEADS`."""
    class_name = HEADS[name].model_class
    return getattr(modeling_deberta_ext, class_name, None) or getattr(replaced_tokens_deberta_ext, class_name)
