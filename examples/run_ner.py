# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model for token classification: CoNLL-2003, WNUT-17, or named entities and other word labels in your own
data.

CoNLL-2003 from the Hub with the published settings for this size (an accelerator with 24 GB):

    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-large --task_name conll2003 --recipe v3-large \\
        --do_train --do_eval --do_predict --return_entity_level_metrics --output_dir conll2003

Files instead of the Hub's data: json, jsonl or parquet with a list of words and a list of labels per row, or CoNLL text
files (.txt, .conll: one word and its label per line, a blank line between sentences), each also .gz:

    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-small --train_file train.conll \\
        --validation_file dev.conll --test_file test.conll --do_train --do_eval --do_predict --learning_rate 4.5e-5 \\
        --warmup_steps 0.1 --output_dir mine

A tiny run on CPU, under a minute, with random weights and the shape of a small model (its tokenizer comes from the Hub, or
from an output folder of run_mlm.py):

    printf 'Ada B-PER\\nLovelace I-PER\\nsmiles O\\n\\nParis B-LOC\\nsleeps O\\n' > tiny.conll
    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --train_file tiny.conll --validation_file tiny.conll --do_train --do_eval \\
        --max_steps 5 --output_dir tiny

Any model of AutoModelForTokenClassification with a fast tokenizer works. Metrics are over all words: a word that is
truncated, or for which the tokenizer has no token, counts as "O". The output folder holds the files that run_glue.py
describes, and eval_ and predict_predictions.txt in the CoNLL format.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("ner"), description=__doc__)

if __name__ == "__main__":
    main()
