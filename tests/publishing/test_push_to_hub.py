# SPDX-License-Identifier: Apache-2.0
"""model.push_to_hub over HTTP: what is on the Hub then, and that a process without the package reads it back equal."""

import json
import re

import pytest
import torch
import without_package
from hub_models import OLD, TOKENIZER, assert_code_in, job, make_tokenizer, read_back
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from local_hub import LocalHub
from rounding import assert_equal_outputs, equal_outputs
from tiny_models import HEADS, tiny_inputs, tiny_model

from hf_deberta_ext import DebertaExtConfig, DebertaExtForMaskedLM, DebertaExtForReplacedTokenDetection
from hf_deberta_ext.model import publishing
from hf_deberta_ext.publishing import write_model_card
from hf_deberta_ext.publishing.card import render_card
from hf_deberta_ext.publishing.loading_code import LOADING_LINES, published_card

# tests/model/test_remote_code.py loads every head from its folder without the package.
PUSHED = ("AutoModel", "AutoModelForMaskedLM", "AutoModelForPreTraining")
# What a newer revision of the code does: every logit is larger by one.
CHANGE = """

_kept = DebertaExtForMaskedLM.forward


def _changed(self, *args, **kwargs):
    outputs = _kept(self, *args, **kwargs)
    outputs.logits = outputs.logits + 1
    return outputs


DebertaExtForMaskedLM.forward = _changed
"""


@pytest.fixture
def model():
    return tiny_model(DebertaExtForMaskedLM)


@pytest.fixture
def tokenizer(tmp_path):
    return make_tokenizer(tmp_path / "tokenizer")


def answers(model, auto="AutoModelForMaskedLM"):
    return without_package.answers(model, {name: torch.tensor(value) for name, value in tiny_inputs(auto).items()})


def metadata_and_text(card):
    return ModelCard(card).data.to_dict(), ModelCard(card).text


@pytest.mark.parametrize("auto", HEADS)
def test_one_commit_holds_weights_configuration_code_tokenizer_and_card(hub, tokenizer, auto, tmp_path):
    model = tiny_model(HEADS[auto])
    commit = model.push_to_hub("name", tokenizer=tokenizer)
    repo = hub.repos["user/name"]
    assert commit.oid == repo.branches["main"] and [made.title for made in repo.history()] == [
        "Upload model",
        "initial commit",
    ]
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}
    assert {name: data for name, data in repo.files().items() if name not in (".gitattributes", "README.md")} == saved
    assert_code_in(repo.files())
    assert TOKENIZER <= {*repo.files()} and repo.find("main").lfs == {"model.safetensors"}


def test_no_file_names_a_folder_of_this_machine_or_a_token_and_pushing_again_sends_nothing(hub, tokenizer, tmp_path):
    tiny_model(DebertaExtForMaskedLM).save_pretrained(tmp_path / "mine")
    model = DebertaExtForMaskedLM.from_pretrained(tmp_path / "mine")
    first = model.push_to_hub("name", tokenizer=tokenizer)
    for name, data in hub.repos["user/name"].files().items():
        if not name.endswith(".safetensors"):
            assert str(tmp_path) not in data.decode() and "hf_write" not in data.decode(), name
    hub.requests.clear()
    assert model.push_to_hub("name", tokenizer=tokenizer).oid == first.oid
    assert not hub.sent("PUT") and not hub.sent("/commit/")


def test_owner_privacy_branch_words_and_tags_are_as_asked(hub, model):
    model.push_to_hub(
        "org/name", private=True, revision="topic", commit_message="First", commit_description="of two", tags=["one"],
        max_shard_size="20KB",
    )  # fmt: skip
    repo = hub.repos["org/name"]
    assert repo.private and [*repo.files()] == [".gitattributes"]
    made = repo.find("topic")
    assert (made.title, made.description, made.parent) == ("First", "of two", repo.branches["main"])
    assert "model.safetensors.index.json" in made.files and "model.safetensors" not in made.files
    card = made.files["README.md"].decode()
    assert ModelCard(card).data.tags == ["deberta", "hf_deberta_ext", "one"] and 'revision = "topic"' in card


def test_a_pull_request_leaves_the_branch_and_takes_more_commits(hub, model):
    before = hub.create_repo("user/name").branches["main"]
    commit = model.push_to_hub("name", create_pr=True)
    repo = hub.repos["user/name"]
    assert commit.pr_revision == "refs/pr/1" and repo.branches == {"main": before}
    model.push_to_hub("name", revision="refs/pr/1", tags=["more"])
    assert "model.safetensors" in repo.files("refs/pr/1") and repo.branches == {"main": before}
    assert len(repo.pull_requests) == 1 and "more" in repo.files("refs/pr/1")["README.md"].decode()


def test_a_token_that_may_not_write_is_refused_except_for_pull_requests(hub, model):
    with pytest.raises(HfHubHTTPError, match="rights to create a model"):
        model.push_to_hub("name", token="hf_read")
    repo = hub.create_repo("user/name")
    with pytest.raises(HfHubHTTPError, match="you must use a write token"):
        model.push_to_hub("user/name", token="hf_read")
    assert len(repo.commits) == 1
    assert model.push_to_hub("user/name", token="hf_stranger", create_pr=True).pr_num == 1
    with pytest.raises(HfHubHTTPError, match="403"):
        model.push_to_hub("user/name", token="hf_stranger", revision="mine")
    assert [*repo.branches] == ["main"]


def test_without_a_tokenizer_the_way_to_one_is_told_until_it_is_there(hub, model, tokenizer, caplog):
    model.push_to_hub("name")
    assert "model.push_to_hub('user/name', tokenizer=tokenizer)" in caplog.text
    tokenizer.push_to_hub("name")
    caplog.clear()
    model.push_to_hub("name", tags=["x"])
    assert "tokenizer" not in caplog.text


def test_save_pretrained_can_push_as_well(hub, model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "mine", push_to_hub=True, tokenizer=tokenizer, private=True, token="hf_write")
    files = hub.repos["user/mine"].files()
    assert hub.repos["user/mine"].private and TOKENIZER <= {*files}
    assert files["model.safetensors"] == (tmp_path / "mine" / "model.safetensors").read_bytes()
    assert "More Information Needed" not in files["README.md"].decode()
    doubled = {name: 2 * value for name, value in model.state_dict().items()}
    model.save_pretrained(tmp_path / "doubled", state_dict=doubled, push_to_hub=True, repo_id="org/twice")
    written = (tmp_path / "doubled" / "model.safetensors").read_bytes()
    assert hub.repos["org/twice"].files()["model.safetensors"] == written != files["model.safetensors"]


def test_weights_are_downloaded_anew_once_where_that_is_asked_for(hub, model):
    """The check of their header downloaded them, and transformers once more."""
    model.push_to_hub("name")
    loaded = DebertaExtForMaskedLM.from_pretrained("user/name")
    hub.requests.clear()
    again = DebertaExtForMaskedLM.from_pretrained("user/name", force_download=True)
    assert len([request for request in hub.sent("GET") if request.path.endswith("/model.safetensors")]) == 1
    assert all(torch.equal(weight, other) for weight, other in zip(loaded.parameters(), again.parameters(), strict=True))


def test_a_configuration_alone_brings_the_code(hub, model, tmp_path):
    model.config.push_to_hub("name")
    model.config.save_pretrained(tmp_path / "saved", push_to_hub=True)
    for repo_id in ("user/name", "user/saved"):
        assert_code_in(hub.repos[repo_id].files())


KEPT = {"model.fp16.safetensors", "onnx/model.onnx", "pytorch_model.generator.bin", "notes.txt"}


@pytest.mark.parametrize("shards", [False, True], ids=["one_file", "shards"])
def test_weights_that_would_be_loaded_instead_are_removed_in_the_same_commit(hub, model, caplog, shards):
    hub.create_repo("user/name", OLD)
    model.push_to_hub("name", **(dict(max_shard_size="20KB") if shards else {}))
    repo, files = hub.repos["user/name"], hub.repos["user/name"].files()
    weights = {name for name in files if re.match(r"(pytorch_)?model[-.]", name)} - KEPT
    if shards:
        assert {*json.loads(files["model.safetensors.index.json"])["weight_map"].values()} == weights - {
            "model.safetensors.index.json"
        }
    else:
        assert weights == {"model.safetensors"}
    assert KEPT <= {*files} and not any(name.startswith("adapter_") for name in files)
    assert len(repo.history()) == 3 and "removed from user/name" in caplog.text and "adapter_config.json" in caplog.text
    model.push_to_hub("name", **(dict(max_shard_size="20KB") if not shards else {}))
    assert ("model.safetensors" in repo.files()) == shards


@pytest.mark.parametrize("name", [*(model.__name__ for model in HEADS.values()), "DebertaExtForReplacedTokenDetection"])
@pytest.mark.parametrize("has_tokenizer", [True, False], ids=["tokenizer", "no_tokenizer"])
def test_the_card_has_the_frame_and_the_words_of_all_our_cards(name, has_tokenizer):
    card = publishing.new_card(
        name, "user/name", revision="main", parameters=12_340_000, has_tokenizer=has_tokenizer, metadata={"tags": ["x"]}
    )
    data, text = metadata_and_text(card)
    code = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
    lines = published_card(LOADING_LINES.format(repo="name"), "README.md", "user/name", "main", pinned=False)
    assert lines in code and ("AutoTokenizer" in code) == has_tokenizer
    compile(code, "card", "exec")
    assert ("AutoModel.from_pretrained" in code) == (name in ("DebertaExtModel", "DebertaExtForReplacedTokenDetection"))
    opening = text.split("\n\n")[1]
    assert "12.3 million parameters" in opening and name in opening
    frame = render_card(title="name", opening=opening, metadata=data, load=code, brings_code=True)
    assert metadata_and_text(frame) == (data, text)


@pytest.mark.parametrize("model_class", [*HEADS.values(), DebertaExtForReplacedTokenDetection])
def test_the_metadata_are_those_of_a_card_that_is_built_from_the_folder(model_class, tmp_path):
    """The first card of an encoder had no pipeline_tag, and every one a model_name, which belongs to results."""
    tiny_model(model_class).save_pretrained(tmp_path / "name")
    built = ModelCard.load(write_model_card(tmp_path / "name")).data.to_dict()
    first = publishing.new_card(
        model_class.__name__, "user/name", revision="main", parameters=1, has_tokenizer=False, metadata={}
    )
    assert ModelCard(first).data.to_dict() == built


def test_a_card_that_somebody_has_written_stays_and_gets_the_tags(hub, model):
    written = "---\nlicense: mit\ntags:\n- mine\n---\n# Mine\n\nTrained on tales.\n"
    hub.create_repo("user/name", {"README.md": written.encode()})
    model.push_to_hub("name")
    assert hub.repos["user/name"].files()["README.md"].decode() == written
    model.add_model_tags(["own"])
    model.push_to_hub("name", tags=["mine", "new"])
    data, text = metadata_and_text(hub.repos["user/name"].files()["README.md"].decode())
    assert data == {"license": "mit", "tags": ["mine", "own", "new"]} and text.strip() == "# Mine\n\nTrained on tales."
    model.push_to_hub("other", tags=["given"])
    tags = ModelCard(hub.repos["user/other"].files()["README.md"].decode()).data.tags
    assert tags == ["deberta", "hf_deberta_ext", "own", "given"] and model.model_tags == ["own"]


def test_the_template_of_transformers_and_our_own_first_card_give_way_and_keep_their_metadata(hub, model, tokenizer):
    tokenizer.push_to_hub("name", tags=["early"])
    repo = hub.repos["user/name"]
    assert "More Information Needed" in repo.files()["README.md"].decode()
    model.push_to_hub("name")
    data, text = metadata_and_text(repo.files()["README.md"].decode())
    assert "More Information Needed" not in text and "AutoTokenizer" in text
    assert data["tags"] == ["deberta", "hf_deberta_ext", "early"]

    model.push_to_hub("other")
    first = hub.repos["user/other"].files()["README.md"].decode()
    assert "AutoTokenizer" not in first
    hub.commit("user/other", {"README.md": first.replace("library_name", "license: mit\nlibrary_name").encode()})
    model.push_to_hub("other", tokenizer=tokenizer)
    data, text = metadata_and_text(hub.repos["user/other"].files()["README.md"].decode())
    assert data["license"] == "mit" and "AutoTokenizer" in text


def test_somebody_elses_push_in_between_is_not_undone(hub, model):
    hub.create_repo("user/name")
    hub.before("/commit/", lambda: hub.commit("user/name", {"theirs.txt": b"x"}))
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        model.push_to_hub("name")
    assert {*hub.repos["user/name"].files()} == {".gitattributes", "theirs.txt"}
    model.push_to_hub("name")
    assert {"theirs.txt", "model.safetensors"} <= {*hub.repos["user/name"].files()}


@pytest.mark.parametrize("match", ["POST /api/repos/create", "preupload", "info/lfs", "/commit/"])
@pytest.mark.parametrize("status", [401, 403, 413])
def test_a_refused_push_leaves_nothing_and_can_be_repeated(hub, model, match, status):
    hub.create_repo("user/name")
    hub.fail(match, status=status, message="not so", times=None)
    if match == "POST /api/repos/create" and status != 413:
        # Who may not make repositories may still write into one that is there.
        model.push_to_hub("user/name")
        return
    with pytest.raises(HfHubHTTPError) as error:
        model.push_to_hub("user/name")
    assert error.value.response.status_code == status
    assert {*hub.repos["user/name"].files()} == {".gitattributes"} and len(hub.repos["user/name"].commits) == 1
    hub.faults.clear()
    model.push_to_hub("user/name")
    assert "model.safetensors" in hub.repos["user/name"].files()


def test_a_model_that_cannot_be_saved_makes_no_repository(hub, model):
    model.config.hidden_dropout_prob = 7.0
    with pytest.raises(ValueError, match="hidden_dropout_prob"):
        model.push_to_hub("name")
    assert not hub.repos and not hub.requests


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A Hub to which models were pushed, and what a process without the package read from there and pushed itself."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = make_tokenizer(folder / "tokenizer")
    models = {auto: tiny_model(HEADS[auto], seed=number) for number, auto in enumerate(PUSHED)}
    mlm, other = models["AutoModelForMaskedLM"], tiny_model(DebertaExtForMaskedLM, seed=99)
    with LocalHub() as hub, pytest.MonkeyPatch.context() as patch:
        hub.connect(patch, folder / "home")
        for auto, model in models.items():
            model.push_to_hub(auto, tokenizer=tokenizer)
        pinned = mlm.push_to_hub("mlm", tokenizer=tokenizer).oid
        HfApi().create_tag("user/mlm", tag="v1.0")
        other.push_to_hub("mlm", revision="other")
        other.push_to_hub("mlm", create_pr=True)
        mlm.push_to_hub("secret", tokenizer=tokenizer, private=True, max_shard_size="20KB")
        hub.create_repo("user/old", OLD)
        mlm.push_to_hub("old", tokenizer=tokenizer)
        entry = hub.repos["user/mlm"].files()["modeling_deberta_ext.py"]
        newer = hub.commit("user/mlm", {"modeling_deberta_ext.py": entry + CHANGE.encode()}, title="Newer code")
        card = hub.repos["user/mlm"].files("v1.0")["README.md"].decode()
        code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
        jobs = [
            *(job(auto, f"user/{auto}", auto) for auto in PUSHED),
            job("pinned", revision=pinned), job("short", revision=pinned[:7]), job("tag", revision="v1.0"),
            job("main"), job("newer", revision=newer), job("pinned again", revision=pinned),
            job("branch", revision="other"), job("pull request", revision="refs/pr/1"), job("old", "user/old"),
            job("private", "user/secret"), job("refused", "user/secret", token=False),
            job("pushed from there", "user/mlm", revision="v1.0", push="user/again"),
            dict(name="config", kind="config", source="user/mlm", kwargs={"revision": "v1.0"}, push="user/config"),
            {"name": "tokenizer", "kind": "tokenizer", "source": "user/mlm", "text": "w7 w9 nothing"},
            {"name": "card", "kind": "card", "source": "user/mlm"},
            dict(name="card code", kind="code", show=["repo", "revision"], code=code),
        ]  # fmt: skip
        results = read_back(hub, folder / "worker", jobs)
        again = read_back(
            hub, folder / "second", [job("again", "user/again"), job("again as encoder", "user/again", "AutoModel")]
        )
        yield hub, models, other, tokenizer, results | again


@pytest.mark.parametrize("auto", PUSHED)
def test_a_model_answers_as_it_did_before_it_was_pushed(published, auto):
    _, models, _, _, results = published
    assert results[auto]["class"] == HEADS[auto].__name__ and results[auto]["missing"] == []
    assert_equal_outputs(results[auto]["answers"], answers(models[auto], auto))


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (["pinned", "short", "tag", "pinned again", "old", "private", "again", "pushed from there"], 0),
        (["main", "newer"], 1),
        (["branch", "pull request"], None),
    ],
    ids=["pinned", "newer code", "another model"],
)
def test_a_revision_runs_its_own_code_and_weights(published, names, change):
    _, models, other, _, results = published
    expected = answers(other if change is None else models["AutoModelForMaskedLM"])
    for name in names:
        assert "error" not in results[name], results[name]
        if change:
            assert equal_outputs(results[name]["answers"]["logits"], expected["logits"] + change)
        else:
            assert_equal_outputs(results[name]["answers"], expected)


def test_configuration_tokenizer_and_card_are_read_back_and_private_ones_not_without_a_token(published):
    _, _, _, tokenizer, results = published
    assert results["config"]["class"] == DebertaExtConfig.__name__ and results["config"]["config"]["hidden_size"] == 32
    assert results["config"]["auto_map"].keys() == {"AutoConfig", *HEADS}
    assert results["tokenizer"]["ids"] == tokenizer("w7 w9 nothing")["input_ids"]
    assert results["card"]["data"]["pipeline_tag"] == "fill-mask" and "million parameters" in results["card"]["text"]
    assert results["card code"] == {"printed": "", "repo": "user/mlm", "revision": "main"}
    assert results["refused"]["error"] == "OSError" and "user/secret" in results["refused"]["message"]


def test_what_a_process_without_the_package_pushes_has_all_code_and_a_card(published):
    hub, _, _, _, results = published
    for name in ("again", "config"):
        assert_code_in(hub.repos[f"user/{name}"].files())
    assert "A DeBERTa masked language model" in hub.repos["user/again"].files()["README.md"].decode()
    assert results["again as encoder"]["class"] == "DebertaExtModel" and results["again as encoder"]["missing"] == []
