"""TensorFlow 2.15, and 2.21 with Keras 2 from tf-keras: what differs where they are imported."""

import os
import subprocess
import sys

import pytest

import albert_tf
from albert_tf import optimization
from albert_tf.storage.errors import UserError
from tests.jobs import PROJECT

HAS_KERAS_3 = sys.version_info >= (3, 12)
MESSAGE = (
    "ImportError: albert_tf needs Keras 2, but tf.keras is Keras 3: set the environment variable "
    "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, or import albert_tf first"
)


def python(*lines, **variables):
    """Runs lines without the variables that this process has set."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=PROJECT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not HAS_KERAS_3, reason="TensorFlow 2.15 has no Keras 3")
def test_keras_2_is_needed():
    done = python("import tensorflow, albert_tf.models")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == MESSAGE
    # TensorFlow reads the variable once.
    done = python(
        "import os, sys, types",
        "sys.modules['tensorflow'] = types.SimpleNamespace(_tf_uses_legacy_keras=False)",
        "os.environ['TF_USE_LEGACY_KERAS'] = '1'",
        "import pipelines",
    )
    assert done.stderr.splitlines()[-1] == MESSAGE
    done = python("import albert_tf", TF_USE_LEGACY_KERAS="0")
    assert done.stderr.splitlines()[-1] == MESSAGE
    done = python("import tensorflow, albert_tf", "albert_tf.lamb(0.1)", TF_USE_LEGACY_KERAS="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "program"), [("pipelines", "pretrain"), ("export", "export_saved_model")]
)
def test_programs_select_keras_2_before_they_import_tensorflow(package, program):
    done = python("import os, sys", f"import {package}", "print(sorted(sys.modules))")
    assert "'albert_tf'" in done.stdout, done.stderr
    assert "'tensorflow'" not in done.stdout
    if HAS_KERAS_3:
        done = python(f"import {package}.{program}")
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(HAS_KERAS_3, reason="tensorflow-addons has no wheel for this Python")
def test_without_addons_the_command_that_installs_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_addons", None)
    monkeypatch.delitem(sys.modules, "albert_tf.addons", raising=False)
    monkeypatch.delattr(albert_tf, "addons", raising=False)
    with pytest.raises(UserError, match=r"-m pip install tensorflow-addons==0\.23\.0$"):
        optimization.lamb(0.1)


@pytest.mark.slow
def test_layers_are_announced_when_keras_is_imported():
    """Also where its import failed before."""
    keras = "tf_keras" if HAS_KERAS_3 else "keras"
    done = python(
        "import sys, albert_tf",
        f"sys.modules['{keras}.saving'] = None",
        f"try: import {keras}",
        "except ImportError: print('failed')",
        f"del sys.modules['{keras}.saving']",
        f"import {keras}",
        f"print('albert_tf>SpanHead' in {keras}.saving.get_custom_objects())",
    )
    assert done.stdout.split() == ["failed", "True"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(HAS_KERAS_3, reason="TensorFlow 2.21 logs whatever the level is")
def test_programs_start_without_a_word():
    done = python("import pipelines, tensorflow as tf; tf.constant(1.0) + 1.0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
