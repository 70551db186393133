# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model for multiple choice on RACE, SWAG, CODAH, C3, COPA, or your own data with the same columns.

RACE from the Hub with the published settings for this size, from a model that was fine-tuned on MNLI (86.8 % of
the test questions in the paper, middle and high schools together; an accelerator with 24 GB):

    python examples/run_race.py --model_name_or_path microsoft/deberta-large-mnli --task_name race --recipe large \\
        --do_train --do_eval --do_predict --per_device_train_batch_size 4 --bf16 --output_dir race

transformers has no multiple-choice model for DeBERTa v1; this package has one. The recipe replaces MNLI's head by a new
one.

Files (csv, tsv, json, jsonl, parquet, each also .gz), or folders of RACE's raw release, instead of the Hub's data. The
school of a question is read from its example_id, or from the name of its file or folder:

    python examples/run_race.py --model_name_or_path microsoft/deberta-v3-small --train_file RACE/train \\
        --validation_file RACE/dev/middle RACE/dev/high --do_train --do_eval --learning_rate 4.5e-5 --warmup_steps 0.1 \\
        --output_dir race

A tiny run on CPU, under a minute, with random weights and the shape of a small model (its tokenizer comes from the Hub, or
from an output folder of run_mlm.py):

    printf 'sent1,sent2,ending0,ending1,label\\nIt rains.,She,takes a coat.,takes a nap.,0\\n' > tiny.csv
    python examples/run_race.py --model_name_or_path microsoft/deberta-v3-xsmall --from_scratch \\
        --config_overrides num_hidden_layers=2 --train_file tiny.csv --validation_file tiny.csv --do_train --do_eval \\
        --max_steps 5 --output_dir tiny

Any model of AutoModelForMultipleChoice works, and questions may have different numbers of choices. Long contexts are
truncated; questions and choices are not. Files have the columns article, question, options, answer (RACE); sent1, sent2,
ending0, ending1, ..., label (SWAG); context, question, choices, label (C3); or premise, choice1, choice2, question, label
(COPA); set other names by flags: --context_column text --question_column ask --choice_columns a b c --label_column right.
The output folder holds the files that run_glue.py describes, and eval_ and predict_answers.json and .tsv.
"""

from functools import partial

from hf_deberta_ext.finetuning.loop import main as fine_tune
from hf_deberta_ext.finetuning.tasks import load_task

main = partial(fine_tune, load_task("race"), description=__doc__)

if __name__ == "__main__":
    main()
