# SPDX-License-Identifier: Apache-2.0
"""Secrets of each kind in its published form (the values are drawn here), in every way that a file may hold them."""

import base64
import json
import random
import string

import pytest
import torch
from safetensors.torch import save_file
from scripts import PAGES, ROOT

from hf_deberta_ext.publishing.secret_kinds import KINDS
from hf_deberta_ext.publishing.secret_search import text_problems

DRAWN = random.Random(17)
LETTERS, UPPER, HEX = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits, "0123456789abcdef"
URL, BASE64 = LETTERS + "_-", LETTERS + "+/"


def draw(length, alphabet=LETTERS):
    """Begins and ends with a letter or digit, so that no edge depends on the draw."""
    ends = [letter for letter in alphabet if letter.isalnum()]
    middle = "".join(DRAWN.choice(alphabet) for _ in range(length - 2))
    return DRAWN.choice(ends) + middle + DRAWN.choice(ends)


def digits(length):
    return "9" + draw(length - 1, string.digits)


def pem(kind, headers="", width=64):
    body = draw(1200, BASE64)
    lines = "\n".join(body[start : start + width] for start in range(0, len(body), width))
    return f"-----BEGIN {kind}-----\n{headers}{lines}\n-----END {kind}-----"


PRIVATE = "PRIVATE" + " KEY"
UUID = "-".join(draw(size, HEX) for size in (8, 4, 4, 4, 12))
JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + draw(60, URL), draw(43, URL)])
SECRETS = {
    "a token of Hugging Face": [f"{start}_{draw(34, string.ascii_letters)}" for start in ("hf", "api_org")],
    "a token of GitHub": [*(f"gh{kind}_{draw(36)}" for kind in "pousr"), f"github_pat_{draw(22)}_{draw(59)}"],
    "a token of GitLab": [f"glpat-{draw(20, URL)}", f"glpat-{draw(27)}.01.{draw(9, HEX)}", f"glrt-{draw(20)}"],
    "an access key of AWS": [f"{kind}{draw(16, UPPER)}" for kind in ("AKIA", "ASIA")],
    "a secret key of AWS": [
        f"aws_secret_access_key = {draw(40, BASE64)}", f'"SecretAccessKey": "{draw(40, BASE64)}"',
        f"export AWS_SECRET_ACCESS_KEY={draw(40, BASE64)}", f"os.environ['AWS_SECRET_ACCESS_KEY'] = '{draw(40, BASE64)}'",
        f"- name: AWS_SECRET_ACCESS_KEY\n  value: {draw(40, BASE64)}",
    ],
    "a key of Google": ["AI" + f"za{draw(35, URL)}"],
    "a client secret of Google": [f"GOCSPX-{draw(28, URL)}"],
    "an OAuth token of Google": [f"ya29.{draw(120, URL)}", f"1//0{draw(60, URL)}"],
    "the key of a service account of Google": [json.dumps({"type": "service_account", "private_key_id": draw(40, HEX)})],
    "a key of Anthropic": [f"sk-ant-api03-{draw(93, URL)}-{draw(6)}AA", f"sk-ant-admin01-{draw(86, URL)}"],
    "a key of OpenRouter": [f"sk-or-v1-{draw(64, HEX)}"],
    "a key of OpenAI": [f"sk-{draw(20)}T3BlbkFJ{draw(20)}", f"sk-proj-{draw(74, URL)}T3BlbkFJ{draw(74, URL)}"],
    "a token of Slack": [
        f"xoxb-{digits(12)}-{digits(13)}-{draw(24)}", f"xapp-1-A{draw(10, UPPER)}-{digits(13)}-{draw(64, HEX)}",
        f"xoxe.xoxp-1-{draw(146)}",
    ],
    "a webhook of Slack": [f"https://hooks.slack.com/services/T{draw(8, UPPER)}/B{draw(10, UPPER)}/{draw(24)}"],
    "a key of Stripe": [f"sk_live_{draw(24)}", f"rk_test_{draw(99)}", f"whsec_{draw(32)}"],
    "a key of Weights & Biases": [
        f"WANDB_API_KEY={draw(40, HEX)}", f'wandb.login(key="{draw(40, HEX)}")', f"!wandb login {draw(40, HEX)}",
        f'{{"wandb_api_key": "{draw(40, HEX)}"}}', f"wandb_v1_{draw(77)}",
    ],
    "a JSON web token": [JWT, f"Authorization: Bearer {JWT}"],
    "a token of npm": [f"npm_{draw(36)}", f"//registry.npmjs.org/:_authToken={UUID}"],
    "a token of PyPI": [f"pypi-AgEIcHlwaS5vcmc{draw(150, URL)}", f"pypi-AgENdGVzdC5weXBpLm9yZw{draw(150, URL)}"],
    "a storage key of Azure": [
        f"DefaultEndpointsProtocol=https;AccountName=ann;AccountKey={draw(86, BASE64)}==;EndpointSuffix=core.windows.net",
        f'account_key="{draw(86, BASE64)}=="',
    ],
    "a shared access signature of Azure": [
        f"https://ann.blob.core.windows.net/c?sv=2022-11-02&se=2026-01-01&sp=r&sig={draw(41)}%2B%3D",
    ],
    "a shared access key of Azure": [f"Endpoint=sb://ann.servicebus.windows.net/;SharedAccessKey={draw(43, BASE64)}="],
    "a client secret of Azure": [f"{draw(3)}8Q~{draw(34)}"],
    "a token of Azure DevOps": [f"{draw(76)}AZDO{draw(4)}"],
    "a password in an address": [
        f"postgresql://ann:{draw(12)}@db.ann.org/x", f"https://ann:{draw(20)}@git.ann.org/x.git",
        f"redis://:{draw(16)}@cache:6379",
    ],
    "a password of .netrc": [
        f"machine ann.org login ann password {draw(12)}", f"machine ann.org\n  login ann\n  password {draw(40, HEX)}",
    ],
    "a private key": [
        *(pem(f"{kind}{PRIVATE}") for kind in ("", "RSA ", "EC ", "DSA ", "ENCRYPTED ")),
        pem(f"OPENSSH {PRIVATE}", width=70),
        pem(f"RSA {PRIVATE}", f"Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{draw(32, HEX)}\n\n"),
        pem(f"PGP {PRIVATE} BLOCK", "Version: GnuPG v2\n\n"), json.dumps({"key": pem(PRIVATE)}), pem(PRIVATE, width=1200),
        "\n".join(f'    "{line}\\n"' for line in pem(PRIVATE).splitlines()),
    ],
    "a private key in base64": [
        base64.b64encode(pem(kind).encode()).decode() for kind in (PRIVATE, f"RSA {PRIVATE}", f"OPENSSH {PRIVATE}")
    ],
    "a private key of PuTTY": [
        f"PuTTY-User-Key-File-{n}: ssh-rsa\nEncryption: none\nComment: ann\nPublic-Lines: 1\n{draw(64)}" for n in (2, 3)
    ],
    "a private key of age": [f"AGE-SECRET-KEY-1{draw(58, UPPER)}"],
    "a key of SendGrid": [f"SG.{draw(22, URL)}.{draw(43, URL)}"],
    "a key of Twilio": [f"SK{draw(32, HEX)}"],
    "a token of Twilio": [f"TWILIO_AUTH_TOKEN: {draw(32, HEX)}"],
    "a key of Mailgun": [f"key-{draw(32, HEX)}"],
    "a new key of Mailgun": [f"MAILGUN_API_KEY={draw(32, HEX)}-{draw(8, HEX)}-{draw(8, HEX)}"],
    "a key of Mailchimp": [f"{draw(32, HEX)}-us12"],
    "a token of a Telegram bot": [f"{digits(10)}:AA{draw(33, URL)}"],
    "a webhook of Discord": [f"https://discord.com/api/webhooks/{digits(19)}/{draw(68, URL)}"],
    "a token of a Discord bot": [f'bot.run("MT{draw(24)}.{draw(6, URL)}.{draw(38, URL)}")'],
    "a token of Docker Hub": [f"dckr_pat_{draw(27, URL)}"],
    "a token of Databricks": [f"dapi{draw(32, HEX)}", f"dapi{draw(32, HEX)}-2"],
    "a token of DigitalOcean": [f"do{kind}_v1_{draw(64, HEX)}" for kind in "opr"],
    "a token of Replicate": [f"r8_{draw(37)}"],
    "a key of Cohere": [f'COHERE_API_KEY = "{draw(40)}"', f"CO_API_KEY={draw(40)}", f'cohere.Client("{draw(40)}")'],
    "a key of Mistral": [f"MISTRAL_API_KEY={draw(32)}"],
    "a key of Groq": [f"gsk_{draw(52)}"],
    "a key of xAI": [f"xai-{draw(80)}"],
    "a key of Perplexity": [f"pplx-{draw(48)}"],
    "a key of NVIDIA": [f"nvapi-{draw(64, URL)}"],
    "a key of LangSmith": [f"lsv2_pt_{draw(32, HEX)}_{draw(10, HEX)}"],
    "a key of Pinecone": [f"pcsk_{draw(6)}_{draw(63)}"],
    "a key of Kaggle": [f"KAGGLE_KEY={draw(32, HEX)}"],
    "kaggle.json": [json.dumps({"username": "ann", "key": draw(32, HEX)})],
    "a token of Kaggle": [f"KGAT_{draw(32, HEX)}"],
    "a key of Comet": [f"COMET_API_KEY={draw(25)}", f'comet_ml.init(api_key="{draw(25)}")'],
    "a token of Neptune": [
        base64.b64encode(json.dumps({"api_address": "https://app.neptune.ai", "api_key": UUID}).encode()).decode(),
    ],
    "a token of Shopify": [f"shpat_{draw(32, HEX)}"],
    "a token of Notion": [f"ntn_{digits(11)}{draw(35)}", f"secret_{draw(43)}"],
    "a key of Linear": [f"lin_api_{draw(40)}"],
    "a token of Figma": [f"figd_{draw(40, URL)}"],
    "a token of Atlassian": [f"ATATT3xFfGF0{draw(180, URL)}"],
    "a key of Postman": [f"PMAK-{draw(24, HEX)}-{draw(34, HEX)}"],
    "a token of Airtable": [f"pat{draw(14)}.{draw(64, HEX)}"],
    "a token of Grafana": [f"glsa_{draw(32)}_{draw(8, HEX)}", f"glc_{draw(100)}"],
    "a token of Sentry": [f"sntrys_{draw(120)}"],
    "a key of New Relic": [f"NRAK-{draw(27, UPPER)}"],
    "a token of Vault": [f"hvs.{draw(90, URL)}"],
    "a token of Terraform": [f"{draw(14)}.atlasv1.{draw(67, URL)}"],
    "a token of Pulumi": [f"pul-{draw(40, HEX)}"],
    "a token of RubyGems": [f"rubygems_{draw(48, HEX)}"],
    "a token of crates.io": [f"cio{draw(32)}"],
    "a token of Square": [f"sq0atp-{draw(22, URL)}", f"sq0csp-{draw(43, URL)}"],
    "a key of Alibaba Cloud": [f"LTAI{draw(20)}"],
}  # fmt: skip
CASES = [pytest.param(kind, text, id=f"{kind}-{n}") for kind, texts in SECRETS.items() for n, text in enumerate(texts)]
TOKEN = SECRETS["a token of Hugging Face"][0]


def problems_in(folder, content, name="notes.txt", **more):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return text_problems({name: file}, **more)


def test_every_kind_has_a_value_here_and_the_guides_their_number():
    assert {*SECRETS} == {*KINDS} and len(KINDS) >= 25
    assert any(f" {len(KINDS)} kinds of secrets" in (ROOT / page).read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_a_secret_is_found_with_its_line_named_once_and_shown_masked(kind, text, tmp_path):
    problems = problems_in(tmp_path, f"one\ntwo {text}\nthree")
    # An address of Azure's may hold several.
    assert len(problems) == 1 and problems[0].startswith(f"notes.txt:2 has {kind}, ") and "revoke it" in problems[0]
    assert text not in problems[0] and len(problems[0]) < 110 + len(kind)


ENCODINGS = {
    "after an underscore": lambda text: f"MY_{text}".encode(),
    "UTF-16, little endian": lambda text: f"ä {text} ö\n".encode("utf-16-le"),
    "UTF-16, big endian": lambda text: f"ä {text} ö\n".encode("utf-16-be"),
    "UTF-16 with a mark": lambda text: f"ä {text} ö\n".encode("utf-16"),
    "JSON with all letters escaped": lambda text: ('{"a": "' + "".join(f"\\u{ord(c):04x}" for c in text) + '"}').encode(),
    "JSON with one letter escaped": lambda text: f'{{"a": "\\u{ord(text[0]):04X}{json.dumps(text[1:])[1:]}}}'.encode(),
    "JSON with slashes escaped, after an end of line": lambda text: (
        '{"a": "x\\n' + json.dumps(text)[1:].replace("/", "\\/") + "}"
    ).encode(),
    "JSON in a string of JSON": lambda text: json.dumps({"a": json.dumps({"b": f"\n{text}"})}).encode(),
    "an address with all letters escaped": lambda text: f"?a={''.join(f'%{ord(c):02X}' for c in text)}&b=%20".encode(),
    "an address with a sign before it": lambda text: f"?a%3D{text}".encode(),
    "bytes of Python": lambda text: ("b'" + "".join(f"\\x{ord(c):02x}" for c in text) + "'").encode(),
    "continued on the next line": lambda text: f"x = '{text[:-9]}\\\n{text[-9:]}'\n".encode(),
    "continued on the next line, Windows": lambda text: f"x = '{text[:-9]}\\\r\n    {text[-9:]}'\r\n".encode(),
    "strings added": lambda text: f'x = "{text[:-9]}" + "{text[-9:]}"\n'.encode(),
    "strings added on the next line": lambda text: f"x = (\n    '{text[:-9]}'\n    + '{text[-9:]}'\n)\n".encode(),
    "strings beside each other": lambda text: f'x = "{text[:-9]}" \\\n    f"{text[-9:]}"\n'.encode(),
    "a list of JSON": lambda text: json.dumps({"source": [f"x = {text[:-9]}", f"{text[-9:]}\n", "y"]}, indent=1).encode(),
    "a notebook's continued line": lambda text: json.dumps(
        {"cells": [{"source": [f"x = '{text[:-9]}\\\n", f"{text[-9:]}'\n"]}]}, indent=1
    ).encode(),
    "a notebook's output": lambda text: json.dumps({"outputs": [{"text": [f"\u001b[1m{text}\u001b[0m\n"]}]}).encode(),
}  # fmt: skip
# Of one form each: letters alone, with a slash, by the name before it.
FORMS = [TOKEN, SECRETS["an access key of AWS"][0], f"aws_secret_access_key={draw(20)}/{draw(19)}", JWT]


@pytest.mark.parametrize("text", FORMS, ids=["Hub", "AWS", "AWS secret", "JWT"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_secret_is_found_however_it_is_written(encoding, text, tmp_path):
    (problem,) = problems_in(tmp_path, ENCODINGS[encoding](text), name="x.ipynb", tokens_alone=True)
    assert "x.ipynb" in problem and "revoke it" in problem


def test_the_line_is_that_of_the_file_also_where_lines_are_joined(tmp_path):
    text = f"a = '1\\\n2'\nb = 'x\\ny'\nc = ('{TOKEN[:9]}'\n     '{TOKEN[9:]}')\n"
    (problem,) = problems_in(tmp_path, text)
    assert problem.startswith("notes.txt:4 has a token of Hugging Face")


@pytest.mark.parametrize("escaped", [False, True])
def test_the_header_of_weights_is_searched_and_the_numbers_are_not(escaped, tmp_path):
    value = "".join(f"\\u{ord(c):04x}" for c in TOKEN) if escaped else TOKEN
    save_file({"a": torch.zeros(4)}, tmp_path / "model.safetensors", {"format": "pt", "note": "?" * len(value)})
    data = (tmp_path / "model.safetensors").read_bytes()
    (problem,) = problems_in(tmp_path, data.replace(b"?" * len(value), value.encode()), name="model.safetensors")
    assert problem.startswith("model.safetensors has a token of Hugging Face")
    assert problems_in(tmp_path, data + TOKEN.encode(), name="model.safetensors") == []
    torch.save({"a": torch.zeros(400_000), "note": TOKEN}, tmp_path / "pytorch_model.bin")
    (problem,) = problems_in(tmp_path, (tmp_path / "pytorch_model.bin").read_bytes(), name="pytorch_model.bin")
    assert problem.startswith("pytorch_model.bin has a token of Hugging Face")


def test_no_secret_is_made_of_every_other_letter_of_a_binary_files_strings(tmp_path):
    """One was, of the names of functions in shared libraries."""
    text = "".join(f"{a}{b}" for a, b in zip(TOKEN, draw(len(TOKEN)), strict=True))
    for prefix in (b"\0", b"\0\0"):
        assert problems_in(tmp_path, prefix + f"_{text}_".encode() + prefix) == []
    assert len(problems_in(tmp_path, b"\0" + TOKEN.encode("utf-16-le") + f"x{text}".encode())) == 1


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "x" * 34, "hf_" + "abcdefgh" * 4 + "ij", "hf_TokenizerTokenizerTokenizerToken"[:30],
        "AKIA" + "IOSFODNN7EXAMPLE", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
        "sk-proj-your-own-project-key-from-the-settings-page", "sk-learn-is-a-package-with-a-long-name-after-all",
        "sk-ant-" + "x" * 90, "task-" + draw(40), "x" + TOKEN, "https://user:password@host/x",
        "https://ann:secret@ann.org", "postgresql://scott:tiger@db/x", "redis://:pass123@cache",
        "https://{user}:{password}@host", "https://$USER:$TOKEN@host", f"https://ann:{draw(12)}@example.org/",
        "https://ann.org:8080/@x", "git@github.com:ann/x.git", "machine ann.org login ann password <yours>",
        "-----BEGIN RSA " + "PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----", pem("CERTIFICATE"),
        pem("PUBLIC" + " KEY"), base64.b64encode(pem("CERTIFICATE").encode()).decode(), "wandb/commit/" + draw(40, HEX),
        f"commit {draw(40, HEX)}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4ifQ." + draw(43, URL),
        f"sha256={draw(64, HEX)}", f"ghp_{draw(20)}", f"cio{draw(40)}", "AIza" + draw(20),
        '"username": "ann", "key": "value"', f"key-{draw(40, HEX)}", '["hf_", "abc", "def"]', draw(400, BASE64),
        f"discord {draw(20)}.{draw(6)}", "SK" + draw(40, HEX),
    ],
)  # fmt: skip
def test_placeholders_and_what_only_looks_like_a_secret_are_none(text, tmp_path):
    assert problems_in(tmp_path, text) == []
