# SPDX-License-Identifier: Apache-2.0
"""Pre-train transformers' BERT or ModernBERT exactly as run_mlm.py trains DeBERTa, to compare the architectures.

    python examples/run_mlm.py $FLAGS --tokenizer tokenizer --output_dir ours
    python examples/run_stock_mlm.py $FLAGS --tokenizer tokenizer --architecture bert --output_dir bert
    python examples/compare_runs.py --runs ours=ours BERT=bert --metrics eval_mlm_loss train_runtime --output_dir comparison

Takes the flags of run_mlm.py. Documents, tokenizer, examples, masks, optimizer and evaluation are the same, and so are the
sizes that --preset and --config_overrides set. ModernBERT's gated feed-forward layers are two thirds as wide, which gives
the same number of parameters. Logits are only computed for masked tokens, as in our model. The output folder has no card.
"""

from dataclasses import dataclass

from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from hf_deberta_ext import DebertaExtConfig
from hf_deberta_ext.pretraining import ModelArguments
from hf_deberta_ext.pretraining.objectives import MultiObjectiveOutput, row_statistics
from hf_deberta_ext.pretraining.run_masked_lm import GROUPS, MaskedLMRun
from hf_deberta_ext.pretraining.run_stages import parse_and_run
from hf_deberta_ext.training.flags import option

# Model type -> function that maps hidden states [n, hidden_size] to logits.
HEADS = {
    "bert": lambda model, states: model.cls(states),
    "modernbert": lambda model, states: model.decoder(model.head(states)),
}


@dataclass
class StockModelArguments(ModelArguments):
    architecture: str = option("bert", "model classes to train", choices=[*HEADS])


class SparseLogits:
    """A transformers masked language model with the forward that `PretrainingTrainer` calls; computes logits only at masked
    tokens.
    """

    objectives = ("mlm",)

    def forward(self, input_ids, attention_mask, labels, output_z: bool = False, **others) -> MultiObjectiveOutput:
        states = self.base_model(input_ids, attention_mask=attention_mask).last_hidden_state
        rows, columns = (labels != -100).nonzero(as_tuple=True)
        logits = HEADS[self.config.model_type](self, states[rows, columns])
        statistics = row_statistics(logits, labels[rows, columns], rows, len(labels), count_right=not self.training)
        return MultiObjectiveOutput(loss=statistics[:, 0].sum() / statistics[:, 2].sum(), statistics={"mlm": statistics})


def stock_model(architecture: str, config: DebertaExtConfig) -> SparseLogits:
    """Return a new model with the sizes of `config`, saved under the name of its transformers class."""
    sizes = dict(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        initializer_range=config.initializer_range,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
    )
    if architecture == "bert":
        dropout = config.hidden_dropout_prob
        sizes |= dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=config.attention_probs_dropout_prob)
        stock_config = BertConfig(intermediate_size=config.intermediate_size, type_vocab_size=1, **sizes)
        base = BertForMaskedLM
    else:
        sizes |= dict(cls_token_id=config.bos_token_id, sep_token_id=config.eos_token_id)
        stock_config = ModernBertConfig(intermediate_size=config.intermediate_size * 2 // 3, **sizes)
        base = ModernBertForMaskedLM
    return type(base.__name__, (SparseLogits, base), {})(stock_config)


class StockRun(MaskedLMRun):
    """Pre-training run of a transformers model."""

    def configuration(self) -> DebertaExtConfig:
        args = self.model_args
        if args.model is not None:
            raise ValueError(f"--model {args.model}: a comparison of architectures trains from scratch; remove the flag")
        if [*self.args.objectives] != ["mlm"]:
            raise ValueError(f"{args.architecture} only has a masked-language-modelling head; remove the other objectives")
        return super().configuration()

    def new_model(self) -> SparseLogits:
        return stock_model(self.model_args.architecture, self.config)

    def report(self, trainer, metrics, seconds):
        """Write no card."""


def main(argv: list[str] | None = None):
    return parse_and_run(StockRun, (StockModelArguments, *GROUPS[1:]), argv, __doc__)


if __name__ == "__main__":
    main()
