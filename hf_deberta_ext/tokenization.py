# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that encode texts like the published ones in all supported versions of transformers.

The tokenizers of transformers 5 differ from the published ones: `DebertaTokenizer` (v1) encodes pairs as
`[CLS] A [SEP] [SEP] B [SEP]` with token types of 0, and no longer strips the space before [MASK]. `DebertaV2Tokenizer`
(v2, v3, mDeBERTa) drops the SentencePiece normaliser and the byte fallback. Both rebuild the tokenizer when they load it,
even from a correct tokenizer.json.

transformers saves `type(tokenizer).__name__` as "tokenizer_class", and chooses by this name how to load the tokenizer.
"DebertaV2Tokenizer" is rebuilt, and "TokenizersBackend" is unknown to transformers 4. Only "PreTrainedTokenizerFast" is
loaded unchanged by all versions, for any model type. This is why the class below has this name. `load_tokenizer` returns
it; AutoTokenizer returns a `TokenizersBackend`, whose saved files only work with transformers 5.
"""

import functools
import json
import os
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import TokenizersBackend
from transformers.utils import cached_file

from .checkpoints.files import check_source, read_json

__all__ = [
    "PreTrainedTokenizerFast",
    "check_tokenizer",
    "check_vocabulary",
    "load_tokenizer",
    "tokenizer_from_spm",
    "tokenizer_from_vocab_and_merges",
    "wrap_tokenizer",
]

FILES = ("spm.model", "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json")
# In the order in which the official code appends special tokens that are missing in a vocabulary.
SPECIAL_TOKENS = ("[MASK]", "[SEP]", "[PAD]", "[UNK]", "[CLS]")
KEPT_SETTINGS = ("do_lower_case", "padding_side", "truncation_side", "extra_special_tokens")
# Noncharacters, which never occur in a text. SOFT separates a mark from its base; HARD also keeps NFC from joining the two.
SOFT, HARD = "\ufdd0", "\ufdd1"


class PreTrainedTokenizerFast(TokenizersBackend):
    """Tokenizer of this module. Its name is saved as "tokenizer_class" (see the module's docstring)."""


def load_tokenizer(
    folder_or_repo: str | os.PathLike,
    *,
    revision: str | None = None,
    model_max_length: int | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike | None = None,
    subfolder: str = "",
    add_prefix_space: bool | None = None,
) -> PreTrainedTokenizerFast:
    """Load the published tokenizer of a DeBERTa folder or Hub repository.

    Reads the first of: spm.model; vocab.json and merges.txt; tokenizer.json (with a corrected template).
    Tokens that were added later (tokenizer.json, tokenizer_config.json, added_tokens.json) always keep their ids.

    Args:
        folder_or_repo (`str` or path): A local folder, or a repository id on the Hub.
        revision, token, local_files_only, cache_dir, subfolder: Download options of `huggingface_hub`.
        model_max_length (`int`, *optional*): Longest input. Default: the value in tokenizer_config.json, else 512.
        add_prefix_space (`bool`, *optional*): Only for byte-level BPE (v1): encode the first word as if a space preceded
            it, as required for pre-split words. Default: the value in the tokenizer's files, else False.

    Raises:
        OSError: There is no tokenizer, or the Hub is not reachable.
        ValueError: The vocabulary lacks [CLS] or [SEP], or only has special tokens, or an added token would not get the id
            that the files record for it.
    """
    folder = Path(folder_or_repo)
    is_local = folder.is_dir()
    if not is_local:
        check_source(folder_or_repo)
        options = dict(revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only)
        patterns = [os.path.join(subfolder, name) for name in FILES]
        folder = Path(snapshot_download(str(folder_or_repo), allow_patterns=patterns, **options))
    spm, vocab, merges, state, config, added = (folder / subfolder / name for name in FILES)
    state, config, added = read_json(state), read_json(config), read_json(added)
    if model_max_length is None:
        model_max_length = config.get("model_max_length") or 512
        # transformers writes 1e30 if no length is set.
        if model_max_length > 1e9:
            model_max_length = 512
    if add_prefix_space is None:
        add_prefix_space = config.get("add_prefix_space")
    settings = {name: config[name] for name in KEPT_SETTINGS if name in config}

    mask_lstrip = False
    if spm.is_file():
        tokenizer = _spm_backend(spm, config.get("do_lower_case", False))
    elif vocab.is_file() and merges.is_file():
        settings["add_prefix_space"] = bool(add_prefix_space)
        tokenizer = _byte_level_backend(*models.BPE.read_file(str(vocab), str(merges)), bool(add_prefix_space))
        mask_lstrip = True
    elif state:
        if add_prefix_space is not None and (state["pre_tokenizer"] or {}).get("type") == "ByteLevel":
            state["pre_tokenizer"]["add_prefix_space"] = settings["add_prefix_space"] = add_prefix_space
        tokenizer = Tokenizer.from_str(json.dumps(state))
        mask_lstrip = '"ByteLevel"' in json.dumps(state["pre_tokenizer"])
        normalizer = json.dumps(state["normalizer"])
        if state["model"]["type"] == "Unigram" and "Precompiled" not in normalizer and "NFKC" not in normalizer:
            warnings.warn(
                f"the tokenizer.json of {folder_or_repo} has no SentencePiece normaliser, probably because transformers 5 "
                "wrote the file. Add the model's spm.model to the folder",
                stacklevel=2,
            )
    else:
        if not is_local:
            # Raises transformers' error, which says whether the file is absent or only not cached.
            cached_file(folder_or_repo, "tokenizer.json", subfolder=subfolder, **options)
        raise OSError(
            f"no tokenizer in {folder_or_repo}: expected tokenizer.json, spm.model, or both vocab.json and merges.txt. A "
            "model's save_pretrained does not write these files: call tokenizer.save_pretrained with the same folder, or "
            "pass --tokenizer_name"
        )
    _add_recorded_tokens(tokenizer, state, config, added)
    if not spm.is_file() and None in (tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")):
        raise ValueError(
            f"the vocabulary of {folder_or_repo} lacks [CLS] or [SEP], so it is not DeBERTa's. To append special tokens, "
            "use tokenizer_from_vocab_and_merges or wrap_tokenizer"
        )
    tokenizer = wrap_tokenizer(tokenizer, model_max_length=model_max_length, mask_lstrip=mask_lstrip, settings=settings)
    check_vocabulary(tokenizer, source=folder_or_repo)
    return tokenizer


def tokenizer_from_spm(
    path: str | os.PathLike, *, do_lower_case: bool = False, model_max_length: int = 512
) -> PreTrainedTokenizerFast:
    """Create a tokenizer of v2, v3 and mDeBERTa from a SentencePiece unigram model, with the same ids as sentencepiece.

    Pieces keep their ids, and missing special tokens are appended. If there is no piece [UNK], it is also appended and
    becomes the unknown token, as in the official code; the embedding of `<unk>` stays unused. Offsets include the
    space before a word, and exclude a combining mark at the end of a token.

    Differences from sentencepiece: special tokens in a text are encoded as special tokens; sentencepiece adds scores in
    float32, so ties may be split differently; custom or case-folding character maps give equal ids only for composed text.

    Raises:
        ImportError: sentencepiece or protobuf is not installed.
        ValueError: the file is not a SentencePiece unigram model.
    """
    settings = {}
    if do_lower_case:
        settings["do_lower_case"] = True
    return wrap_tokenizer(_spm_backend(path, do_lower_case), model_max_length=model_max_length, settings=settings)


def tokenizer_from_vocab_and_merges(
    vocab: str | os.PathLike | Mapping[str, int],
    merges: str | os.PathLike | Sequence[tuple[str, str]],
    *,
    add_prefix_space: bool = False,
    model_max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Create a tokenizer of v1, byte-level BPE, from vocab.json and merges.txt (paths, or their contents)."""
    if isinstance(vocab, (str, os.PathLike)):
        vocab, merges = models.BPE.read_file(os.fspath(vocab), os.fspath(merges))
    backend = _byte_level_backend(dict(vocab), [tuple(merge) for merge in merges], add_prefix_space)
    settings = {}
    if add_prefix_space:
        settings["add_prefix_space"] = True
    return wrap_tokenizer(backend, model_max_length=model_max_length, mask_lstrip=True, settings=settings)


def wrap_tokenizer(
    tokenizer: Tokenizer,
    *,
    model_max_length: int = 512,
    mask_lstrip: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> PreTrainedTokenizerFast:
    """Wrap any `tokenizers.Tokenizer` for transformers, with DeBERTa's special tokens and pair template (set in place).

    Args:
        tokenizer (`tokenizers.Tokenizer`): [MASK], [SEP], [PAD], [UNK] and [CLS], if missing, are appended in this order.
        model_max_length (`int`): longest input, including [CLS] and [SEP].
        mask_lstrip (`bool`): [MASK] strips the space before it (byte-level BPE, v1).
        settings (`dict`, *optional*): more entries for tokenizer_config.json, such as do_lower_case or padding_side.
    """
    for token in SPECIAL_TOKENS:
        lstrip = mask_lstrip and token == "[MASK]"
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False, lstrip=lstrip)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokens = dict(bos="[CLS]", eos="[SEP]", unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
        **{f"{name}_token": token for name, token in tokens.items()},
        **(settings or {}),
    )


def check_tokenizer(tokenizer: Any, model_or_config: Any = None, *, needs_mask: bool = False) -> None:
    """Check that a tokenizer encodes texts as DeBERTa expects, and fits the model.

    A model may have more rows than the tokenizer has tokens (128100 for 128001).

    Raises:
        ValueError: A text is not encoded as `[CLS] A [SEP]`; a pair is not encoded as `[CLS] A [SEP] B [SEP]` with token
            types 0 and 1; there is no pad token; there is no mask token and `needs_mask` is set; `check_vocabulary` fails.
    """
    advice = "; load it with hf_deberta_ext.tokenization.load_tokenizer"
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    A = tokenizer("hello", add_special_tokens=False)["input_ids"]
    B = tokenizer("world", add_special_tokens=False)["input_ids"]
    pair = tokenizer("hello", "world", return_token_type_ids=True)
    for form, ids, expected in (
        ("[CLS] A [SEP]", tokenizer("hello")["input_ids"], [cls, *A, sep]),
        ("[CLS] A [SEP] B [SEP]", pair["input_ids"], [cls, *A, sep, *B, sep]),
    ):
        if None in (cls, sep) or ids != expected:
            raise ValueError(
                f"a text must be encoded as {form}, got {tokenizer.convert_ids_to_tokens(ids)} "
                f"(cls_token {tokenizer.cls_token}, sep_token {tokenizer.sep_token}){advice}"
            )
    types = [0] * (len(A) + 2) + [1] * (len(B) + 1)
    if pair["token_type_ids"] != types:
        raise ValueError(f"a pair must have the token types {types}, got {pair['token_type_ids']}{advice}")
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer has no pad_token, expected [PAD]{advice}")
    if needs_mask and tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer has no mask_token, expected [MASK]{advice}")
    config = getattr(model_or_config, "config", model_or_config)
    check_vocabulary(tokenizer, config, special_tokens=("pad", "bos", "eos"))


def check_vocabulary(
    tokenizer: Any, config: Any = None, *, source: Any = None, special_tokens: Sequence[str] = ("pad", "cls", "sep")
) -> None:
    """Check that a tokenizer of any family is not empty, and can belong to the model.

    The embedding table may have rows without a token: up to 256, or up to a quarter of all rows if a quarter is more.

    Args:
        source (*optional*): Source of the tokenizer, for the error message.
        special_tokens: Special tokens whose ids must equal the configuration's, if both are set.

    Raises:
        ValueError: The tokenizer is empty, or its size or a special token does not fit the model.
    """
    name = "the tokenizer"
    if source is not None:
        name += f" of {source}"
    vocabulary = tokenizer.get_vocab()
    # From a folder without tokenizer files, transformers creates a tokenizer with only special tokens.
    if not any(token.strip("▁") for token in {*vocabulary} - {*tokenizer.all_special_tokens}):
        raise ValueError(f"{name} only has special tokens; are its files missing? Pass a folder that has them")
    largest = max(vocabulary.values())
    rows = getattr(config, "vocab_size", None)
    size = f"{name} has {len(tokenizer)} tokens"
    if rows is not None and max(largest + 1, len(tokenizer)) > rows:
        hint = f"use the tokenizer of this model, or call model.resize_token_embeddings({largest + 1})"
        raise ValueError(f"{size} with ids up to {largest}, but the model only has {rows} rows (config.vocab_size); {hint}")
    if rows is not None and rows - largest - 1 > max(256, rows // 4):
        hint = "use the tokenizer of this model, or set vocab_size of a new model"
        other = f"the model has {rows} rows (config.vocab_size): the tokenizer is probably for another model"
        raise ValueError(f"{size}, but {other}; {hint}")
    for token in special_tokens:
        expected = getattr(config, f"{token}_token_id", None)
        got = getattr(tokenizer, f"{token}_token_id", None)
        if None not in (expected, got) and expected != got:
            raise ValueError(
                f"{name}: {token}_token has id {got}, the model expects config.{token}_token_id = {expected}; use the "
                "tokenizer of this model, or change the configuration (--config_overrides)"
            )


def _byte_level_backend(vocab: dict[str, int], merges: list[tuple[str, str]], add_prefix_space: bool) -> Tokenizer:
    model = models.BPE(vocab, merges)
    if "[UNK]" in vocab:
        model.unk_token = "[UNK]"
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _spm_backend(path: str | os.PathLike, do_lower_case: bool) -> Tokenizer:
    """Create a `tokenizers.Tokenizer` that encodes texts like the SentencePiece model at `path`, without [CLS] and [SEP].

    Missing special tokens are only added if the model has no piece [UNK].
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ImportError(
            f"reading {path} requires sentencepiece and protobuf: pip install sentencepiece protobuf (or replace spm.model "
            "with a tokenizer.json that this package saved)"
        ) from error
    model = sentencepiece_model_pb2.ModelProto()
    try:
        with open(path, "rb") as file:
            model.ParseFromString(file.read())
    except DecodeError as error:
        raise ValueError(f"{path} is not a SentencePiece model; is it truncated, or a Git LFS pointer?") from error
    options = model.trainer_spec
    Piece = model.SentencePiece
    names, scores, unknown = [], [], 0
    for piece in model.pieces:
        if piece.type == Piece.UNKNOWN:
            unknown = len(names)
        elif piece.type == Piece.NORMAL:
            scores.append(piece.score)
        names.append(piece.piece)
    if not scores or options.model_type != options.UNIGRAM or options.treat_whitespace_as_suffix:
        raise ValueError(f"{path} must be a SentencePiece unigram model that marks the space before a word, like DeBERTa's")

    appended = []
    if "[UNK]" not in names:
        appended = [token for token in SPECIAL_TOKENS if token not in names]
        # If "<" is also unknown, `tokenizers` would encode the text "<unk>" as this piece.
        names[unknown] += HARD
    lowest, highest = min(scores), max(0.0, max(scores))
    vocab = []
    for name, piece in zip(names, model.pieces, strict=True):
        score = piece.score
        if piece.type == Piece.USER_DEFINED:
            # As in SentencePiece, always preferred to its parts.
            score = len(name) * highest - 0.1
        elif piece.type != Piece.NORMAL:
            # <s>, </s>, <0x41>, ... never match a text: the score is lower than for any other segmentation.
            score = (len(name) + 1) * (lowest - 10)
        vocab.append((name, score))
    for token in appended:
        vocab.append((token, (len(token) + 1) * (lowest - 10)))
    unk_id = [*names, *appended].index("[UNK]")
    prepend_scheme = "always" if model.normalizer_spec.add_dummy_prefix else "never"

    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=unk_id, byte_fallback=options.byte_fallback))
    tokenizer.normalizer = _spm_normalizer(model.normalizer_spec, do_lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme, split=options.split_by_whitespace)
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme)
    if options.byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), tokenizer.decoder])
    return tokenizer


def _spm_normalizer(spec: Any, do_lower_case: bool) -> normalizers.Normalizer:
    """Return SentencePiece's normaliser (a `NormalizerSpec`) as steps that all versions of tokenizers support.

    SentencePiece replaces the longest match in its character map. `normalizers.Precompiled` replaces a grapheme cluster of
    less than 6 bytes by its shortest match only, so `e` + two accents loses an accent. It maps longer clusters char by char,
    so decomposed kana or Hangul stay decomposed. To encode like SentencePiece, the steps below insert a separator, SOFT,
    between bases and marks (combining chars), map each char, and replace SOFT by HARD where SentencePiece has no rule: next
    to a char that decomposes, and between marks that NFC would sort. At last, SOFT is removed while NFC joins the marks from
    left to right; NFC does not join across HARD.
    """
    steps: list[normalizers.Normalizer] = []
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    if spec.precompiled_charsmap:
        mark, decomposes, unjoinable, unsorted = _mark_patterns()
        steps += [
            # Not at the start, where tokenizers 0.22 and 0.23 lose the alignment and panic.
            normalizers.Replace(Regex(rf"(?!\A)(?={mark})"), SOFT),
            normalizers.Replace(Regex(rf"(?<={decomposes}){SOFT}|{SOFT}(?={decomposes})|{unsorted}"), HARD),
            normalizers.Precompiled(spec.precompiled_charsmap),
            # Up to three marks on one base compose.
            *[normalizers.Replace(Regex(f"(?<!{unjoinable}){SOFT}"), ""), normalizers.NFC()] * 3,
            normalizers.Replace(Regex(f"[{SOFT}{HARD}]"), ""),
        ]
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A +| +\z"), "")]
    return normalizers.Sequence(steps)


@functools.cache
def _mark_patterns() -> tuple[str, str, str, str]:
    """Return four regular expressions: a mark; a char that decomposes; a mark that is not the first char of a composition;
    SOFT between marks that NFC would sort."""
    seconds, firsts, decomposing, begins = set(), set(), [], {}
    # No char above U+2FFFF decomposes, and surrogates cannot occur.
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x30000)):
        char = chr(code)
        first, *rest = unicodedata.normalize("NFD", char)
        seconds.update(rest)
        if rest and not unicodedata.combining(first):
            firsts.add(first)
        compatible = unicodedata.normalize("NFKD", char)
        begins[char] = compatible[0]
        if len(compatible) > 1:
            decomposing.append(char)
    joins = [char for char in begins if begins[char] in seconds]
    unsorted = []
    # Combining classes of Latin and Greek: attached below, horn, below, above, iota below.
    for bound in (216, 220, 230, 240):
        before = _char_class(char for char in joins if unicodedata.combining(char) >= bound)
        after = _char_class(char for char in joins if 0 < unicodedata.combining(char) < bound)
        unsorted.append(f"(?<={before}){SOFT}(?={after})")
    return (
        rf"[\p{{M}}\x{{200c}}\x{{200d}}{_char_class(joins)}]",
        _char_class(decomposing),
        rf"[\p{{M}}&&[^{_char_class(firsts)}]]",
        "|".join(unsorted),
    )


def _char_class(chars: Iterable[str]) -> str:
    """Return a regular expression that matches each of `chars`; adjacent characters are written as ranges."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, chars)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"


def _add_recorded_tokens(tokenizer: Tokenizer, state: dict, config: dict, added: dict[str, int]) -> None:
    """Add the tokens of tokenizer.json, tokenizer_config.json and added_tokens.json in the order of their ids.

    Raises:
        ValueError: A token would not get the id that the files record for it.
    """
    tokens = {i: AddedToken(name, special=name in SPECIAL_TOKENS, normalized=False) for name, i in added.items()}
    for i, fields in config.get("added_tokens_decoder", {}).items():
        tokens[int(i)] = AddedToken(**fields)
    for fields in state.get("added_tokens", []):
        fields = dict(fields)
        i = fields.pop("id")
        tokens[i] = AddedToken(**fields)
    for i, token in sorted(tokens.items()):
        tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != i:
            raise ValueError(
                f"the added token {token.content!r} must have the recorded id {i}, got "
                f"{tokenizer.token_to_id(token.content)}; the vocabulary and the added tokens belong to different models"
            )
