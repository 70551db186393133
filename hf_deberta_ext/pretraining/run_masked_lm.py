# SPDX-License-Identifier: Apache-2.0
"""Pre-train a masked language model from scratch or from a checkpoint, with a weighted sum of BERT-family objectives."""

from pathlib import Path
from typing import Any

from .objectives import OBJECTIVES, MultiObjectiveMaskedLM, pair_objectives
from .packing import PAIR_MODES
from .report import CURVES_FILE, evaluation_table, plot_objectives
from .run_arguments import DataArguments, MaskingArguments, ModelArguments
from .run_stages import PretrainingRun, parse_and_run
from .trainer import PretrainingArguments, PretrainingTrainer

__all__ = ["GROUPS", "MaskedLMRun", "main"]

GROUPS = (ModelArguments, DataArguments, MaskingArguments, PretrainingArguments)


def main(argv: list[str] | None = None, *, description: str = __doc__, program: str = "%(prog)s") -> dict[str, float]:
    """Parse a command line, pre-train and evaluate a masked language model, and return its metrics.

    Args:
        argv (`list[str]`, *optional*): flags; default: the flags of the process.
        description (`str`): description; `--help` shows its first paragraph.
        program (`str`): program name in `--help`.
    """
    return parse_and_run(MaskedLMRun, GROUPS, argv, description, program)


class MaskedLMRun(PretrainingRun):
    """Pre-training run of `MultiObjectiveMaskedLM`."""

    trainer_class = PretrainingTrainer

    def check(self):
        """Check that --packing makes pairs if and only if an objective needs them."""
        packing, readers = self.data_args.packing, pair_objectives([*self.args.objectives])
        if packing in PAIR_MODES and not readers:
            raise ValueError(
                f"--packing {packing} makes pairs that no objective uses; pass --nsp_weight or --sop_weight, or "
                "--packing full_sentences"
            )
        if readers and packing not in PAIR_MODES:
            modes = " or ".join(PAIR_MODES)
            raise ValueError(f"--{readers[0]}_weight needs pairs, got --packing {packing}; use --packing {modes}")

    def new_model(self) -> MultiObjectiveMaskedLM:
        """Return the model with random weights."""
        return MultiObjectiveMaskedLM(self.config, self.args.objectives)

    def load_model(self, **options: Any) -> MultiObjectiveMaskedLM:
        """Load the model from --model; heads that are not in the checkpoint are initialised."""
        return MultiObjectiveMaskedLM.from_pretrained(self.model_args.model, objectives=self.args.objectives, **options)

    def report(self, trainer, metrics, seconds):
        """Draw the curves, write the card and print the results."""
        names = [*self.args.objectives]
        plot_objectives(trainer.state.log_history, Path(self.args.output_dir, CURVES_FILE), names)
        titles = {name: OBJECTIVES[name].title for name in names}
        weights = [f"{titles[name]} (weight {weight:g})" for name, weight in self.args.objectives.items()]
        rows, table = {"objectives": ", ".join(weights)}, evaluation_table(metrics, names)
        self.write_report(trainer, seconds, table, rows, **titles)
