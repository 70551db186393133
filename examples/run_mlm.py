# SPDX-License-Identifier: Apache-2.0
"""Pre-train a masked language model, from scratch or from a checkpoint, with any combination of the BERT family's
objectives.

From text to a model with its own tokenizer (a folder of .txt, .jsonl, .csv or .parquet files, each also .gz, or a data set
of the Hub):

    python examples/run_mlm.py --train_data corpus/ --train_tokenizer unigram --vocab_size 32000 --preset v3-small \\
        --packing full_sentences --max_length 512 --masking ngram --max_steps 100000 --warmup_steps 0.06 \\
        --learning_rate 5e-4 --per_device_train_batch_size 32 --bf16 --output_dir mine

A small model on some ten million words, on a CPU:

    python examples/run_mlm.py --recipe small-cpu --train_data corpus/ --train_tokenizer byte-level-bpe --vocab_size 8000 \\
        --output_dir small

Continue from an official checkpoint, including its head and Enhanced Mask Decoder:

    python examples/run_mlm.py --train_data notes.jsonl --model microsoft/deberta-base --num_train_epochs 3 \\
        --learning_rate 2e-5 --output_dir adapted

A tiny run on CPU, under a minute, with SpanBERT's and ALBERT's objectives added to masked-language modelling:

    python -c "import this" > zen.txt
    python examples/run_mlm.py --train_data zen.txt --documents line --validation_documents 5 --max_steps 20 \\
        --train_tokenizer byte-level-bpe --vocab_size 300 --packing segment_pair --masking span --sop_weight 1 \\
        --sbo_weight 1 --preset electra-small --config_overrides num_hidden_layers=2 --max_length 64 --output_dir tiny

To resume a stopped run, add `--resume_from_checkpoint last` to the command; on the same CPU with the same number of
threads, its weights are bit-identical to the weights of an uninterrupted run. `torchrun --nproc_per_node 2
examples/run_mlm.py ...` trains on two processes. The output folder holds model, tokenizer, README.md (the model card),
curves.png, all_results.json, run_arguments.json (the arguments that a resumed run must repeat), run_report.json (tokenizer,
packing, duration) and checkpoints.
"""

from functools import partial

from hf_deberta_ext.pretraining.run_masked_lm import main as pretrain

main = partial(pretrain, description=__doc__)

if __name__ == "__main__":
    main()
