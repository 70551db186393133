# SPDX-License-Identifier: Apache-2.0
"""Curves, similarities and comparisons: a readable file comes out, nothing global changes, and mistakes are named."""

import builtins
import struct
import sys

import pytest

pytest.importorskip("matplotlib")

from hf_deberta_ext.plots import plot_comparison, plot_curves, plot_embedding_similarity

HISTORY = [
    {"step": 0, "eval_loss": 3.0, "eval_accuracy": 0.1},
    {"step": 10, "loss": 2.5, "learning_rate": 0.1},
    {"step": 20, "loss": 1.5},
    {"step": 20, "eval_loss": 1.75, "eval_accuracy": 0.5},
    {"step": 20, "train_runtime": 1.0, "train_loss": 2.0},
]


@pytest.fixture
def drawn_axes(monkeypatch):
    """The axes of every figure that is saved."""
    from matplotlib.figure import Figure

    seen, savefig = [], Figure.savefig

    def keep(figure, *args, **kwargs):
        seen.extend(figure.axes)
        return savefig(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return seen


def test_plot_curves_writes_a_png_of_sensible_size(tmp_path):
    path = plot_curves({"run": HISTORY}, tmp_path / "new" / "curves.png")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and 10_000 < len(data) < 300_000
    width, height = struct.unpack(">II", data[16:24])
    assert 600 <= width <= 1200 and 400 <= height <= 800


def test_plot_curves_writes_svg_by_the_ending(tmp_path):
    assert "<svg" in plot_curves({"run": HISTORY}, tmp_path / "curves.svg").read_text(encoding="utf-8")[:1000]


def test_plot_curves_draws_what_was_logged(tmp_path, drawn_axes):
    plot_curves({"run": HISTORY}, tmp_path / "curves.png")
    (axes,) = drawn_axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {"training loss": [[10, 2.5], [20, 1.5]], "held-out loss": [[0, 3.0], [20, 1.75]]}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")


def test_plot_curves_panels_choose_runs_and_metrics(tmp_path, drawn_axes):
    panels = [("All", ["a", "b"], ["loss", "eval_loss"]), ("Accuracy", ["b"], ["eval_accuracy"])]
    plot_curves({"a": HISTORY, "b": HISTORY[:3]}, tmp_path / "curves.png", panels=panels)
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn_axes]
    assert labels == [
        ["a, training loss", "a, held-out loss", "b, training loss", "b, held-out loss"],
        ["held-out accuracy"],
    ]
    assert [axes.get_title() for axes in drawn_axes] == ["All", "Accuracy"]
    first, second = (drawn_axes[0].lines[i].get_color() for i in (0, 2))
    assert first != second
    assert drawn_axes[1].get_ylabel() == "held-out accuracy"


def test_plot_curves_leaves_pyplot_and_the_settings_alone(tmp_path):
    import matplotlib

    settings = dict(matplotlib.rcParams)
    loaded = "matplotlib.pyplot" in sys.modules
    plot_curves({"run": HISTORY}, tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == settings
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_plot_curves_names_an_unknown_run(tmp_path):
    with pytest.raises(ValueError, match="no history named 'b'; there are 'a'"):
        plot_curves({"a": HISTORY}, tmp_path / "curves.png", panels=[("", ["b"], ["loss"])])


def test_plot_curves_refuses_an_empty_panel(tmp_path):
    with pytest.raises(ValueError, match="none of 'a' logged any of loss"):
        plot_curves({"a": [{"step": 1, "eval_accuracy": 0.5}]}, tmp_path / "curves.png")


def test_plot_curves_names_the_extra_where_matplotlib_is_missing(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(ImportError, match=r"hf_deberta_ext\[train\]"):
        plot_curves({"run": HISTORY}, tmp_path / "curves.png")


def test_log_scale_is_for_the_panels_of_its_metrics_and_has_plain_numbers(tmp_path, drawn_axes):
    names = ("eval_mlm_perplexity", "eval_mlm_accuracy")
    history = [{"step": step, names[0]: value, names[1]: 0.1 * step} for step, value in ((1, 2000.0), (2, 30.0))]
    panels = [("", ["run"], [name]) for name in names]
    plot_curves({"run": history}, tmp_path / "curves.png", panels=panels, log_scale=names[:1])
    perplexity, accuracy = drawn_axes
    assert (perplexity.get_yscale(), accuracy.get_yscale()) == ("log", "linear")
    assert (perplexity.get_ylabel(), accuracy.get_ylabel()) == ("held-out perplexity", "held-out accuracy")
    assert {"50", "100", "1000"} <= {label.get_text() for label in perplexity.get_yticklabels()}


RTD_METRICS = [
    "generator_loss", "discriminator_loss", "replaced_share", "discriminator_precision", "discriminator_recall",
    "eval_discriminator_precision", "eval_discriminator_recall",
    "eval_generator_similarity", "eval_discriminator_similarity",
]  # fmt: skip
RTD_HISTORY = [{"step": step, **{metric: 0.1 * step for metric in RTD_METRICS}} for step in (1, 2)]


@pytest.mark.parametrize(
    "metrics, y_label, legend",
    [
        (["generator_loss"], "loss", ["training loss"]),
        (["generator_loss", "discriminator_loss"], "loss", ["generator loss", "discriminator loss"]),
        (
            [f"{kind}discriminator_{name}" for kind in ("", "eval_") for name in ("precision", "recall")],
            "precision, recall",
            ["precision", "recall", "held-out precision", "held-out recall"],
        ),
        (
            ["eval_generator_similarity", "eval_discriminator_similarity"],
            "average cosine similarity",
            ["generator", "discriminator"],
        ),
        (["replaced_share"], "replaced share", ["replaced share"]),
    ],
    ids=["generator", "losses", "precision_recall", "similarity", "share"],
)
def test_plot_curves_names_the_metrics_of_replaced_token_detection(metrics, y_label, legend, tmp_path, drawn_axes):
    plot_curves({"GDES": RTD_HISTORY}, tmp_path / "curves.png", panels=[("", ["GDES"], metrics)])
    (axes,) = drawn_axes
    assert axes.get_ylabel() == y_label
    assert [line.get_label() for line in axes.lines] == legend


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_plot_curves_tells_every_curve_of_a_panel_from_the_others(names, tmp_path, drawn_axes):
    plot_curves({name: RTD_HISTORY for name in names}, tmp_path / "curves.png", panels=[("", names, RTD_METRICS[:3])])
    plot_curves({name: RTD_HISTORY for name in names}, tmp_path / "curves.png", panels=[("", names, RTD_METRICS[3:])])
    for axes in drawn_axes:
        looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines]
        assert len({*looks}) == len(looks) == len({line.get_label() for line in axes.lines}) >= 3


SIMILARITIES = {"NES": {"generator": 0.3, "discriminator": -0.02}, "ES": {"discriminator": 0.25}}


def test_plot_embedding_similarity_draws_a_bar_for_each_value_and_prints_it(tmp_path, drawn_axes):
    path = plot_embedding_similarity(SIMILARITIES, tmp_path / "new" / "similarity.png")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and 10_000 < len(data) < 300_000
    (axes,) = drawn_axes
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {"generator": [0.3], "discriminator": [-0.02, 0.25]}
    assert {text.get_text() for text in axes.texts} == {"0.300", "-0.020", "0.250"}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["NES", "ES"]
    # A run with one table has its bar in the middle of its place.
    bar = axes.containers[1][1]
    assert bar.get_x() + bar.get_width() / 2 == pytest.approx(1)
    colours = {bars.get_label(): bars[0].get_facecolor() for bars in axes.containers}
    assert colours["generator"] != colours["discriminator"]


def test_plot_embedding_similarity_of_one_kind_names_that_kind_alone(tmp_path, drawn_axes):
    path = plot_embedding_similarity({"MLM": {"generator": 0.3}}, tmp_path / "similarity.svg")
    assert "<svg" in path.read_text(encoding="utf-8")[:1000]
    assert [bars.get_label() for bars in drawn_axes[0].containers] == ["generator"]


@pytest.mark.parametrize(
    "similarities, message",
    [
        ({}, "nothing to draw"),
        ({"ES": {}}, "'ES' needs a value for 'generator' or 'discriminator', got nothing"),
        ({"ES": {"delta": 0.1}}, "got 'delta'"),
        ({"ES": {"generator": float("nan")}}, r"the generator's similarity of 'ES' must be in \[-1, 1\], got nan"),
        ({"ES": {"generator": 7.0}}, "got 7.0"),
    ],
)
def test_plot_embedding_similarity_names_what_it_cannot_draw(similarities, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plot_embedding_similarity(similarities, tmp_path / "similarity.png")


def test_plot_comparison_draws_every_seed_the_mean_and_its_spread(tmp_path, drawn_axes):
    scores = {"GDES": [0.7, 0.8, 0.9], "MLM": [0.6]}
    plot_comparison(scores, tmp_path / "scores.png", label="accuracy", baselines={"majority class": 0.5})
    (axes,) = drawn_axes
    seeds = [line.get_ydata() for line in axes.lines if line.get_marker() == "o"]
    assert [[*values] for values in seeds] == [[0.7, 0.8, 0.9], [0.6]]
    (segment,) = axes.containers[0][2][0].get_segments()
    assert segment[:, 1] == pytest.approx([0.7, 0.9])
    assert [text.get_text() for text in axes.texts] == ["0.8", "0.6"]
    assert axes.get_ylabel() == "accuracy"
    assert [line.get_ydata()[0] for line in axes.lines if line.get_label().startswith("majority class")] == [0.5]


@pytest.mark.parametrize(
    "scores, message",
    [({}, "nothing to draw"), ({"a": []}, "'a' needs finite scores"), ({"a": [1.0, float("inf")]}, "got .*inf")],
)
def test_plot_comparison_names_what_it_cannot_draw(scores, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        plot_comparison(scores, tmp_path / "scores.png", label="accuracy")
