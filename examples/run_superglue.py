# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model on a SuperGLUE task: boolq, cb, copa, multirc, record, rte, wic, wsc; also predict axb and axg.

RTE from the Hub with the published settings for this size (Microsoft reports 92.7 % on the 277 validation pairs, the best
of several runs; needs an accelerator with 24 GB of memory):

    python examples/run_superglue.py --model_name_or_path microsoft/deberta-v3-large --task_name rte --recipe v3-large \\
        --do_train --do_eval --do_predict --output_dir rte

Files instead of the Hub's data: rows with the Hub's columns (csv, tsv, json, jsonl, parquet, each also .gz):

    python examples/run_superglue.py --model_name_or_path microsoft/deberta-v3-base --task_name multirc \\
        --train_file train.jsonl --validation_file val.jsonl --test_file test.jsonl --do_train --do_eval --do_predict \\
        --output_dir multirc

A tiny run on CPU, under a minute, with random weights and the shape of a small model (its tokenizer comes from the Hub, or
from an output folder of run_mlm.py):

    printf 'question,passage,label\\nis it cold,Snow fell.,1\\nis it hot,Snow fell.,0\\n' > tiny.csv
    python examples/run_superglue.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --task_name boolq --train_file tiny.csv --validation_file tiny.csv \\
        --do_train --do_eval --max_steps 5 --output_dir tiny

Predictions for --test_file, or the Hub's test set, are in the format of SuperGLUE's server (BoolQ.jsonl, ...). The rest is
as in run_glue.py. The texts of each task are described in hf_deberta_ext/finetuning/tasks/superglue.py.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("superglue"), description=__doc__)

if __name__ == "__main__":
    main()
