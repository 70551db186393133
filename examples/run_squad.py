# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model for extractive question answering on SQuAD 1.1 or 2.0, or your own data with the same columns.

SQuAD 2.0 from the Hub (DeBERTaV3 reports 88.4 F1 and 85.4 % exact answers on the dev set for this size, but not its
settings; an accelerator with 16 GB):

    python examples/run_squad.py --model_name_or_path microsoft/deberta-v3-base --dataset_name squad_v2 --do_train \\
        --do_eval --learning_rate 2e-5 --warmup_steps 0.1 --num_train_epochs 3 --per_device_train_batch_size 16 --bf16 \\
        --output_dir squad_v2

Files instead of the Hub's data: rows with id, context, question and answers (jsonl, json, parquet; csv and tsv with JSON
in the answers column), or the original nested JSON of SQuAD; each also .gz:

    python examples/run_squad.py --model_name_or_path microsoft/deberta-v3-small --train_file train-v1.1.json \\
        --validation_file dev-v1.1.json --test_file questions.jsonl --do_train --do_eval --do_predict \\
        --learning_rate 4.5e-5 --warmup_steps 0.1 --output_dir mine

A tiny run on CPU, under a minute, with random weights and the shape of a small model (its tokenizer comes from the Hub, or
from an output folder of run_mlm.py):

    printf '{"id": "1", "context": "Ada did.", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}}' \\
        > tiny.jsonl
    python examples/run_squad.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --train_file tiny.jsonl --validation_file tiny.jsonl --do_train --do_eval \\
        --max_steps 5 --output_dir tiny

Any model of AutoModelForQuestionAnswering with a fast tokenizer works. Contexts longer than --max_seq_length are read in
windows that overlap by --doc_stride tokens. With --version_2_with_negative (or squad_v2) a question may have no answer:
eval_best_f1_thresh is the --null_score_diff_threshold that would have given the best answers. The output folder holds the
files that run_glue.py describes, and eval_ and predict_predictions.json (text by id, the input of SQuAD's own script),
nbest_predictions.json and for version 2 null_odds.json.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("qa"), description=__doc__)

if __name__ == "__main__":
    main()
