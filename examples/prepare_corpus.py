# SPDX-License-Identifier: Apache-2.0
"""Prepare a corpus for pre-training: filter, deduplicate, decontaminate, train a tokenizer, pack rows into shards.

Prepare a corpus on this machine with two processes, then train on it (`pip install "hf_deberta_ext[train,prepare]"`):

    python examples/prepare_corpus.py --train_data articles/ --licenses cc-by-sa-4.0 --deduplicate exact minhash \\
        --quality gopher_quality --decontaminate glue/dev.tsv --train_tokenizer unigram --vocab_size 32000 \\
        --max_length 512 --workers 2 --output_dir prepared
    python examples/run_mlm.py --train_data prepared --max_length 512 --preset v3-small --max_steps 100000 --output_dir mine

On a cluster, with a folder that all machines see:

    python examples/prepare_corpus.py --train_data s3://bucket/articles --tokenizer mine --executor slurm --workers 500 \\
        --executor_options partition=cpu,time=24:00:00 --output_dir /shared/prepared

A tiny corpus, in seconds:

    python -c "import this" > zen.txt
    python examples/prepare_corpus.py --train_data zen.txt --documents line --validation_documents 3 \\
        --train_tokenizer byte-level-bpe --vocab_size 300 --max_length 64 --output_dir prepared

datatrove runs the stages. Run the same command again to resume a preparation: finished tasks are skipped. The shards depend
on the data and on all flags except --workers and --executor. The output folder holds the shards, tokenizer/, manifest.json
(`deberta-ext info prepared` shows it) and work/, which may be removed at the end. Each file is read by one task, and each
shard is made from --part_bytes of text.
"""

from functools import partial

from hf_deberta_ext.pretraining.run_preparation import main as prepare

main = partial(prepare, description=__doc__)

if __name__ == "__main__":
    main()
