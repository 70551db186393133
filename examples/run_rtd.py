# SPDX-License-Identifier: Apache-2.0
"""Pre-train generator and discriminator by replaced token detection (DeBERTaV3, ELECTRA), from scratch or from checkpoints.

Train with the settings of the DeBERTaV3 study; the recipe computes the accumulation steps for the hardware and prints its
settings:

    torchrun --nproc_per_node 8 examples/run_rtd.py --recipe v3-study --train_data corpus/ --train_tokenizer unigram \\
        --vocab_size 128000 --output_dir study

Continue from an official discriminator and its generator, or from any masked language model:

    python examples/run_rtd.py --train_data notes.jsonl --model microsoft/deberta-v3-xsmall --num_train_epochs 3 \\
        --learning_rate 2e-5 --stepping decoupled --rtd_lambda 10 --output_dir adapted

A tiny run on CPU, under a minute:

    python -c "import this" > zen.txt
    python examples/run_rtd.py --train_data zen.txt --documents line --validation_documents 5 --max_steps 20 \\
        --train_tokenizer byte-level-bpe --vocab_size 300 --preset electra-small --max_length 64 \\
        --config_overrides num_hidden_layers=2,embedding_size=64 --embedding_sharing gdes --output_dir tiny

Data, tokenizer, packing, masking, streaming, `--resume_from_checkpoint last` and torchrun are as in run_mlm.py, except that
masked tokens are chosen individually and all become [MASK], as published. The output folder holds the joint model,
discriminator/ (the model to fine-tune) and generator/ (a masked language model), each with tokenizer and card. It also
holds curves.png, all_results.json, run_arguments.json, run_report.json and checkpoints.
"""

from functools import partial

from hf_deberta_ext.pretraining.run_replaced_tokens import main as pretrain

main = partial(pretrain, description=__doc__)

if __name__ == "__main__":
    main()
