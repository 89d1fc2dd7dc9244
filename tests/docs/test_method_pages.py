"""Each strategy has a page, which says what its docstring and its code say."""

import re
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
DOCS = Path(__file__).parents[2] / "docs"
PARTS = (
    "In use",
    "rule",
    "code",
    "Paper",
    "State",
    "Readings",
    "Other codes",
    "experiment",
    "When to use",
)


def loaded(name):
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = loaded("method_pages")


def test_every_strategy_has_a_page():
    assert made.with_paper() - made.TEXTS.keys() == set()


def test_the_pages_are_those_that_the_script_makes():
    for file, text in made.pages().items():
        assert file.read_text("utf-8") == text, f"python docs/method_pages.py ({file.name})"


@pytest.mark.parametrize("name", list(made.TEXTS))
def test_a_page_has_its_parts(name):
    text = (DOCS / "methods" / f"{name}.md").read_text("utf-8")
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    missing = [part for part in PARTS if not any(part in each for each in headings)]
    assert not missing or (missing == ["Paper"] and name in ("LocalAdam", "LocalSGD")), missing
    assert "$$" in text
    assert (DOCS / "figures" / "methods" / f"{name}.png").is_file()


@pytest.mark.filterwarnings("ignore:fedlight. some clients count for more")
@pytest.mark.parametrize("name", list(made.TEXTS))
def test_the_call_of_a_page_trains(name):
    text = (DOCS / "methods" / f"{name}.md").read_text("utf-8")
    (block,) = re.findall("^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block == made.TEXTS[name]["call"]
    for trainer in made.trainers(name).values():
        assert made.fitted(trainer, max_rounds=2).version == 2
    assert re.search(rf"\b{name}\b", "".join(map(repr, made.trainers(name).values())))


@pytest.mark.parametrize("name", list(made.TEXTS))
def test_the_timeline_of_a_page_is_small(name):
    drawn = (DOCS / "figures" / "methods" / f"{name}.svg").read_text("utf-8")
    assert "virtual time</text>" in drawn
    assert len(drawn) < 30_000


def test_a_timeline_is_that_of_the_call(monkeypatch, tmp_path):
    kept = (made.FIGURES / "FedBuff.svg").read_text("utf-8")
    monkeypatch.setattr(made, "FIGURES", tmp_path)
    made.draw_timeline("FedBuff")
    drawn = (tmp_path / "FedBuff.svg").read_text("utf-8")
    bars = [re.findall(r'id="FillBetween|id="PolyCollection_\d+', each) for each in (drawn, kept)]
    assert bars[0] == bars[1]
    assert len(bars[0]) > 20


def test_pages_say_where_methods_differ_from_one_another():
    """FedBuff's clients do not wait; rules that divide by K start from another server rate."""
    texts = {name: (DOCS / "methods" / f"{name}.md").read_text("utf-8") for name in made.TEXTS}
    assert 'resume="on_arrival"' in texts["FedBuff"]
    assert 'resume="on_aggregation"' in texts["FedBuff"]
    assert "server_lr=5.0" in texts["AFACD"]
    assert "4 to 10 times slower" in texts["AFACD"]
    for name in made.TEXTS:
        if made.kind(name) == "aggregators":
            assert "**Client side.**" in texts[name]
            assert "**Server rate.**" in texts[name]
            assert "```bibtex" in texts[name]


def test_the_command_of_a_page_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS.parent / "recipes"))
    monkeypatch.delitem(sys.modules, "method", raising=False)
    import method  # the recipe, from the folder above

    method.main(aggregator=method.FedBuff(2), max_time=8.0, figure=tmp_path / "one.png")
    assert "reference (FedBuff): accuracy" in capsys.readouterr().out
    assert (tmp_path / "one.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("a $x_i$ b", 1),
        ("$$x \\leftarrow y$$", 1),
        ("`$x$` and 5 $ or 6 $", 0),
        ("```\n$x$\n```", 0),
    ],
)
def test_formulas_become_mathml(text, formulas):
    pytest.importorskip("latex2mathml")
    maths = loaded("maths")

    html = maths.on_page_content(f"<p>{maths.on_page_markdown(text)}</p>")
    assert html.count("<math") == formulas
    assert formulas == 0 or "$" not in re.sub("alttext=.*?>", "", html)


def test_formulas_in_docstrings_become_mathml():
    pytest.importorskip("latex2mathml")
    griffe = pytest.importorskip("griffe")
    maths = loaded("maths")
    extensions = griffe.load_extensions(maths.Formulas())
    package = griffe.load("data_partitioners", search_paths=[DOCS.parent], extensions=extensions)
    for name in ("dirichlet.DirichletPartitioner", "partition.Partition"):
        html = maths.on_page_content(package[name].docstring.value)
        assert "<math" in html
        assert "$" not in re.sub("alttext=.*?>", "", html)


@pytest.mark.parametrize(
    "tex", [r"\nosuchcommand", r"\begin{aligned} a &= b \\ c &= d \end{aligned}"]
)
def test_a_formula_that_would_be_shown_as_tex_is_an_error(tex):
    pytest.importorskip("latex2mathml")
    with pytest.raises(ValueError, match="formula can be shown"):
        loaded("maths").mathml(tex, "block")


def test_the_front_page_counts_the_pages():
    counts = Counter(map(made.kind, made.TEXTS))
    said = (
        f"{counts['aggregators']} aggregators, {counts['local_optimizers']} local optimizers, "
        f"{counts['arrivals']} families of arrivals"
    )
    assert said in (DOCS / "index.md").read_text("utf-8")
