# SPDX-License-Identifier: Apache-2.0
"""The words and the code of the model cards of official checkpoints, by family."""

__all__ = [
    "ALL_TASKS",
    "DELTAS",
    "DETECTION",
    "DIFFERENCES",
    "EMD_LENGTH",
    "FAR_AWAY",
    "FILL_MASK",
    "FINE_TUNING",
    "FLOAT16_FILE",
    "FLOAT16_TRAINING",
    "GLUE_COMMAND",
    "ISSUES",
    "KINDS",
    "LOAD",
    "NOT_AT_HAND",
    "NOT_MEASURED",
    "NO_BIAS_STUDY",
    "NO_FILL_MASK",
    "OBJECTIVES",
    "PAIR",
    "PAPERS",
    "RECIPE_COMMANDS",
    "RECIPE_TEXTS",
    "SAVING",
    "STOCK_V1",
    "VOCABULARIES",
    "WITHOUT_GENERATOR",
    "WITH_GENERATOR",
    "XNLI_COMMAND",
]

PAPERS = {
    "v1": "[DeBERTa](https://arxiv.org/abs/2006.03654), He, Liu, Gao and Chen",
    "v3": "[DeBERTaV3](https://arxiv.org/abs/2111.09543), He, Gao and Chen",
}
KINDS = {
    "v1": "an English encoder of {layers} layers, pre-trained by masked-language modelling",
    "v2": "an English encoder of {layers} layers, pre-trained by masked-language modelling",
    "v3": "an English encoder of {layers} layers, pre-trained by replaced token detection: a discriminator that tells which "
    "tokens of a text are not the original ones",
    "mdeberta": "a multilingual encoder of {layers} layers, pre-trained by replaced token detection: a discriminator that "
    "tells which tokens of a text are not the original ones",
}
OBJECTIVES = {
    "mlm": "masked-language modelling with the Enhanced Mask Decoder, which reads absolute positions",
    "rtd": "replaced token detection against a generator, whose embeddings it shares without passing gradients to them "
    "(gradient-disentangled embedding sharing, GDES)",
}
VOCABULARIES = {
    "v1": "byte-level BPE, that of RoBERTa",
    "v2": "SentencePiece, made from the training data",
    "v3": "SentencePiece",
    "mdeberta": "SentencePiece, for many languages",
}

LOAD = """import torch

from hf_deberta_ext import DebertaExtModel
from hf_deberta_ext.tokenization import load_tokenizer

repo = "{repo}"
revision = "main"  # for good: the id of a commit, which huggingface_hub.model_info(repo).sha tells
tokenizer = load_tokenizer(repo, revision=revision)
model = DebertaExtModel.from_pretrained(repo, revision=revision, dtype=torch.float32)
print(model.loading_report)  # what was loaded, converted, newly initialised, unused

with torch.no_grad():
    states = model(**tokenizer("A text.", return_tensors="pt")).last_hidden_state  # [1, tokens, {hidden_size}]"""
FILL_MASK = """## Filling in masks

With the head of pre-training (`lm_predictions`) and the Enhanced Mask Decoder:

```python
from hf_deberta_ext import DebertaExtForMaskedLM

model = DebertaExtForMaskedLM.from_pretrained(repo, revision=revision, dtype=torch.float32)
inputs = tokenizer("Paris is the [MASK] of France.", return_tensors="pt")
position = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
with torch.no_grad():
    logits = model(**inputs).logits[0, position]
print([tokenizer.decode(token) for token in logits.topk(5).indices])
```"""
DETECTION = """## Which tokens look replaced

The head of pre-training (`mask_predictions`) judges each token:

```python
from hf_deberta_ext import DebertaExtForReplacedTokenDetection
from hf_deberta_ext.analysis.sentence_scoring import token_replacement_probabilities

model = DebertaExtForReplacedTokenDetection.from_pretrained(repo, revision=revision, dtype=torch.float32)
for token in token_replacement_probabilities(model, tokenizer, "The chef ate the meal that he had cooked."):
    print(token.token, round(token.probability, 3))
```"""
PAIR = """## Generator and discriminator

{generator}

```python
from hf_deberta_ext import DebertaExtForPreTraining

pair = DebertaExtForPreTraining.from_checkpoints(repo, revision=revision, special_token_ids=tokenizer.all_special_ids)
print(pair.loading_report)
pair.export_generator().save_pretrained("generator")  # a masked language model
pair.export_discriminator().save_pretrained("discriminator")
```

`examples/run_rtd.py` trains the pair further:

    python examples/run_rtd.py --model {repo} --train_data texts/ --num_train_epochs 1 \\
        --learning_rate 5e-5 --output_dir further"""
WITH_GENERATOR = (
    "The repository holds the generator too (`pytorch_model.generator.bin`, {size}, [file list]({url})), a masked language "
    "model of half the depth. This loads the pair as it was trained:"
)
WITHOUT_GENERATOR = (
    "The repository holds no generator ([file list]({url}); [issue {issue}]({issues}/{issue}) asks for it). A new one "
    "begins as the first half of the discriminator's layers, and has to be trained before it draws good replacements:"
)
ISSUES = "https://github.com/microsoft/DeBERTa/issues"
FINE_TUNING = """## Fine-tuning

{text}

{commands}"""
SAVING = """## Saving and converting

```python
from hf_deberta_ext import DebertaExtForSequenceClassification
from hf_deberta_ext.conversion.deberta_v2 import save_as_deberta_v2

model = DebertaExtForSequenceClassification.from_pretrained(repo, revision=revision, num_labels=3, dtype=torch.float32)
model.save_pretrained("mine")  # with the code: loads anywhere with trust_remote_code=True
tokenizer.save_pretrained("mine")
save_as_deberta_v2(model, "stock")  # for tools that know only transformers' own classes, same outputs
```

On the command line, the checkpoint as it is:

    deberta-ext convert {repo} {folder} --dtype float32"""
STOCK_V1 = "The folder for transformers' own classes is one of deberta-v2, which computes the same for v1 as well."

GLUE_COMMAND = """    python examples/run_glue.py --model_name_or_path {repo} --task_name {task} --recipe {recipe} \\
        --do_train --do_eval --output_dir {folder}"""
XNLI_COMMAND = """    python examples/run_glue.py --model_name_or_path {repo} --task_name xnli --language en \\
        --eval_languages de fr sw --learning_rate 2e-5 --num_train_epochs 3 --warmup_steps 0.1 --do_train --do_eval \\
        --output_dir xnli"""
PUBLISHED_SETTINGS = "`--recipe {preset}` has the settings that Microsoft published for this size"
ALL_TASKS = (
    PUBLISHED_SETTINGS
    + ", on the tasks of GLUE (but WNLI), ReCoRD, COPA, RACE and NER. Those of RTE, MRPC and STS-B are for "
    "`{repo}-mnli`."
)
MNLI_ALONE = PUBLISHED_SETTINGS + ", on MNLI alone; `--recipe {preset}-sift` those with scale-invariant fine-tuning (SiFT)."
# What is said of recipes, and the task and recipe of each command, where it is not ALL_TASKS, SST-2 and MNLI.
RECIPE_TEXTS = {
    "v3-large": PUBLISHED_SETTINGS + ", on the tasks of GLUE (but WNLI), ReCoRD and NER.",
    "mdeberta-v3-base": "The command trains on English and evaluates in other languages. There is no "
    "recipe for this model: the flags are a place to start, and nothing was measured with them.",
} | dict.fromkeys(("v3-base", "v3-small", "v3-xsmall"), MNLI_ALONE)
RECIPE_COMMANDS = {preset: [("mnli", preset), ("mnli", f"{preset}-sift")] for preset in ("v3-base", "v3-small", "v3-xsmall")}

# Families that it is true of, what, in transformers 5.23, here.
DIFFERENCES = [
    ("v1 v2", "`[MASK]`", "the published head is left out by default and a random one put in its place; `legacy=False` "
     "reads it, without the Enhanced Mask Decoder and its absolute positions", "head, decoder and positions as published"),
    ("v3 mdeberta", "`mask_predictions`, the head of pre-training", "not read",
     "`DebertaExtForReplacedTokenDetection`"),
    ("v1", "pairs of texts", "`[CLS] A [SEP] [SEP] B [SEP]`, token types all 0", "`[CLS] A [SEP] B [SEP]`, types 0 and 1"),
    ("v2 v3 mdeberta", "text normalisation", "SentencePiece's is dropped: ligatures, full-width letters, no-break spaces "
     "and their like become other tokens", "as in `spm.model`"),
    ("v2 v3 mdeberta", "a key 512 tokens or more after its query", "reads row 0 of the relative table, which no "
     "training touched", "clamped, as the official code"),
    ("v1", "autocast", "an error, in bfloat16 and float16", "runs"),
    ("v2", "attention masks of type bool", "an error, in the convolution", "taken"),
    ("v1 v2 v3 mdeberta", "attention masks [B, N, N]", "an error", "taken"),
    ("v1 v2 v3 mdeberta", "rows that may attend to nothing", "the mean of all values", "zeros, as the official code"),
    ("v2 v3 mdeberta", "half precision", "position scores are computed in it and scaled afterwards, which can overflow",
     "scores and softmax of attention in float32"),
    ("v1", "multiple choice", "no class", "`DebertaExtForMultipleChoice`"),
    ("v1 v2 v3 mdeberta", "loss under gradient accumulation", "multiplied by the number of accumulated batches", "exact"),
]  # fmt: skip
DELTAS = (
    "the tables `_weight` in the file, deltas of the embedding sharing", "reported as unexpected",
    "recognised and left out; of a file that holds nothing else, the generator's table is added",
)  # fmt: skip

NOT_AT_HAND = (
    "The files on the Hub were not at hand: the package is tested on synthetic checkpoints with their key names and shapes. "
    "`model.loading_report` tells what became of each tensor."
)
NOT_MEASURED = "The results are Microsoft's. None was measured again with this package."
FAR_AWAY = "Distances beyond 512 tokens are not told apart."
EMD_LENGTH = (
    "Masked-language modelling ends at 512 tokens, where the absolute positions end (`extend_position_embeddings` adds "
    "untrained ones); the encoder takes longer texts."
)
NO_FILL_MASK = (
    "It was not trained to fill in masks. The file is reported to hold a masked-language-model head as well; whether that "
    "was trained is not known."
)
FLOAT16_FILE = (
    "The weights are stored in float16, and transformers loads them so unless told otherwise: train with "
    "`dtype=torch.float32`."
)
FLOAT16_TRAINING = (
    "Training in float16 is reported to give losses that are not numbers "
    f"([issue 77]({ISSUES}/77)): take bfloat16 or float32."
)
NO_BIAS_STUDY = "Biases that it took over from its training text were not examined here."
