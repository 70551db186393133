# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model for text classification or regression on GLUE, XNLI or your own data.

SST-2 from the Hub with the published settings for this size (96.9 % of the 872 validation sentences in DeBERTaV3,
the best of several runs; an accelerator with 24 GB):

    python examples/run_glue.py --model_name_or_path microsoft/deberta-v3-large --task_name sst2 --recipe v3-large \\
        --do_train --do_eval --eval_strategy epoch --save_strategy epoch --output_dir sst2

Files (csv, tsv, json, jsonl, parquet, each also .gz) instead of the Hub's data, and three seeds:

    python examples/run_glue.py --model_name_or_path microsoft/deberta-v3-small --train_file train.tsv \\
        --validation_file dev.tsv --test_file test.tsv --do_train --do_eval --do_predict --seeds 1 2 3 \\
        --learning_rate 4.5e-5 --warmup_steps 0.1 --output_dir mine

A tiny run on CPU, under a minute, with random weights and the shape of a small model (its tokenizer comes from the Hub, or
from an output folder of run_mlm.py):

    printf 'label,sentence\\n1,what a film\\n0,what a bore\\n' > tiny.csv
    python examples/run_glue.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --train_file tiny.csv --validation_file tiny.csv --do_train --do_eval \\
        --max_steps 5 --output_dir tiny

Any model of AutoModelForSequenceClassification works. To resume a stopped run, add `--resume_from_checkpoint last` to the
command; on the same CPU with the same number of threads, its weights are bit-identical to the weights of an uninterrupted
run. The output folder holds model and tokenizer, README.md (the model card), curves.png,
{train,eval,predict,all}_results.json, {eval,test}_predictions.csv, run_arguments.json (the arguments that a
resumed run must repeat) and checkpoints.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("glue"), description=__doc__)

if __name__ == "__main__":
    main()
