# SPDX-License-Identifier: Apache-2.0
"""Table of the kinds of secrets that a published file must not hold."""

import base64
from typing import NamedTuple

__all__ = ["KINDS", "Kind"]


class Kind(NamedTuple):
    """A match of `pattern` begins with one of `words` (spaces between them), or up to `before` bytes before it; of patterns
    that begin with `(?i` the words are in small letters. The last group, or else the whole match, is the value."""

    words: str
    pattern: str
    before: int = 0


# Between the name of a variable or field and its value: KEY = "...", "key": "...", f(key="..."), name: KEY, value: ...
IS = (
    r"""[\w .-]{0,30}["'\]]{0,3}(?:\(\s{0,3}\w{0,20})?\s{0,3}"""
    r"""(?:(?:=>|:=|[:=,(])\s{0,3}|\s{1,20}["']?value["']?\s{0,2}[:=]\s{0,3})["'(]{0,3}"""
)
HEX32, HEX40, UUID = r"([0-9a-f]{32})", r"([0-9a-f]{40})", r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
WORD = r"[^\s/:@\"'<>{}()\[\]\\,;|*`$]"
# How a PEM block begins that is itself in base64, without the letters that depend on what follows.
PEM_KINDS = ("", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "PGP ")
WRAPPED = [base64.b64encode(f"-----BEGIN {kind}PRIVATE KEY".encode()).decode().rstrip("=")[:-2] for kind in PEM_KINDS]
SLACK = r"xox[abeoprs]-\d{6,}-[A-Za-z0-9-]{10,}|xoxe(?:\.xox[bp])?-\d-[A-Za-z0-9-]{40,}|xapp-\d-[A-Z0-9]+-\d+-[0-9a-f]{20,}"

# The forms that the services publish, or that the searches of GitHub and gitleaks have for them.
KINDS = {
    "a token of Hugging Face": Kind("hf_ api_org_", r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    "a token of GitHub": Kind("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}"),
    "a token of GitLab": Kind(
        "glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glagent- glimt-",
        r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[\w-]{20,}(?:\.[a-z0-9]{2}\.[a-z0-9]{7,9})?",
    ),
    "an access key of AWS": Kind("AKIA ASIA ABIA ACCA", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    "a secret key of AWS": Kind(
        "aws secret_access_key secretaccesskey",
        rf"(?i:aws[\w -]{{0,20}}key|secret_?access_?key){IS}([A-Za-z0-9/+]{{40}})(?![/+=])",
    ),
    "a key of Google": Kind("AIza", r"AIza[\w-]{35}(?!-)"),
    "a client secret of Google": Kind("GOCSPX-", r"GOCSPX-[\w-]{28}(?!-)"),
    "an OAuth token of Google": Kind("ya29. 1//0", r"ya29\.[\w-]{40,}|1//0[\w-]{40,}"),
    "the key of a service account of Google": Kind("private_key_id", rf"private_key_id{IS}{HEX40}"),
    "a key of Anthropic": Kind("sk-ant-", r"sk-ant-(?=[\w-]*\d)[\w-]{40,}"),
    "a key of OpenRouter": Kind("sk-or-v1-", r"sk-or-v1-[0-9a-f]{64}"),
    "a key of OpenAI": Kind(
        "sk-", r"sk-(?:proj|svcacct|admin|None)-(?=[\w-]*\d)[\w-]{40,}|sk-(?=[A-Za-z]*\d)[A-Za-z0-9]{32,}"
    ),
    "a token of Slack": Kind("xoxa- xoxb- xoxe xoxo- xoxp- xoxr- xoxs- xapp-", SLACK),
    "a webhook of Slack": Kind(
        "hooks.slack",
        r"hooks\.slack[\w.-]{4,9}/(?:services|workflows|triggers)/[A-Z0-9]{8,}/[A-Z0-9]{8,}/([A-Za-z0-9/]{20,})",
    ),
    "a key of Stripe": Kind(
        "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{32,}"
    ),
    "a key of Weights & Biases": Kind("wandb", rf"(?i:wandb)(?:{IS}|\s+login\s+)(?:local-)?{HEX40}|wandb_v1_\w{{40,}}"),
    "a JSON web token": Kind("eyJ", r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"),
    "a token of npm": Kind("npm_ _authToken", rf"npm_[A-Za-z0-9]{{36}}|_authToken\s?=\s?{UUID}"),
    "a token of PyPI": Kind("pypi-Ag", r"pypi-Ag(?:EIcHlwaS5vcmc|ENdGVzdC5weXBpLm9yZw)[\w-]{50,}"),
    "a storage key of Azure": Kind(
        "accountkey account_key azure", rf"(?i:account_?key|azure\w{{0,9}}storage){IS}([A-Za-z0-9+/]{{86}}==)"
    ),
    "a shared access signature of Azure": Kind("sig=", r"sig=((?=[\w+/]*[A-Z%])[A-Za-z0-9%+/]{43,70}(?:%3[Dd]|=))"),
    "a shared access key of Azure": Kind("SharedAccessKey=", r"SharedAccessKey=([A-Za-z0-9+/]{43}=)"),
    "a client secret of Azure": Kind("Q~", r"[\w~.-]{3}\dQ~[\w~.-]{31,34}(?![~.-])", 4),
    "a token of Azure DevOps": Kind("AZDO", r"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}", 76),
    "a password in an address": Kind("://", rf"://{WORD}{{0,99}}:({WORD}{{3,99}})@(?!(?:\w+\.)?example)[A-Za-z0-9]"),
    "a password of .netrc": Kind(
        "machine", r"(?<!\w)machine\s{1,9}[\w.:-]{1,99}\s{1,9}login\s{1,9}\S{1,99}\s{1,9}password\s{1,9}([^\s\"'<>\\,]{6,})"
    ),
    "a private key": Kind(
        "-----BEGIN",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\s{0,4}[A-Z][\w-]{2,20}: [^\r\n]{0,80}){0,4}"
        r"[\s\"'+,#>|]{0,40}([A-Za-z0-9+/]{40,})",
    ),
    "a private key in base64": Kind(" ".join(WRAPPED), f"(?:{'|'.join(WRAPPED)})[A-Za-z0-9+/]{{20,}}"),
    "a private key of PuTTY": Kind(
        "PuTTY-User-Key-File-", r"PuTTY-User-Key-File-\d: [\w-]{3,40}\s{1,4}Encryption: [^\r\n]{1,40}\s{1,4}Comment:"
    ),
    "a private key of age": Kind("AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{58}"),
    "a key of SendGrid": Kind("SG.", r"SG\.[\w-]{22}\.[\w-]{43}(?!-)"),
    "a key of Twilio": Kind("SK", r"SK[0-9a-f]{32}"),
    "a token of Twilio": Kind("twilio", rf"(?i:twilio){IS}{HEX32}"),
    "a key of Mailgun": Kind("key-", rf"key-{HEX32}"),
    "a new key of Mailgun": Kind("mailgun", rf"(?i:mailgun){IS}([0-9a-f]{{32}}-[0-9a-f]{{8}}-[0-9a-f]{{8}})"),
    "a key of Mailchimp": Kind("-us", r"[0-9a-f]{32}-us\d{1,2}", 32),
    "a token of a Telegram bot": Kind(":AA", r"\d{8,10}:AA[\w-]{32,33}(?!-)", 10),
    "a webhook of Discord": Kind("discord", r"(?i:discord)(?:app)?\.com/api/(?:v\d+/)?webhooks/\d{17,20}/([\w-]{60,})"),
    "a token of a Discord bot": Kind("discord bot", r"(?i)(?-i:[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,38}(?!-))", 200),
    "a token of Docker Hub": Kind("dckr_", r"dckr_[po]at_[\w-]{27,}"),
    "a token of Databricks": Kind("dapi", r"dapi[0-9a-f]{32}(?:-\d)?"),
    "a token of DigitalOcean": Kind("doo_v1_ dop_v1_ dor_v1_", r"do[opr]_v1_[0-9a-f]{64}"),
    "a token of Replicate": Kind("r8_", r"r8_[A-Za-z0-9]{37}"),
    "a key of Cohere": Kind("cohere co_api_key", rf"(?i:cohere|co_api_key){IS}([A-Za-z0-9]{{40}})"),
    "a key of Mistral": Kind("mistral", rf"(?i:mistral)_?(?i:api)?_?(?i:key|token){IS}([A-Za-z0-9]{{32}})"),
    "a key of Groq": Kind("gsk_", r"gsk_[A-Za-z0-9]{50,}"),
    "a key of xAI": Kind("xai-", r"xai-[A-Za-z0-9]{70,}"),
    "a key of Perplexity": Kind("pplx-", r"pplx-[A-Za-z0-9]{48}"),
    "a key of NVIDIA": Kind("nvapi-", r"nvapi-[\w-]{60,}"),
    "a key of LangSmith": Kind("lsv2_", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    "a key of Pinecone": Kind("pcsk_", r"pcsk_[A-Za-z0-9]{5,6}_[A-Za-z0-9]{60,}"),
    "a key of Kaggle": Kind("kaggle", rf"(?i:kaggle)_?(?i:key|token){IS}{HEX32}"),
    "kaggle.json": Kind('"username"', rf'"username"\s?:\s?"[^"]+"\s?,\s*"key"\s?:\s?"{HEX32}"'),
    "a token of Kaggle": Kind("KGAT_", r"KGAT_[0-9a-f]{32}"),
    "a key of Comet": Kind("comet", rf"(?i:comet){IS}([A-Za-z0-9]{{25}})"),
    "a token of Neptune": Kind("eyJhcGlfYWRkcmVzcyI6", r"eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/=_-]{50,}"),
    "a token of Shopify": Kind("shpat_ shpca_ shppa_ shpss_", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    "a token of Notion": Kind("ntn_ secret_", r"ntn_\d{8,}[A-Za-z0-9]{32,}|secret_[A-Za-z0-9]{43}"),
    "a key of Linear": Kind("lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
    "a token of Figma": Kind("figd_", r"figd_[\w-]{40,}"),
    "a token of Atlassian": Kind("ATATT3", r"ATATT3[\w=-]{100,}"),
    "a key of Postman": Kind("PMAK-", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    "a token of Airtable": Kind("pat", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    "a token of Grafana": Kind("glsa_ glc_", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_[A-Za-z0-9+/]{50,}"),
    "a token of Sentry": Kind("sntrys_ sntryu_", r"sntry[su]_[A-Za-z0-9+/=_]{60,}"),
    "a key of New Relic": Kind("NRAK-", r"NRAK-[A-Z0-9]{27}"),
    "a token of Vault": Kind("hvs. hvb.", r"hv[sb]\.[\w-]{24,}"),
    "a token of Terraform": Kind(".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{60,}", 14),
    "a token of Pulumi": Kind("pul-", r"pul-[0-9a-f]{40}"),
    "a token of RubyGems": Kind("rubygems_", r"rubygems_[0-9a-f]{48}"),
    "a token of crates.io": Kind("cio", r"cio[A-Za-z0-9]{32}"),
    "a token of Square": Kind("sq0", r"sq0(?:atp|csp)-[\w-]{22,43}(?!-)"),
    "a key of Alibaba Cloud": Kind("LTAI", r"LTAI[A-Za-z0-9]{16,20}"),
}
