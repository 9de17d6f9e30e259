"""Imports point one way, heavy packages have one door each, and nothing works at import."""

import ast
import functools
import graphlib
import re

from tests.jobs import PROJECT, run_code

PACKAGES = ("albert_tf", "pipelines", "export")
FILES = sorted(path for package in PACKAGES for path in (PROJECT / package).rglob("*.py"))

# A module may import the modules of its own layer's list only. The longest matching prefix counts.
MAY_IMPORT = {
    "albert_tf": "",
    "albert_tf.storage": "albert_tf.storage",
    "albert_tf.config": "albert_tf.storage",
    "albert_tf.layers": "albert_tf.layers albert_tf.config",
    "albert_tf.encoder": "albert_tf.layers albert_tf.config albert_tf.storage",
    "albert_tf.heads": "albert_tf.layers albert_tf.config",
    "albert_tf.models": (
        "albert_tf.encoder albert_tf.heads albert_tf.layers albert_tf.config albert_tf.answering "
        "albert_tf.storage"
    ),
    "albert_tf.answering": "albert_tf.answering",
    "albert_tf.kinds": "albert_tf.answering albert_tf.models albert_tf.config",
    "albert_tf.metrics": "albert_tf.losses",
    "albert_tf.optimization": "albert_tf.addons albert_tf.storage",
    "albert_tf.addons": "albert_tf.keras_lamb albert_tf.storage",
    "albert_tf.text": "albert_tf.text albert_tf.storage",
    "albert_tf.scoring": "albert_tf.answering albert_tf.models albert_tf.text albert_tf.storage",
    "albert_tf.checkpoints": (
        "albert_tf.checkpoints albert_tf.kinds albert_tf.models albert_tf.encoder "
        "albert_tf.config albert_tf.text albert_tf.storage"
    ),
    "albert_tf.jobs": "albert_tf",  # nothing else in albert_tf imports it
    "pipelines.data": "pipelines.data albert_tf",
    "pipelines.training": "pipelines.training albert_tf",
    "pipelines.tasks": "pipelines.tasks pipelines.training pipelines.data.text_files albert_tf",
    "pipelines.tasks.task": "pipelines.tasks.reading albert_tf",
    "pipelines.tasks.reading": "pipelines.tasks.reading pipelines.data.text_files albert_tf",
    "pipelines.tasks.scoring": (
        "pipelines.tasks.scoring pipelines.tasks.reading pipelines.training.metrics_log albert_tf"
    ),
    "pipelines": "pipelines.data pipelines.training pipelines.tasks albert_tf",
    "export": "export albert_tf",
    "export.modules": (
        "export.modules export.batches export.checks export.preprocessor export.signatures "
        "albert_tf"
    ),
    "export.serving": "export.serving albert_tf",
}
# Heavy or fragile packages and the only files that may import them.
DOORS = {
    "tensorflow_addons": {"albert_tf/addons.py"},
    "tensorflow_text": {"albert_tf/text/in_graph.py", "export/verify.py"},
    "tensorflow_hub": {"albert_tf/checkpoints/hub.py"},
    "apache_beam": {"pipelines/data/beam_job.py"},
    "pyarrow": {"albert_tf/storage/parquet.py"},
    "matplotlib": {"albert_tf/jobs/pictures.py"},
    "transformers": set(),
    "huggingface_hub": {"albert_tf/checkpoints/hub.py"},
    "onnx": {"export/to_onnx.py"},
    "onnxruntime": {"export/to_onnx.py"},
    "openvino": {"export/openvino_graph.py"},
    "openvino_tokenizers": {"export/openvino_graph.py"},
    "torch": set(),
}


@functools.cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path):
    package = path.relative_to(PROJECT).parent.parts
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def module_name(path):
    return ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


def is_within(module, prefix):
    return module == prefix or module.startswith(prefix + ".")


def test_imports_point_one_way():
    assert len(FILES) > 100
    for path in FILES:
        name = module_name(path)
        layer = max((p for p in MAY_IMPORT if is_within(name, p)), key=len)
        for imported in imports(path):
            if imported.split(".")[0] in (*PACKAGES, "tests"):
                allowed = any(is_within(imported, prefix) for prefix in MAY_IMPORT[layer].split())
                assert allowed, f"{name} imports {imported}"


def test_no_imports_go_round_in_a_circle():
    names = {module_name(path) for path in FILES}
    imported = {}
    for path in FILES:
        found = (i if i in names else i.rpartition(".")[0] for i in imports(path))
        imported[module_name(path)] = {i for i in found if i in names and i not in PACKAGES}
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError


def test_pipelines_and_export_import_their_own_modules_relatively():
    """In the wheel they are albert_tf.pipelines and albert_tf.export."""
    absolute = re.compile(r"^\s*(?:from|import) (?:pipelines|export)\b", re.MULTILINE)
    for path in FILES:
        assert not absolute.search(path.read_text(encoding="utf-8")), path


def test_heavy_packages_have_one_door():
    users = {(p, str(f.relative_to(PROJECT))) for f in FILES for i in imports(f) for p in DOORS
             if is_within(i, p)}  # fmt: skip
    assert users <= {(package, file) for package, files in DOORS.items() for file in files}


def test_no_dataset_calls_python():
    """On a host of a pod it would wait for ever: tests/test_remote_training.py."""
    names = {"from_generator", "py_function", "numpy_function"}
    for path in FILES:
        assert not names & {n.attr for n in nodes(path) if isinstance(n, ast.Attribute)}, path


# The process that is forked has imported some of them, and tensorflow_text.
IMPORT_ALL = """
import importlib, sys
for name in list(sys.modules):
    if name.partition(".")[0] in ("albert_tf", "pipelines", "export", "tensorflow_text"):
        del sys.modules[name]
for name in sys.argv[1:]:
    importlib.import_module(name)
from tensorflow.python.eager import context
assert context.context()._context_handle is None, "TensorFlow was started"
assert not {"tensorflow_addons", "tensorflow_text"} & sys.modules.keys()
"""


def test_nothing_works_at_import():
    """All modules import, without TensorFlow having made a device or a tensor."""
    names = [module_name(path) for path in FILES]
    names.remove("albert_tf.addons")  # a door that is opened when an optimizer is asked for
    names.remove("export.openvino_graph")  # needs an extra
    run_code(IMPORT_ALL, *names)


def test_tests_name_their_extras_by_the_marker():
    # Other skips would escape `make test-extras`.
    paths = (PROJECT / "tests").rglob("test_*.py")
    own = [path.stem for path in paths if re.search(r"importorskip\(", path.read_text("utf-8"))]
    assert not own


def test_extras_promise_no_version_older_than_the_tested_one():
    text = (PROJECT / "pyproject.toml").read_text("utf-8")
    promised = re.findall(r"^(?:hub|onnx|openvino) = \[(.*)\]$", text, re.MULTILINE)
    bounds = re.findall(r"([\w-]+)>=([\d.]+)", " ".join(promised))
    tested = re.findall(
        r"^([\w-]+)==([\d.]+)", (PROJECT / ".ci/extras.txt").read_text(), re.MULTILINE
    )
    assert len(bounds) == 7 and {*bounds} <= {*tested}


MAX_LINES, MAX_PARAMETERS = 60, 8


def test_sizes_of_functions():
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                of = node.args
                found = [*of.posonlyargs, *of.args, *of.kwonlyargs, of.vararg, of.kwarg]
                names = {argument.arg for argument in found if argument} - {"self", "cls"}
                lines = node.end_lineno - node.lineno + 1  # with the docstring
                assert lines <= MAX_LINES and len(names) <= MAX_PARAMETERS, (path, node.name)
