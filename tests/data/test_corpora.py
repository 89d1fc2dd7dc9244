"""Texts that are there without a download."""

import sys

import datasets
import pytest

from fedlight.data import django_texts, python_texts, shakespeare_texts, text_data

CATALOGUE = r"""# A comment
msgid ""
msgstr ""
"Language: de\n"

#: file.py:3
msgid "Yes"
msgstr "Ja, \"gewiss\""

#, fuzzy
msgid "No"
msgstr "Nun"

msgid "one day"
msgid_plural "%d days"
msgstr[0] "ein "
"Tag"
msgstr[1] "%d Tage"

msgid "Untranslated"
msgstr ""

#~ msgid "Old"
#~ msgstr "Alt"
"""


def windows(text, role, start=0):
    places = range(start, len(text) - 80)
    return [(role, text[i : i + 80], text[i + 80]) for i in places]


def table(folder, rows):
    names = ("character_id", "x", "y")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    datasets.Dataset.from_dict(columns).to_parquet(folder / "train-00000-of-00001.parquet")


def test_shakespeare_is_put_together_again(tmp_path):
    one = "".join(chr(97 + i % 26) for i in range(90)) + " and no more"
    two = "To be, or not to be: that is the question. " * 3
    mixed = [row for pair in zip(windows(one, "A"), windows(two, "B")) for row in pair]  # noqa: B905
    rest = windows(two, "B", start=len(windows(one, "A")))
    table(tmp_path, mixed + rest + windows("x" * 82, "A"))
    assert shakespeare_texts(tmp_path) == {"A": one + "x" * 82, "B": two}
    with pytest.raises(ValueError, match=r"split='test' is not a split of the data set, which has"):
        shakespeare_texts(tmp_path, "test")


def test_another_data_set_is_not_shakespeare():
    with pytest.raises(ValueError, match=r"'mnist-mini' has no column 'character_id'"):
        shakespeare_texts("mnist-mini")


def test_shakespeare_at_hand(fedlight_data):
    texts = shakespeare_texts(fedlight_data / "shakespeare")
    assert len(texts) > 100
    data = text_data(texts, context=64)
    assert len(data.partition) == len(texts)


def test_the_library_of_python():
    texts = python_texts(["textwrap", "json"])
    assert list(texts) == ["textwrap", "json"]
    assert b"def dedent(" in texts["textwrap"]
    assert b"def dumps(" in texts["json"]
    assert b"class JSONDecoder" in texts["json"]
    everything = python_texts()
    assert len(everything) > 100
    assert not {"test", "site-packages", "__pycache__"} & set(everything)
    assert everything["json"] == texts["json"]
    for wrong, message in ((["jsom"], "names has 'jsom', which is no module"), ("json", "a list")):
        with pytest.raises((TypeError, ValueError), match=message):
            python_texts(wrong)


@pytest.fixture
def django(tmp_path, monkeypatch):
    """A package of that name with three languages, one of them without a translation."""
    package = tmp_path / "django"
    for language, catalogue in (
        ("de", CATALOGUE),
        ("fr", 'msgid "Yes"\nmsgstr "Oui"\n'),
        ("en", 'msgid "Yes"\nmsgstr ""\n'),
    ):
        folder = package / "conf" / "locale" / language / "LC_MESSAGES"
        folder.mkdir(parents=True)
        (folder / "django.po").write_text(catalogue, encoding="utf-8")
    contrib = package / "contrib" / "auth" / "locale" / "de" / "LC_MESSAGES"
    contrib.mkdir(parents=True)
    (contrib / "django.po").write_text('msgid "User"\nmsgstr "Wärter"\n', encoding="utf-8")
    (package / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "django", raising=False)


@pytest.mark.usefixtures("django")
def test_the_translations_of_django():
    assert django_texts() == {"de": 'Ja, "gewiss"\nein Tag\n%d Tage\nWärter\n', "fr": "Oui\n"}
    assert list(django_texts(["fr"])) == ["fr"]
    for wrong, message in ((["en"], r"'en', which .*it has \['de', 'fr'\]"), ("de", "a list")):
        with pytest.raises((TypeError, ValueError), match=message):
            django_texts(wrong)


def test_without_django(monkeypatch):
    monkeypatch.setattr("fedlight.data.corpora.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install django"):
        django_texts()
