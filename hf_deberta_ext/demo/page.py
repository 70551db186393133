# SPDX-License-Identifier: Apache-2.0
"""Build the demo page: a tab for each head and one for attention, as HTML without scripts or requests to other servers."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import torch

from ..analysis.attention_decomposition import attention_parts
from ..analysis.explanation import EXAMPLE_TEXT
from ..analysis.influence import explain_prediction, model_inputs
from ..analysis.plots import readable_tokens
from ..analysis.plots.html import STYLE, answer_html, bars_html, colour_of, influence_html, marked_text_html
from ..analysis.sentence_scoring import token_replacement_probabilities
from .results import DemoModel, fill_mask, given_texts, load, tokenize

__all__ = ["attention_html", "build_page", "classification_html", "fill_mask_html", "launch", "replaced_html"]

# Maximum tokens of an attention map, which has N x N cells.
MAP_TOKENS = 40
# Value for the mean of all heads in the drop-down list.
MEAN = -1
CSS = """
.gradio-container { width: 100% !important; max-width: 72rem !important; margin: 0 auto !important; }
textarea { field-sizing: content; height: auto !important; }
.dx-map { position: relative; padding-bottom: 1.9rem; overflow-x: auto; }
.dx-grid { display: grid; font-size: .75rem; line-height: 1.1; }
.dx-grid b { font-weight: normal; white-space: nowrap; }
.dx-grid .dx-key { writing-mode: vertical-rl; transform: rotate(180deg); justify-self: center; padding-top: .3rem; }
.dx-grid .dx-query { text-align: right; align-self: center; padding-right: .4rem; }
.dx-grid i { min-width: .5rem; aspect-ratio: 1; border: 1px solid rgba(128,128,128,.15); }
.dx-problem { border-left: 4px solid rgb(213,94,0); padding-left: .75rem; }
"""


def _html(*parts: str) -> str:
    return f'<div class="dx">{"".join(parts)}</div>'


def fill_mask_html(model: DemoModel, text: str) -> str:
    """Show the most probable words of each mask as bars, with and without the Enhanced Mask Decoder side by side."""
    masks = fill_mask(model, text)
    parts = []
    for number, columns in enumerate(masks, start=1):
        if len(masks) > 1:
            parts.append(f"<h4>Mask {number}</h4>")
        parts.append('<div class="dx-columns">')
        for name, words in columns.items():
            parts.append(f"<div><h4>{name}</h4>{bars_html(words)}</div>")
        parts.append("</div>")
    return _html(*parts)


def replaced_html(model: DemoModel, text: str) -> str:
    """Colour each token by the probability that it was replaced, and show the five highest probabilities as bars."""
    text = text.strip()
    tokenize(model, text)
    marks, suspects = [], []
    for _, start, end, probability in token_replacement_probabilities(model.discriminator, model.tokenizer, text):
        marks.append((start, end, -probability, f"{text[start:end]}: replaced {probability:.1%}"))
        suspects.append((text[start:end], probability))
    suspects.sort(key=lambda suspect: -suspect[1])
    return _html(marked_text_html(text, marks), "<h4>Most likely replaced</h4>", bars_html(suspects[:5]))


def classification_html(model: DemoModel, *texts: str) -> str:
    """Show the labels with their probabilities, and the text with tokens coloured by contribution to the predicted label."""
    tokenize(model, *texts)
    prediction = explain_prediction(model.classifier, model.tokenizer, *given_texts(texts), gradients=False)
    return _html(answer_html(prediction), influence_html(prediction, "occlusion"))


def _heat_map(title: str, tokens: Sequence[str], values: torch.Tensor, largest: float, form: str) -> str:
    """Draw a map of [N, N] values with queries as rows; hovering over a cell shows its value below the map."""
    cells = ["<b></b>"]
    for key in tokens:
        cells.append(f'<b class="dx-key">{escape(key)}</b>')
    for query, row in zip(tokens, values.tolist(), strict=True):
        cells.append(f'<b class="dx-query">{escape(query)}</b>')
        for key, value in zip(tokens, row, strict=True):
            tip = escape(f"{query} → {key}: {value:{form}}")
            cells.append(f'<i style="{colour_of(value / largest)}" data-tip="{tip}"></i>')
    columns = f"grid-template-columns:max-content repeat({len(tokens)},minmax(.5rem,2rem))"
    grid = f'<div class="dx-grid" style="{columns}">{"".join(cells)}</div>'
    return f'<div><h4>{title}</h4><div class="dx-map">{grid}</div></div>'


def attention_html(model: DemoModel, text: str, layer: int, head: int) -> str:
    """Show heat maps for one head of a layer: the attention, and each term of the attention logits.

    If `head` is `MEAN`, the maps show the mean of all heads."""
    encoded = tokenize(model, text, limit=MAP_TOKENS)
    maps = attention_parts(model.encoder, model_inputs(encoded), layer=layer).of_head(None if head == MEAN else head)
    tokens = readable_tokens(model.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist()))
    attention = maps.pop("probabilities")
    parts = [_heat_map("attention", tokens, attention, float(attention.max()), ".1%")]
    # Use the same scale for all terms, so that they can be compared.
    largest = float(torch.stack([*maps.values()]).abs().max()) or 1
    for name, values in maps.items():
        parts.append(_heat_map(name, tokens, values, largest, "+.3f"))
    # Show the four maps in one row or in two.
    width = max(15, 4 + 0.9 * len(tokens))
    share = 23 if width < 16 else 34
    columns = f"grid-template-columns:repeat(auto-fit,minmax(min(100%,max({width:.1f}rem,{share}%)),1fr))"
    return _html(f'<div class="dx-columns" style="{columns}">', *parts, "</div>")


def build_page(source: str, revision: str | None = None) -> Any:
    """Load a model and build its page, a `gradio.Blocks` for `launch`.

    Raises:
        ImportError: if gradio is not installed.
        ValueError, OSError: see `hf_deberta_ext.demo.results.load`.
    """
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError("the demo needs gradio: pip install 'hf_deberta_ext[demo]'") from error
    model = load(source, revision)
    mask, config = model.tokenizer.mask_token, model.encoder.config

    def tab(title: str, note: str, button: str, result: Callable[..., str], texts: dict[str, str], **choices: list):
        """Add a tab with text boxes, {label: initial value}, and drop-down lists, {label: options}."""

        def answer(*values: Any) -> str:
            try:
                return result(model, *values)
            except ValueError as error:
                return _html(f'<p class="dx-problem">{escape(str(error))}</p>')

        fields, events = [], []
        with gr.Tab(title):
            gr.Markdown(note)
            for label, value in texts.items():
                fields.append(gr.Textbox(value, label=label))
                events.append(fields[-1].submit)
            with gr.Row():
                for label, options in choices.items():
                    fields.append(gr.Dropdown(options, value=options[-1][1], label=label, filterable=False))
                    events.append(fields[-1].change)
            run = gr.Button(button, variant="primary")
            output = gr.HTML(min_height=80)
            gr.on([run.click, *events], answer, fields, output)

    with gr.Blocks(analytics_enabled=False, title=f"{model.name}: demo") as page:
        gr.Markdown(f"# {model.name}\n{config.num_hidden_layers} layers, {config.num_attention_heads} heads each")
        if model.masked is not None:
            note = f"Words for {mask}, with the Enhanced Mask Decoder (EMD) and without it."
            tab("Masks", note, "Fill in", fill_mask_html, {f"Text with {mask}": f"Paris is the {mask} of France."})
        if model.discriminator is not None:
            note = "Probability that each word is a replacement of the original word."
            tab("Replaced", note, "Look", replaced_html, {"Text": "The chef cooked the parliament in a large pot."})
        if model.classifier is not None:
            note = "The contribution of a token is the decrease of the label's log-odds when the token is masked."
            texts = {"Text": "It is a delight from beginning to end.", "Second text (for pairs)": ""}
            tab("Classify", note, "Classify", classification_html, texts)
        note = (
            "Which token (row) attends to which (column), and the terms of the logits: content to content (c2c), content to "
        )
        note += "position (c2p), position to content (p2c). The value under the pointer is shown below the map."
        layers = [(f"layer {number}", number) for number in range(config.num_hidden_layers)]
        heads = [("mean of all heads", MEAN)]
        heads += [(f"head {number}", number) for number in range(config.num_attention_heads)]
        tab("Attention", note, "Show", attention_html, {"Text": EXAMPLE_TEXT}, Layer=layers, Head=heads)
        for name, reason in model.absent.items():
            gr.Markdown(f"No tab for {name}: {reason}.")
    return page


def launch(page: Any, *, host: str | None = None, port: int | None = None) -> None:
    """Serve a page until Ctrl-C, and print its address. There are no analytics, share links or requests to other servers.

    Args:
        host (`str`, *optional*), port (`int`, *optional*): default: gradio's environment variables (set in a Space), or
            127.0.0.1 and the first free port from 7860.

    Raises:
        OSError: if the port is in use.
    """
    from gradio.themes import Base

    theme = Base(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"])
    options = dict(share=False, quiet=True, ssr_mode=False, footer_links=[], theme=theme, css=STYLE + CSS)
    _, address, _ = page.launch(server_name=host, server_port=port, prevent_thread_lock=True, **options)
    print(f"Serving at {address} (press Ctrl-C to stop)", flush=True)
    page.block_thread()
