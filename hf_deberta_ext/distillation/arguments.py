# SPDX-License-Identifier: Apache-2.0
"""Flags of every distillation: teacher, student, objectives and the teacher's outputs."""

import math
from dataclasses import dataclass, field

from ..finetuning.arguments import FineTuningArguments
from ..training.flags import option
from .objectives import OBJECTIVES

__all__ = ["DistillationArguments"]

HEADS = "number of relation heads; default: the largest number up to 48 that divides both hidden sizes"


@dataclass
class DistillationArguments(FineTuningArguments):
    """Arguments of a distillation; each objective has a weight."""

    teacher: str | None = option(None, "folder or Hub id of the teacher, of any model type and tokenizer; required")
    student_layers: int | None = option(None, "copy N evenly spaced layers of --model_name_or_path (default: of --teacher)")
    preset: str | None = option(None, "create a new DeBERTa student with this preset and the teacher's tokenizer")
    without_teacher: bool = option(True, "also train the student without the teacher, for the comparison")
    label_weight: float = option(0.5, "weight of the loss on labels (for text: on masked words)")
    soft_labels_weight: float = option(0.5, f"weight of the loss on {OBJECTIVES['soft_labels'].title}; must be 0 for text")
    embeddings_weight: float = option(0.0, f"weight of the loss on {OBJECTIVES['embeddings'].title}")
    hidden_weight: float = option(0.0, f"weight of the loss on {OBJECTIVES['hidden'].title}")
    relations_weight: float = option(0.0, f"weight of the loss on {OBJECTIVES['relations'].title}")
    temperature: float = option(2.0, "temperature of the soft labels")
    teacher_layer: int = option(-1, "layer of the teacher for hidden states and relations; default: -1, the last")
    relation_heads: int | None = option(None, HEADS)
    teacher_outputs: str | None = option(None, "folder for the teacher's outputs; default: teacher_outputs in --output_dir")
    cache_dtype: str = option("float16", "dtype of the teacher's outputs", choices=["float16", "float32"])
    max_cache_gb: float = option(50.0, "maximum size on disk of the teacher's outputs, in GB")
    # The collator needs the number of each row.
    remove_unused_columns: bool = field(default=False, init=False)

    def __post_init__(self):
        super().__post_init__()
        for name in ("label_weight", "temperature", *(f"{name}_weight" for name in OBJECTIVES)):
            if not 0 <= getattr(self, name) < math.inf or (name == "temperature" and self.temperature == 0):
                raise ValueError(f"--{name} must be a positive number (weights may be 0), got {getattr(self, name)}")
        if self.sift_weight:
            raise ValueError("--sift_weight cannot be used in a distillation; remove it")

    @property
    def objectives(self) -> dict[str, float]:
        """{name: weight} of the objectives with a positive weight; the loss on labels is not included."""
        weights = {name: getattr(self, f"{name}_weight") for name in OBJECTIVES}
        return {name: weight for name, weight in weights.items() if weight > 0}
