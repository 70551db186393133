# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a model on labels of words: CoNLL-2003, WNUT-17, or named entities and the like in files of one's own.

CoNLL-2003 from the Hub with the settings that were published for this size (an accelerator with 24 GB):

    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-large --task_name conll2003 --recipe v3-large \\
        --do_train --do_eval --do_predict --return_entity_level_metrics --output_dir conll2003

Files in place of the Hub's data: json, jsonl or parquet with a list of words and a list of labels a row, or CoNLL text files
(.txt, .conll: a word and its label a line, a blank line between sentences), each also .gz:

    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-small --train_file train.conll \\
        --validation_file dev.conll --test_file test.conll --do_train --do_eval --do_predict --learning_rate 4.5e-5 \\
        --warmup_steps 0.1 --output_dir mine

A tiny run on CPU, under a minute, with random weights in the shape of a small model (its tokenizer comes from the Hub, or
from a folder that run_mlm.py made):

    printf 'Ada B-PER\\nLovelace I-PER\\nsmiles O\\n\\nParis B-LOC\\nsleeps O\\n' > tiny.conll
    python examples/run_ner.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --train_file tiny.conll --validation_file tiny.conll --do_train --do_eval \\
        --max_steps 5 --output_dir tiny

Any model of AutoModelForTokenClassification with a fast tokenizer will do. Metrics are over all words: one that is cut off,
or for which the tokenizer has no token, counts as "O". The output folder holds what run_glue.py says, and
eval_ and predict_predictions.txt in the form of the CoNLL files.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("ner"), description=__doc__)

if __name__ == "__main__":
    main()
