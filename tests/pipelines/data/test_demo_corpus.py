import ast

from pipelines.data import demo_corpus
from pipelines.data.demo_corpus import prose_sentences, write_demo_corpus

DOCSTRING = """Trains the `Model` on *all* of the data.

The loss of a :class:`tf.keras.Model <keras.Model>` is summed over the
batch, see the guide and ``fit()``.

>>> model.fit(data)
The output of a doctest is no prose at all.

This paragraph comes right after the doctest::

    for step in data:
        this code is not prose but has many words in it.

Example:
  All that is indented below a heading is left out too.

Note:
  A note is kept as the prose that it is.

```python
Code between fences is left out as well here.
```

Short one. See i.e. this rest. The ``__init__`` of *two* words_here is kept as it is.

.. versionadded:: 1.13

* The first point of the list is a sentence.
* The second point of the list is another.

Args:
  data: The table of the arguments is left out of it.

Parameters
----------
x : int
    The table of the parameters is left out of it.

Notes
-----
The text right below a heading is left out.
"""


def test_prose_of_a_docstring():
    assert prose_sentences(DOCSTRING) == [
        "Trains the Model on all of the data.",
        "The loss of a tf.keras.Model is summed over the batch, see the guide and fit().",
        "See i.e. this rest.",
        "The __init__ of two words_here is kept as it is.",
    ]


def test_what_is_prose():
    for sentence, expected in (
        ('"Does it sum over the batch?"', True),
        ("Sums over the whole batch", False),  # no end
        ("sums over the whole batch.", False),  # no beginning
        ("See the page at https://example.org now.", False),
        ("Let y[i] = x[i] + b*c be z_1.", False),
        ("It is " + "very " * 200 + "long.", False),
    ):
        assert demo_corpus.is_prose(sentence) == expected


def test_docstrings_of_a_module():
    module = (
        '"""One."""\nif True:\n    class A:\n        """Two."""\n        def f(self):\n'
        '            """Three."""\n            def g(): "Four."\ntry:\n    pass\n'
        'except ValueError:\n    def h():\n        """Five."""\n        x = """No docstring."""\n'
    )
    found = [*demo_corpus.docstrings(ast.parse(module))]
    assert found == ["One.", "Two.", "Three.", "Five.", "Four."]


def write(path, *sentences):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('"""' + " ".join(sentences) + '"""\n')


def test_corpus_of_a_tree(tmp_path, capsys):
    root = tmp_path / "site-packages"
    common = "This sentence stands in every single file."
    for name in "abcde":
        own = [f"The {name} of module number {number} is here." for number in ("one", "two")]
        write(root / "package" / f"{name}.py", *own, f"And {name} ends with this.", common)
    write(root / "package" / "short.py", "Only one sentence is here, in two docstrings each.")
    with open(root / "package" / "short.py", "a") as file:
        file.write('def f():\n    """A second one is in the other docstring."""\n')
    write(root / "package" / "copy.py", *(root / "package/a.py").read_text().split('"')[3:4])
    for name in ("tests/x.py", "package/test_x.py", "package/x_test.py", "package/x_pb2.py"):
        write(root / name, *["Never to be read at all."] * 5)
    output = tmp_path / "demo" / "corpus.txt"
    topics = {"b": "The topic of the bees is here. It is long enough. Three it has in all."}
    topics["a"] = topics["b"].replace("bees", "ants")
    (root / "package" / "x.py").write_text('def broken(:\n    """Doc."""\n')
    (root / "package" / "y.py").write_text('"""nul \0 byte."""\n')
    write_demo_corpus(str(output), [root], topics)
    documents = output.read_text(encoding="utf-8").split("\n\n")
    assert [document.split()[4] for document in documents[:2]] == ["ants", "bees"]
    assert [document.split()[1] for document in documents[2:]] == [*"abcde"]
    assert [len(document.splitlines()) for document in documents] == [3, 3, 4, 4, 4, 3, 3]
    printed = capsys.readouterr().out
    assert "docstrings of 9 files" in printed and "7 documents, 24 sentences" in printed
    before = output.read_bytes()
    write_demo_corpus(str(output), [], {})
    assert "is there already" in capsys.readouterr().out
    assert output.read_bytes() == before
    assert [path.name for path in output.parent.iterdir()] == ["corpus.txt"]
