# SPDX-License-Identifier: Apache-2.0
"""Texts for tokenizer tests: a sentence in each of several scripts, texts that are hard to normalise, and plain English."""

import argparse
import datetime
import decimal
import email.message
import inspect
import logging
import random
import statistics
import subprocess
import tarfile
import unicodedata
import unittest.case

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and nobody minds.",
    "Dès Noël, où un zéphyr haï me vêt de glaçons würmiens, je dîne d'exquis rôtis de bœuf.",
    "Tôi có thể ăn thủy tinh mà không hại gì; những người khác cũng thế, phải không?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· οὐκ ἔστιν ᾧ τοῦτο ἀρέσκει.",
    "いろはにほへと ちりぬるを がぎぐげご ガラスを食べられます。",
    "我能吞下玻璃而不伤身体,你呢?",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "أنا قادر على أكل الزجاج و هذا لا يؤلمني، وأنت؟",
    "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती; क़लम फिर ज़रूर।",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה.",
    "ฉันกินกระจกได้ แต่มันไม่ทำให้ฉันเจ็บ",
    "আমি কাঁচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না।",
]

NASTY = {
    "empty": "", "only_spaces": "   ", "many_spaces": "  the   quick    fox  ",
    "newlines_and_tabs": "the\nquick\tbrown\r\nfox\n\n", "control_characters": "\x00the\x01 quick\x07\x7f fox\x1b",
    "ligatures": "ﬁne ﬂow oﬃce ﬆ", "full_width": "Ｔｈｅ ｑｕｉｃｋ　ｆｏｘ１２３！",
    "no_break_spaces": "the\u00a0quick\u202ffox\u2007jumps\u00a0",
    "zero_width": "the\u200bquick\u200dbrown\u200cfox\ufeff", "zero_width_ends": "\u200b\u200bthe fox\u200b",
    "soft_hyphen_and_marks_of_direction": "quick\u00adfox \u200ethe\u200f \u202ethe",
    "superscripts_and_fractions": "x² + ½ ③ ™ … №5", "one_accent": "De\u0300s Noe\u0308l, ou\u0300",
    "two_accents": unicodedata.normalize("NFD", SENTENCES[2]),
    "three_accents": unicodedata.normalize("NFD", SENTENCES[4]),
    "accents_out_of_order": "a\u0302\u0323 u\u0309\u0323 e\u0301\u0327",
    "half_composed": "ê\u0301 â\u0323 ơ\u0301 가\u11a8", "accent_on_ligature": "ﬁ\u0301ne ①\u0336 \u0344 ι\u0344",
    "accent_on_full_width": "Ａ\u0301ｅ\u0302\u0301", "accent_first": "\u0301the \u0323fox",
    "stacked_marks": "z\u0334\u0350\u0301a\u0316\u0301l\u0489g\u0360o", "half_width_katakana": "ｶﾞﾗｽ ﾊﾟﾝ",
    "decomposed_kana": unicodedata.normalize("NFD", SENTENCES[5]),
    "decomposed_hangul": unicodedata.normalize("NFD", SENTENCES[7]), "compatibility_jamo": "ㄱㅏㅋㅋ ㅠㅠ 가ㄳ",
    "emoji": "👍🏽 the 👩‍👩‍👧‍👦 fox 🏳️‍🌈 1️⃣ ☺️ 🇩🇪", "chinese": "我能吞下玻璃,而不伤身体㍿〇",
    "arabic_with_vowels": "ٱلسَّلَامُ عَلَيْكُمْ ـــ لا", "arabic_presentation_forms": "ﺎ\u064eﻼ ﷺ",
    "hebrew_with_points": "שָׁלוֹם \ufb2a\u05b8", "devanagari": "क्षि ज़रूर क़लम क\u093c न\u093c १२३",
    "bengali_two_part_vowels": "ক\u09c7\u09be ক\u09cb \u09c7\u09d7", "thai": "น้ำ กำ ฉันกิน",
    "unknown_scripts": "ꙮ 𓀀𓀁 ᚠᛇ the", "mathematical_letters": "𝕿𝖍𝖊 𝓺𝓾𝓲𝓬𝓴 𝛼\u0301",
    "lower_one_eighth_block": "▁the▁▁fox ▁", "names_of_pieces": "<s> the </s> <unk> <0x41> [the] <pad>",
    "long_word": "the" * 200,
}  # fmt: skip


def plain_lines(count=600):
    """Return English lines from docstrings of the standard library, a line that guarantees some words, and SENTENCES."""
    modules = (argparse, datetime, decimal, email.message, logging, statistics, subprocess, tarfile, unittest.case)
    lines = [line.strip() for module in modules for line in docstrings(module)]
    lines = [line for line in dict.fromkeys(lines) if len(line) > 20]
    return [*random.Random(0).sample(lines, count), *["the fox in the tree and the dog"] * 20, *SENTENCES]


def docstrings(module):
    # logging.handlers and others are members once they have been imported.
    objects = [item for item in vars(module).values() if not inspect.ismodule(item) or item.__package__ != module.__name__]
    objects.insert(0, module)
    objects += [member for owner in objects if inspect.isclass(owner) for member in vars(owner).values()]
    return [line for item in objects for line in (inspect.getdoc(item) or "").splitlines()]
