import sysconfig

from pipelines.data import demo_corpus


def write(path, *sentences):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('"""' + " ".join(sentences) + '"""\n')


def test_corpus_of_a_tree(tmp_path, capsys, monkeypatch):
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
    (root / "package" / "x.py").write_text('def broken(:\n    """Doc."""\n')
    (root / "package" / "y.py").write_text('"""nul \0 byte."""\n')
    topics = {"b": "The topic of the bees is here. It is long enough. Three it has in all."}
    topics["a"] = topics["b"].replace("bees", "ants")
    monkeypatch.setattr(demo_corpus, "topics", topics)
    paths = dict.fromkeys(("stdlib", "purelib", "platlib"), str(root))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    output = tmp_path / "demo" / "corpus.txt"
    for message in ("7 documents, 24 sentences", "is there already"):
        demo_corpus.write_demo_corpus(str(output))
        assert message in capsys.readouterr().out
    documents = output.read_text(encoding="utf-8").split("\n\n")
    assert [document.split()[4] for document in documents[:2]] == ["ants", "bees"]
    assert [document.split()[1] for document in documents[2:]] == [*"abcde"]
    assert [len(document.splitlines()) for document in documents] == [3, 3, 4, 4, 4, 3, 3]
