# SPDX-License-Identifier: Apache-2.0
"""Figures: a readable file with the numbers in it; no global state changes, and errors name the cause."""

import sys
import warnings
from dataclasses import replace

import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from hf_deberta_ext.analysis import plots
from hf_deberta_ext.analysis.attention_decomposition import AttentionParts, PositionProfile
from hf_deberta_ext.analysis.influence import Prediction, TokenInfluence
from hf_deberta_ext.analysis.plots.figure import _report_missing, fonts_for
from hf_deberta_ext.analysis.sentence_scoring import TokenScore

HISTORY = [
    {"step": 0, "eval_loss": 3.0, "eval_accuracy": 0.1},
    {"step": 10, "loss": 2.5, "learning_rate": 0.1},
    {"step": 20, "loss": 1.5},
    {"step": 20, "eval_loss": 1.75, "eval_accuracy": 0.5},
    {"step": 20, "train_runtime": 1.0, "train_loss": 2.0},
]


@pytest.fixture
def drawn(monkeypatch):
    """Draw and save every figure; a matplotlib warning, such as for a missing glyph, is an error."""
    from matplotlib.figure import Figure

    seen, savefig = [], Figure.savefig

    def keep(figure, *args, **kwargs):
        seen.append(figure)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return seen


@pytest.fixture
def curves(drawn, tmp_path):
    """Return curves(histories, panels=None, ...): the axes of plot_curves."""

    def draw(histories, panels=None, **options):
        plots.plot_curves(histories, tmp_path / "curves.png", panels=panels, **options)
        return drawn[-1].axes

    return draw


def labels_of(texts):
    return [text.get_text() for text in texts]


def legend_of(axes):
    return labels_of(axes.get_legend().get_texts())


def test_curves_are_what_was_logged_and_the_settings_are_left_alone(tmp_path, drawn):
    import matplotlib

    settings, pyplot_is_loaded = dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules
    assert plots.plot_curves({"run": HISTORY}, tmp_path / "new" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    (axes,) = drawn[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {"training loss": [[10, 2.5], [20, 1.5]], "held-out loss": [[0, 3.0], [20, 1.75]]}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert dict(matplotlib.rcParams) == settings and ("matplotlib.pyplot" in sys.modules) == pyplot_is_loaded


def test_panels_choose_runs_metrics_and_baselines_and_a_run_that_diverged_is_named(curves, drawn):
    panels = [("All", ["a", "b"], ["loss", "eval_loss"]), ("Accuracy", ["b"], ["eval_accuracy"])]
    baselines = {"eval_accuracy": {"majority class": 0.25}}
    diverged = [*HISTORY[:3], {"step": 30, "diverged": 1.0}, {"step": 40, "diverged": 1.0}]
    first, second = curves({"a": HISTORY, "b": diverged}, panels, baselines=baselines)
    assert legend_of(first) == ["a, training loss", "a, held-out loss", "b, training loss", "b, held-out loss (3)"]
    assert legend_of(second) == ["held-out accuracy (0.1)", "majority class (0.25)"]
    assert [*second.lines[1].get_ydata()] == [0.25, 0.25] and second.get_ylabel() == "accuracy"
    assert (first.get_title(), second.get_title()) == ("All", "Accuracy")
    assert drawn[0].get_suptitle() == "b diverged at step 30"


def test_single_evaluations_are_points_side_by_side_and_shares_have_an_axis_from_0_to_1(curves):
    """Previously, they were lines across, of an F1 of 0 on an axis from -0.04 to 0.04."""
    history = [{"step": 1, "loss": 2.0}, {"step": 3, "loss": 1.0}]
    history += [{"step": 3, "eval_loss": 1.5, "eval_macro_f1": 0.0, "eval_recall": 0.0, "eval_pearson": 0.0}]
    metrics = [["loss", "eval_loss"], ["eval_macro_f1", "eval_recall"], ["eval_pearson"], ["eval_loss"]]
    loss, score, pearson, single = curves({"run": history}, [("", ["run"], names) for names in metrics])
    assert legend_of(loss) == ["training loss", "held-out loss (1.5)"]
    assert loss.lines[1].get_xdata().tolist() == [3] and loss.lines[1].get_marker() == "o"
    assert [line.get_xydata().tolist() for line in score.lines] == [[[0, 0.0]], [[1, 0.0]]]
    assert [line.get_marker() for line in score.lines] == ["o", "s"] and [*score.get_xticks()] == []
    assert (score.get_xlabel(), score.get_ylabel()) == ("after 3 steps", "macro f1, recall")
    assert legend_of(score) == ["held-out macro f1 (0)", "held-out recall (0)"]
    assert score.get_ylim() == (0, 1) and pearson.get_ylim()[0] < 0 and single.get_ylim()[0] < 1.5 < single.get_ylim()[1]


def test_the_evaluation_of_the_best_model_that_was_restored_is_left_out(curves):
    """Previously, it was drawn as a jump at the last step, although it belongs to another model."""
    scores = [{"step": step, "eval_loss": loss} for step, loss in ((1, 1.0), (2, 0.5), (3, 0.75))]
    end, restored = {"step": 3, "train_runtime": 1.0}, {"step": 3, "eval_loss": 0.5, "eval_runtime": 0.1}
    for history in ([*scores, end, restored], [*scores[:2], end, scores[2]]):
        (axes,) = curves({"run": history}, [("", ["run"], ["eval_loss"])])
        assert axes.lines[0].get_xydata().tolist() == [[1, 1.0], [2, 0.5], [3, 0.75]]


def test_log_scale_is_for_the_panels_of_its_metrics_and_has_plain_numbers(curves):
    names = ("eval_mlm_perplexity", "eval_mlm_accuracy")
    history = [{"step": step, names[0]: value, names[1]: 0.1 * step} for step, value in ((1, 2000.0), (2, 30.0))]
    perplexity, accuracy = curves({"run": history}, [("", ["run"], [name]) for name in names], log_scale=names[:1])
    assert (perplexity.get_yscale(), accuracy.get_yscale()) == ("log", "linear")
    assert {"50", "100", "1000"} <= {*labels_of(perplexity.get_yticklabels(which="both"))}


def test_embedding_similarity_has_a_bar_for_each_value_and_prints_it(tmp_path, drawn):
    similarities = {"NES": {"generator": 0.3, "discriminator": -0.02}, "ES": {"discriminator": 0.25}}
    plots.plot_embedding_similarity(similarities, tmp_path / "similarity.png")
    plots.plot_embedding_similarity({"MLM": {"generator": 0.3}}, tmp_path / "of_one_kind.png")
    axes, of_one_kind = (figure.axes[0] for figure in drawn)
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {"generator": [0.3], "discriminator": [-0.02, 0.25]}
    assert {*labels_of(axes.texts)} == {"0.300", "-0.020", "0.250"}
    assert labels_of(axes.get_xticklabels()) == ["NES", "ES"]
    assert [bars.get_label() for bars in of_one_kind.containers] == ["generator"]


def test_comparison_has_every_seed_the_mean_and_its_spread(tmp_path, drawn):
    scores = {"GDES": [0.7, 0.8, 0.9], "MLM": [0.6]}
    plots.plot_comparison(scores, tmp_path / "scores.png", label="accuracy", baselines={"majority class": 0.5})
    (axes,) = drawn[0].axes
    seeds = [line.get_ydata() for line in axes.lines if line.get_marker() == "o"]
    assert [[*values] for values in seeds] == [[0.7, 0.8, 0.9], [0.6]]
    (segment,) = axes.containers[0][2][0].get_segments()
    assert segment[:, 1] == pytest.approx([0.7, 0.9])
    assert labels_of(axes.texts) == ["0.8", "0.6"] and axes.get_ylabel() == "accuracy"
    assert [line.get_ydata()[0] for line in axes.lines if line.get_label().startswith("majority class")] == [0.5]


def parts_of(N=4, H=2, terms=("c2p", "p2c")):
    """Return random parts with matching probabilities."""
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(H, N, N, generator=generator) for name in ("c2c", *terms)}
    return AttentionParts(layer=5, terms=tuple(terms), probabilities=sum(values.values()).softmax(-1), **values)


TOKENS = ["[CLS]", "▁a", "▁new$", "[SEP]"]


def maps(figure):
    return {axes.get_title(): axes.images[0] for axes in figure.axes if axes.get_visible() and axes.get_title()}


@pytest.mark.parametrize("head", [None, 1])
def test_attention_is_the_map_and_its_parts(head, tmp_path, drawn):
    parts = parts_of()
    plots.plot_attention(parts, TOKENS, tmp_path / "attention.png", head=head)
    figure = drawn[0]
    assert figure.get_suptitle() == f"layer 5, {'mean of 2 heads' if head is None else 'head 1'}"
    expected = {"attention": parts.probabilities, "content to content, c2c": parts.c2c}
    expected |= {"content to position, c2p": parts.c2p, "position to content, p2c": parts.p2c}
    expected = {name: values.mean(0) if head is None else values[head] for name, values in expected.items()}
    shown = maps(figure)
    assert [*shown] == [*expected]
    for name, values in expected.items():
        assert torch.equal(torch.tensor(shown[name].get_array()), values), name
    # One scale for all parts, centred at zero.
    limit = max(values.abs().max().item() for name, values in expected.items() if name != "attention")
    attention, *others = shown.values()
    assert [image.get_clim() for image in others] == [pytest.approx((-limit, limit))] * 3
    assert attention.get_clim() == (0, pytest.approx(expected["attention"].max().item()))
    assert {"attention probability", "part of the logit"} <= {axes.get_ylabel() for axes in figure.axes}
    for terms in ((), ("c2p",), ("c2p", "p2c", "p2p")):
        plots.plot_attention(parts_of(terms=terms), TOKENS, tmp_path / "attention.png")
        assert [name.split(", ")[-1] for name in maps(drawn[-1])] == ["attention", "c2c", *terms]
    # Readable tokens at the outer edges.
    lower_left = figure.axes[2]
    for labels in (lower_left.get_xticklabels(), lower_left.get_yticklabels()):
        assert labels_of(labels) == ["[CLS]", "a", "new$", "[SEP]"]


def test_position_profile_has_a_panel_for_each_head_on_one_scale(tmp_path, drawn):
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(6, 7, generator=generator) for name in ("c2p", "p2c")}
    profile = PositionProfile(layer=5, distances=torch.arange(-3, 4), total=sum(values.values()), **values)
    of_one_term = PositionProfile(layer=5, distances=torch.arange(-3, 4), total=values["p2c"], p2c=values["p2c"])
    plots.plot_position_profile(profile, tmp_path / "profile.png")
    plots.plot_position_profile(of_one_term, tmp_path / "of_one_term.png", heads=[2])
    figure, other = drawn
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == [f"head {head}" for head in range(6)]
    assert len({axes.get_ylim() for axes in panels}) == 1
    for head, axes in enumerate(panels):
        lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
        assert [*lines] == ["c2p", "p2c", "total"] and len({line.get_color() for line in lines.values()}) == 3
        for name, line in lines.items():
            assert line.get_xdata().tolist() == [-3, -2, -1, 0, 1, 2, 3]
            assert torch.equal(torch.tensor(line.get_ydata()), getattr(profile, name)[head])
    # With one term there is no total.
    (axes,) = other.axes
    assert axes.get_title() == "head 2" and torch.equal(torch.tensor(axes.lines[2].get_ydata()), of_one_term.p2c[2])
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == ["p2c"]


def test_readable_tokens():
    for tokens, expected in (
        ("[CLS] ▁a side ▁ [SEP]", "[CLS] a side ␣ [SEP]"),
        ("A Ġnew Ġ Ċ", "A new ␣ ␣"),
        # An é of two bytes, and only its first byte.
        ("[CLS] Ġcaf Ã© Ã", "[CLS] caf é Ã"),
        ("café naïve", "café naïve"),
    ):
        assert plots.readable_tokens(tokens.split()) == expected.split()


def test_replacement_probabilities_colour_each_token_and_print_its_value(tmp_path, drawn):
    pairs = [("▁a", 0.0), ("▁be", 0.25), ("side", 1.0), ("▁$x$", 0.5)]
    plots.plot_replacement_probabilities([TokenScore(token, None, None, p) for token, p in pairs], tmp_path / "tokens.png")
    axes = drawn[0].axes[0]
    assert labels_of(axes.texts) == ["a", "0.00", "be", "0.25", "side", "1.00", "$x$", "0.50"]
    brightness = [sum(cell.get_facecolor()[:3]) for cell in axes.patches]
    assert [brightness[i] for i in (0, 1, 3, 2)] == sorted(brightness, reverse=True) and len({*brightness}) == 4


def test_influence_colours_each_token_of_a_pair_once_for_each_method(tmp_path, drawn):
    values = [("▁a", 0, 0.5, 0.25), ("b", 0, -1.0, 0.0), ("▁$c$", 1, 0.0, -0.5)]
    tokens = [TokenInfluence(token, number, 0, 1, occlusion, share) for token, number, share, occlusion in values]
    prediction = Prediction(["ab", "$c$"], [("$yes$", 0.75), ("no", 0.25)], "$yes$", False, 2.0, 1.0, tokens)
    plots.plot_influence(prediction, tmp_path / "influence.png")
    plots.plot_influence(replace(prediction, is_regression=True), tmp_path / "influence.png")
    gradients, occlusion = drawn[0].axes
    assert (gradients.get_title("left"), occlusion.get_title("left")) == ("integrated gradients", "occlusion")
    assert labels_of(gradients.texts) == ["a", "+0.50", "b", "-1.00", "$c$", "+0.00"]
    assert labels_of(occlusion.texts)[1::2] == ["+0.25", "+0.00", "-0.50"]
    assert drawn[0].get_suptitle() == "$yes$: probability 0.750, and influence on its log-odds"
    assert drawn[1].get_suptitle() == "score 0.750, and influence on it"
    # Purple for the label, orange against it, white at zero; the second text begins a row.
    (red, _, blue, _), against, zero = (patch.get_facecolor() for patch in gradients.patches)
    assert blue > red and against[0] > against[2] and min(zero[:3]) > 0.95
    assert [patch.get_y() for patch in gradients.patches] == [0, 0, 1]


@pytest.fixture
def font_with(tmp_path, monkeypatch):
    """font_with(letters): install a font of these letters, until the end of the test."""
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    fonts_for.cache_clear()

    def install(letters):
        names = [".notdef", *(f"uni{ord(letter):04X}" for letter in letters)]
        builder = FontBuilder(1000)
        builder.setupGlyphOrder(names)
        builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
        pen = TTGlyphPen(None)
        pen.moveTo((0, 0))
        pen.lineTo((0, 500))
        pen.lineTo((500, 500))
        pen.closePath()
        builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
        builder.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
        builder.setupHorizontalHeader(ascent=800, descent=-200)
        builder.setupNameTable({"familyName": "Test Script", "styleName": "Regular"})
        builder.setupOS2()
        builder.setupPost()
        builder.save(tmp_path / "font.ttf")
        font_manager.fontManager.addfont(tmp_path / "font.ttf")

    yield install
    fonts_for.cache_clear()


# Letters of a script that has hardly any font: it is not installed where the tests run.
LETTERS = "\U00010330\U00010331"


def test_letters_of_another_script_are_drawn_with_an_installed_font_that_has_them(font_with, tmp_path, drawn, capsys):
    """They were boxes, without a word, in labels of axes, for instance."""
    font_with(LETTERS)
    plots.plot_comparison({LETTERS: [0.5]}, tmp_path / "scores.png", label="accuracy")
    (label,) = drawn[0].axes[0].get_xticklabels()
    assert label.get_fontfamily()[-1] == "Test Script" and capsys.readouterr().err == ""


def test_where_no_font_has_the_letters_a_package_is_named_once(font_with, tmp_path, capsys):
    _report_missing.cache_clear()
    for name in (LETTERS, LETTERS[:1]):
        plots.plot_comparison({name: [0.5]}, [tmp_path / "scores.png", tmp_path / "scores.svg"], label="accuracy")
    assert capsys.readouterr().err == "figures show boxes for letters that no installed font has; install fonts-noto-cjk\n"


def test_what_cannot_be_drawn_is_named_and_nothing_is_written(tmp_path):
    for plot, values, message in (
        (plots.plot_curves, {"a": [{"step": 1, "eval_accuracy": 0.5}]}, "expected one of the metrics loss"),
        (plots.plot_replacement_probabilities, [], "the text has no tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            plot(values, tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
