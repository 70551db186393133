# SPDX-License-Identifier: Apache-2.0
"""The page: a tab for each head of the model, and one for attention, as HTML that needs no script and no other server."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import torch

from ..analysis.attention_decomposition import attention_parts
from ..analysis.plots import readable_tokens
from ..analysis.sentence_scoring import token_replacement_probabilities
from .results import DemoModel, fill_mask, load, token_contributions, tokenize

__all__ = ["attention_html", "build_page", "classification_html", "fill_mask_html", "launch", "replaced_html"]

# Okabe and Ito's blue and vermilion, which colour-blind readers can tell apart; transparent, for light and dark pages.
BLUE, ORANGE = "0,114,178", "213,94,0"
# The sentence of the paper's figures.
TEXT = "a new store opened beside the new mall"
# A map has the square of so many cells.
MAP_TOKENS = 40
MEAN = -1
CSS = """
.gradio-container { width: 100% !important; max-width: 72rem !important; margin: 0 auto !important; }
textarea { field-sizing: content; height: auto !important; }
.dx { font-size: 1rem; line-height: 1.5; overflow-wrap: anywhere; }
.dx-columns { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); }
.dx h4 { margin: .75rem 0 .25rem; font-size: 1rem; }
.dx-bars { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr 3.5rem; gap: .25rem .75rem;
  align-items: center; }
.dx-bars i { display: block; height: .9rem; border-radius: 2px; background: rgba(0,114,178,.7); }
.dx-bars span:nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; }
.dx-text { position: relative; padding-bottom: 2rem; font-size: 1.15rem; line-height: 1.9; white-space: pre-wrap; }
.dx-text mark { color: inherit; padding: .1rem 0; border-radius: 2px; }
.dx-map { position: relative; padding-bottom: 1.9rem; overflow-x: auto; }
.dx-grid { display: grid; font-size: .75rem; line-height: 1.1; }
.dx-grid b { font-weight: normal; white-space: nowrap; }
.dx-grid .dx-key { writing-mode: vertical-rl; transform: rotate(180deg); justify-self: center; padding-top: .3rem; }
.dx-grid .dx-query { text-align: right; align-self: center; padding-right: .4rem; }
.dx-grid i { min-width: .5rem; aspect-ratio: 1; border: 1px solid rgba(128,128,128,.15); }
.dx-grid i:hover, .dx-text mark:hover { outline: 2px solid currentColor; }
.dx [data-tip]:hover::after { content: attr(data-tip); position: absolute; left: 0; bottom: 0;
  font: .95rem/1.5 system-ui, sans-serif; white-space: nowrap; }
.dx-problem { border-left: 4px solid rgb(213,94,0); padding-left: .75rem; }
"""


def _html(*parts: str) -> str:
    return f'<div class="dx">{"".join(parts)}</div>'


def _bars(rows: Iterable[tuple[str, float]], form: str = ".1%") -> str:
    cells = [
        f'<span>{escape(name)}</span><i style="width:{100 * min(max(value, 0), 1):.1f}%"></i><span>{value:{form}}</span>'
        for name, value in rows
    ]
    return f'<div class="dx-bars">{"".join(cells)}</div>'


def _marked_text(text: str, marks: Iterable[tuple[int, int, float, str]]) -> str:
    """The text with its tokens coloured. Marks are (start, end, value in [-1, 1], what is shown on hover)."""
    pieces, last = [], 0
    for start, end, value, tip in marks:
        # Without the space that belongs to the token.
        start += len(text[start:end]) - len(text[start:end].lstrip())
        colour = f"rgba({BLUE if value > 0 else ORANGE},{0.65 * abs(value):.3f})"
        pieces.append(escape(text[last:start]))
        pieces.append(f'<mark style="background:{colour}" data-tip="{escape(tip)}">{escape(text[start:end])}</mark>')
        last = end
    return f'<div class="dx-text">{"".join(pieces)}{escape(text[last:])}</div>'


def fill_mask_html(model: DemoModel, text: str) -> str:
    """Bars of the words for each mask, with EMD and without it side by side."""
    masks = fill_mask(model, text)
    parts = []
    for number, columns in enumerate(masks, start=1):
        if len(masks) > 1:
            parts.append(f"<h4>Mask {number}</h4>")
        parts.append('<div class="dx-columns">')
        parts += [f"<div><h4>{name}</h4>{_bars(words)}</div>" for name, words in columns.items()]
        parts.append("</div>")
    return _html(*parts)


def replaced_html(model: DemoModel, text: str) -> str:
    """The text, each token coloured by the probability that it was replaced, and the most suspicious words as bars."""
    text = text.strip()
    tokenize(model, text)
    tokens = token_replacement_probabilities(model.discriminator, model.tokenizer, text)
    marks = [
        (token.start, token.end, -token.probability, f"{text[token.start : token.end]}: replaced {token.probability:.1%}")
        for token in tokens
    ]
    suspects = sorted(tokens, key=lambda token: -token.probability)[:5]
    bars = _bars((text[token.start : token.end], token.probability) for token in suspects)
    return _html(_marked_text(text, marks), "<h4>Most likely replaced</h4>", bars)


def classification_html(model: DemoModel, *texts: str) -> str:
    """The labels with their probabilities, and the text, each token coloured by its contribution to the first label."""
    texts = [text.strip() for text in texts if text and text.strip()]
    scores, label, tokens = token_contributions(model, *texts)
    largest = max((abs(token.contribution) for token in tokens), default=0) or 1
    parts = ["<h4>Answer</h4>"]
    is_regression = len(scores) == 1 or model.classifier.config.problem_type == "regression"
    parts.append(_bars(sorted(scores, key=lambda score: -score[1]), ".3f" if is_regression else ".1%"))
    parts.append(f"<h4>Tokens for (blue) and against (orange) “{escape(label)}”</h4>")
    for number, text in enumerate(texts):
        marks = [
            (start, end, value / largest, f"{text[start:end].strip()}: {value:+.3f}")
            for of_text, start, end, value in tokens
            if of_text == number
        ]
        parts.append(_marked_text(text, marks))
    return _html(*parts)


def _heat_map(title: str, tokens: Sequence[str], values: torch.Tensor, largest: float, form: str) -> str:
    """A map of [N, N] values, queries are rows; the value under the pointer is shown below it."""
    cells = ["<b></b>", *(f'<b class="dx-key">{escape(token)}</b>' for token in tokens)]
    for query, row in zip(tokens, values.tolist(), strict=True):
        cells.append(f'<b class="dx-query">{escape(query)}</b>')
        for key, value in zip(tokens, row, strict=True):
            colour = f"rgba({BLUE if value > 0 else ORANGE},{abs(value) / largest:.3f})"
            cells.append(f'<i style="background:{colour}" data-tip="{escape(f"{query} → {key}: {value:{form}}")}"></i>')
    columns = f"grid-template-columns:max-content repeat({len(tokens)},minmax(.5rem,2rem))"
    grid = f'<div class="dx-grid" style="{columns}">{"".join(cells)}</div>'
    return f'<div><h4>{title}</h4><div class="dx-map">{grid}</div></div>'


def attention_html(model: DemoModel, text: str, layer: int, head: int) -> str:
    """Heat maps of the attention of a layer and head (`MEAN`: the mean of all), and of the parts of its logits."""
    encoded = tokenize(model, text, limit=MAP_TOKENS)
    inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
    maps = attention_parts(model.encoder, inputs, layer=layer).of_head(None if head == MEAN else head)
    tokens = readable_tokens(model.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist()))
    attention = maps.pop("probabilities")
    # One scale for the parts, so that they can be compared.
    largest = max(float(values.abs().max()) for values in maps.values()) or 1
    parts = [_heat_map("attention", tokens, attention, float(attention.max()), ".1%")]
    parts += [_heat_map(name, tokens, values, largest, "+.3f") for name, values in maps.items()]
    width = max(15, 4 + 0.9 * len(tokens))
    # Of four maps, all or two stand beside each other, never three.
    width = f"grid-template-columns:repeat(auto-fit,minmax(min(100%,max({width:.1f}rem,{23 if width < 16 else 34}%)),1fr))"
    return _html(f'<div class="dx-columns" style="{width}">', *parts, "</div>")


def build_page(source: str, revision: str | None = None) -> Any:
    """Load a model and make its page, a `gradio.Blocks`; `launch` serves it.

    Raises:
        ImportError: gradio is not installed.
        ValueError, OSError: as `hf_deberta_ext.demo.results.load`.
    """
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError("the demo needs gradio: pip install 'hf_deberta_ext[demo]'") from error
    model = load(source, revision)
    mask, config = model.tokenizer.mask_token, model.encoder.config

    def tab(title: str, note: str, button: str, result: Callable[..., str], texts: dict[str, str], **choices: Any) -> None:
        """Texts are {label: value}, choices the options of drop-down lists."""

        def answer(*values: Any) -> str:
            try:
                return result(model, *values)
            except ValueError as error:
                return _html(f'<p class="dx-problem">{escape(str(error))}</p>')

        with gr.Tab(title):
            gr.Markdown(note)
            fields = [gr.Textbox(value, label=label) for label, value in texts.items()]
            with gr.Row():
                fields += [
                    gr.Dropdown(options, value=options[-1][1], label=label, filterable=False)
                    for label, options in choices.items()
                ]
            run = gr.Button(button, variant="primary")
            output = gr.HTML(min_height=80)
            events = [field.submit if isinstance(field, gr.Textbox) else field.change for field in fields]
            gr.on([run.click, *events], answer, fields, output)

    with gr.Blocks(analytics_enabled=False, title=f"{model.name}: demo") as page:
        gr.Markdown(f"# {model.name}\n{config.num_hidden_layers} layers, {config.num_attention_heads} heads each")
        if model.masked is not None:
            note = f"Words for {mask}, with the Enhanced Mask Decoder (EMD) and without it."
            tab("Masks", note, "Fill in", fill_mask_html, {f"Text with {mask}": f"Paris is the {mask} of France."})
        if model.discriminator is not None:
            note = "How likely it is that each word was put in the place of another."
            tab("Replaced", note, "Look", replaced_html, {"Text": "The chef cooked the parliament in a large pot."})
        if model.classifier is not None:
            note = "The contribution of a token is by how much the log-odds of the label fall where it is masked."
            texts = {"Text": "It is a delight from beginning to end.", "Second text, of a pair": ""}
            tab("Classify", note, "Classify", classification_html, texts)
        note = (
            "Which token (row) attends to which (column), and the parts of its logits: content to content (c2c), content to "
        )
        note += "position (c2p), position to content (p2c). Values are shown below the map where the pointer is."
        layers = [(f"layer {number}", number) for number in range(config.num_hidden_layers)]
        heads = [("mean of all heads", MEAN), *((f"head {number}", number) for number in range(config.num_attention_heads))]
        tab("Attention", note, "Show", attention_html, {"Text": TEXT}, Layer=layers, Head=heads)
        if model.absent:
            gr.Markdown("\n\n".join(f"No tab for {name}: {reason}." for name, reason in model.absent.items()))
    return page


def launch(page: Any, *, host: str | None = None, port: int | None = None) -> None:
    """Serve a page until Ctrl-C, and print its address: without analytics, share links and requests to other servers.

    Args:
        host, port (*optional*): by default those of gradio's environment variables, as a Space has them, else 127.0.0.1 and
            the first free port from 7860.

    Raises:
        OSError: the port is taken.
    """
    from gradio.themes import Base

    try:
        _, address, _ = page.launch(
            server_name=host, server_port=port, share=False, quiet=True, ssr_mode=False, prevent_thread_lock=True,
            footer_links=[], theme=Base(primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
            css=CSS,
        )  # fmt: skip
    except OSError as error:
        if port is None:
            raise
        raise OSError(f"port {port} is taken: choose another --port, or give none") from error
    print(f"The page is at {address} (Ctrl-C ends it)", flush=True)
    page.block_thread()
