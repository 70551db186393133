# SPDX-License-Identifier: Apache-2.0
"""Test the page in a browser: every tab shows the model's numbers, at two widths."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from browser import chromium, requested_hosts
from tiny_constants import random_weights
from tiny_models import TINY, save_tokenizer

from hf_deberta_ext import DebertaExtConfig, DebertaExtForPreTraining, DebertaExtForSequenceClassification
from hf_deberta_ext.commands import main
from hf_deberta_ext.demo.page import attention_html, classification_html, replaced_html
from hf_deberta_ext.demo.results import fill_mask, load

pytest.importorskip("gradio", reason="gradio is not installed: pip install 'hf_deberta_ext[demo]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TEXT = "w7 w8 w9 w10"
SECONDS = 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write the folders of a joint model and of a classifier."""
    places = {}
    for model_class, fields in (
        (DebertaExtForPreTraining, dict(special_token_ids=[0, 1, 2, 3, 4])),
        (DebertaExtForSequenceClassification, {}),
    ):
        places[model_class.__name__] = folder = tmp_path_factory.mktemp("model")
        model = random_weights(model_class(DebertaExtConfig(**TINY | fields)))
        model.tie_weights()
        model.save_pretrained(folder)
        save_tokenizer(folder)
    return places


@contextlib.contextmanager
def served(command, folder, environment):
    """Serve a model and return its address; all external connections go to a proxy, which must not receive any."""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        variables |= dict(http_proxy=address, https_proxy=address, no_proxy="127.0.0.1,localhost", OMP_NUM_THREADS="1")
        options = dict(cwd=folder, env=variables | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        process = subprocess.Popen(command, **options)
        watch = threading.Timer(240, process.kill)
        watch.start()
        printed = []
        try:
            for line in process.stdout:
                printed.append(line)
                if found := re.match(r"Serving at (http://127\.0\.0\.1:\d+)/", line):
                    yield found[1], "".join(printed)
                    break
            else:
                pytest.fail(f"no address was printed: {''.join(printed)}")
        finally:
            watch.cancel()
            process.kill()
            process.wait()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


class Page:
    """Steps of a user: choose a tab, type, click, read."""

    def __init__(self, session, address, tabs):
        self.session = session
        session.get(address)
        self.wait(lambda: [tab.text for tab in self.visible("button[role=tab]")] == tabs)

    def wait(self, condition):
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        ignored = (StaleElementReferenceException,)
        return WebDriverWait(self.session, SECONDS, ignored_exceptions=ignored).until(lambda _: condition())

    def visible(self, selector):
        return [element for element in self.session.find_elements("css selector", selector) if element.is_displayed()]

    def ask(self, tab, *texts):
        """Return the HTML of the answer."""
        next(button for button in self.visible("button[role=tab]") if button.text == tab).click()
        fields = self.wait(lambda: self.visible("textarea"))
        for field, text in zip(fields, texts, strict=True):
            field.clear()
            field.send_keys(text)
        before = {element.id for element in self.visible(".dx > *")}
        self.visible("button.primary")[0].click()
        self.wait(lambda: (now := {element.id for element in self.visible(".dx > *")}) and now != before)
        assert self.session.execute_script("return document.documentElement.scrollWidth <= innerWidth"), f"{tab} overflows"
        return self.visible(".dx")[0]

    def hover(self, element):
        """Return the text that is shown when hovering over an element."""
        from selenium.webdriver import ActionChains

        self.session.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.session).move_to_element(element).perform()
        return self.session.execute_script("return getComputedStyle(arguments[0], '::after').content", element).strip('"')


def tips(html):
    return re.findall(r'data-tip="([^"]*)"', html)


def command(folder):
    return [sys.executable, "-m", "hf_deberta_ext", "demo", str(folder)]


ENVIRONMENT = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("width", [1280, 400])
def test_every_tab_of_a_joint_model_answers_in_a_browser(width, folders, tmp_path):
    folder = folders["DebertaExtForPreTraining"]
    model = load(str(folder))
    with chromium(tmp_path / "profile", width) as session, served(command(folder), tmp_path, ENVIRONMENT) as (address, _):
        page = Page(session, address, ["Masks", "Replaced", "Attention"])
        assert (
            "No tab for classification: the checkpoint has no text classification head"
            in session.find_element("tag name", "body").text
        )

        words = page.ask("Masks", "w7 [MASK] w9").text.splitlines()
        (columns,) = fill_mask(model, "w7 [MASK] w9")
        expected = [[name, *(part for word, p in best for part in (word, f"{p:.1%}"))] for name, best in columns.items()]
        assert words == [part for column in expected for part in column]
        assert "The text must contain [MASK]" in page.ask("Masks", TEXT).text

        answer = page.ask("Replaced", TEXT)
        marks = answer.find_elements("tag name", "mark")
        assert [page.hover(mark) for mark in marks] == tips(replaced_html(model, TEXT))

        cells = page.ask("Attention", TEXT).find_elements("css selector", "i[data-tip]")
        expected = tips(attention_html(model, TEXT, TINY["num_hidden_layers"] - 1, TINY["num_attention_heads"] - 1))
        assert [cell.get_attribute("data-tip") for cell in cells] == expected
        assert page.hover(cells[40]) == expected[40]
        assert requested_hosts(session) == {"127.0.0.1"}
        severe = [entry for entry in session.get_log("browser") if entry["level"] == "SEVERE"]
        assert severe == []


def test_a_classifier_answers_with_the_contribution_of_each_token(folders, tmp_path):
    folder = folders["DebertaExtForSequenceClassification"]
    with chromium(tmp_path / "profile", 1280) as session, served(command(folder), tmp_path, ENVIRONMENT) as (address, _):
        page = Page(session, address, ["Classify", "Attention"])
        marks = page.ask("Classify", TEXT, "w11").find_elements("tag name", "mark")
        assert [page.hover(mark) for mark in marks] == tips(classification_html(load(str(folder)), TEXT, "w11"))


def test_a_port_that_is_taken_is_an_error(folders, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        folder = str(folders["DebertaExtForSequenceClassification"])
        assert main(["demo", folder, "--port", port]) == 2
    assert f"deberta-ext demo: error: Cannot find empty port in range: {port}-{port}" in capsys.readouterr().err
