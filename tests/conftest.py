"""Fixtures of every test: small data made here, and the data beside the project where it lies."""

import gc
import importlib.metadata
import importlib.util
import os
import random
import shutil
import signal
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Eleven tries of a request to gs:// as ever, but in milliseconds instead of three minutes.
# TensorFlow reads both when it is imported: a fixture would be too late for forked programs.
os.environ["GCS_RETRY_CONFIG_INIT_DELAY_TIME_US"] = "100"
os.environ["GCS_RETRY_CONFIG_MAX_DELAY_TIME_US"] = "1000"
# scikit-learn's threads wait for each other in busy loops, beside another worker of pytest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

import albert_tf  # noqa: F401  before TensorFlow: it selects Keras 2

# What imports TensorFlow is imported where it is used: the process that hands out the files to the
# workers needs none.
WORDS = (
    "the quick brown fox jumps over a lazy dog while seven small birds sing in old green trees "
    "and every river runs down to some distant sea under bright summer skies where children play "
    "with wooden boats until evening comes again bringing quiet stars lanterns stories songs sleep"
).split()
# At the end of a run a long file would keep one worker busy and the other idle.
LONGEST = ("tests/test_end_to_end.py", "tests/export/", "tests/pipelines/training/")
MAX_CPU_SECONDS = 30  # a default test may take 5 s; a slow machine, and other work, need more
FILE_ORDER_SEED = os.environ.get("FILE_ORDER_SEED")
# The same examples each time. `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile("same examples", derandomize=True)
hypothesis.settings.load_profile("same examples")


def pytest_configure():
    """A shell starts `make test &` with Ctrl-C ignored, which programs of tests would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item):
    """Lets -k select the tests marked extras by the packages that they need."""
    for marker in item.iter_markers("extras"):
        item.extra_keyword_matches.update(marker.args)


def pytest_collection_modifyitems(items):
    """Puts the longest files first, or files in the order that FILE_ORDER_SEED draws."""
    if FILE_ORDER_SEED:
        files = sorted({item.path for item in items})
        random.Random(FILE_ORDER_SEED).shuffle(files)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])
    else:
        items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish():
    """Spares the garbage collector what was imported: a tenth of the CPU time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Seeds what a test and its fixtures draw: the weights of a model made without a seed, say."""
    for marker in item.iter_markers("extras"):
        missing = [name for name in marker.args if not importlib.util.find_spec(name)]
        if missing:
            pytest.skip(f"needs {' and '.join(missing)}: make test-extras")
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fails a default test that takes too long."""
    began = time.process_time()
    result = yield
    seconds = time.process_time() - began
    is_default = not {"slow", "extras"} & {marker.name for marker in item.iter_markers()}
    if is_default and seconds > MAX_CPU_SECONDS:
        pytest.fail(f"{seconds:.1f} s of CPU, expected {MAX_CPU_SECONDS}: mark it slow")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Makes a skip a failure where NO_SKIPS is set, as `make test-extras` does.

    Tests marked `shared` may skip: this repository does not distribute what they read. A failure of
    a test marked `extras` shows the versions of the packages that it needs.
    """
    report = yield
    if report.failed:
        names = [name for marker in item.iter_markers("extras") for name in marker.args]
        found = [f"{name} {importlib.metadata.version(name)}" for name in names]
        report.sections.append(("packages", ", ".join(found)))
    if report.skipped and "NO_SKIPS" in os.environ and not item.get_closest_marker("shared"):
        report.outcome = "failed"
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives a worker whole files, and one worker all files of export/: they share an export."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            path = super()._split_scope(nodeid)
            return "tests/export" if path.startswith("tests/export/") else path

    config.option.loadscopereorder = False
    return FileScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def two_logical_cpus():
    """Two devices for the tests of replicas, on any machine."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(scope="session", autouse=True)
def seeds_keep_tokenizers():
    """Lets a test set a seed without harm to the in-graph tokenizers of the others.

    tf.random.set_seed clears TensorFlow's kernel cache. Each in-graph SentencePiece model lives in
    that cache. Without the clearing, stateful random operations continue their streams: a test that
    sets a seed and expects the same stateful draws again runs in a process of its own
    (jobs.run_code does not have this fixture).
    """
    from tensorflow.python.eager import context

    def set_global_seed(self, seed):
        self._seed, self._rng = seed, random.Random(seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context.Context, "_set_global_seed", set_global_seed)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory of reference data beside the project."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not (path / "data").is_dir():
        pytest.skip("the reference data ../shared is not beside this checkout")
    return path


@pytest.fixture(scope="session")
def nasty(tmp_path_factory) -> Path:
    """A directory of 39 awkward files, of which INDEX.tsv says what each is, and of two names."""
    from tests import nasty_files

    directory = tmp_path_factory.mktemp("nasty")
    nasty_files.write_all(directory)
    return directory


def make_text(num_documents: int, seed: int = 0) -> str:
    """Returns documents of made-up sentences: one sentence a line, a blank line between."""
    rng = random.Random(seed)
    documents = []
    for _ in range(num_documents):
        sentences = [
            " ".join(rng.choices(WORDS, k=rng.randint(3, 17))).capitalize() + rng.choice(".?!")
            for _ in range(rng.randint(2, 23))
        ]
        documents.append("\n".join(sentences))
    return "\n\n".join(documents) + "\n"


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory) -> Path:
    """A file of 60 documents in the one-sentence-per-line form."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(60), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_vocabulary(tmp_path_factory, tiny_corpus) -> Path:
    """A SentencePiece model of some 160 pieces, ALBERT's control pieces among them."""
    from tests import builders, vocabularies

    def write(directory):
        vocabularies.train(
            directory / "tiny",
            tiny_corpus.read_text(encoding="utf-8").splitlines(),
            vocab_size=211,
            model_type="unigram",
            pad_piece="<pad>",
            unk_piece="<unk>",
            user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
        )

    # Made once: the file holds its own path, so each process would have other bytes.
    return builders.once(tmp_path_factory, "vocabulary", write) / "tiny.model"


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A corpus, its vocabulary and its records."""
    from tests import builders

    made = builders.once(tmp_path_factory, "work", builders.write_work)
    # Tests put their runs beside what is made once.
    return shutil.copytree(made, tmp_path_factory.mktemp("work"), dirs_exist_ok=True)


@pytest.fixture
def in_this_process():
    """Runs the units of a record job one after the other: starting Beam takes longer."""
    from tests import builders

    with builders.units_in_this_process():
        yield


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A directory of train.tsv, dev.tsv and test.tsv: two texts, and whether they name a river."""
    from tests import builders

    return builders.once(tmp_path_factory, "table", builders.write_table)


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory, tiny_vocabulary):
    """A model directory with random weights."""
    from tests import builders

    write = builders.write_pretrained
    return builders.once(tmp_path_factory, "pretrained", lambda path: write(path, tiny_vocabulary))


@pytest.fixture(scope="session")
def tuned(tmp_path_factory, table, pretrained):
    """A directory of two finished seeds with random weights."""
    from tests import builders

    write = builders.write_tuned
    return builders.once(tmp_path_factory, "tuned", lambda path: write(path, table, pretrained))


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An object store in memory, which gs:// means in the programs that a test starts."""
    from tests.object_store import ObjectStore

    with ObjectStore(tmp_path) as store:
        for name, value in store.settings().items():
            monkeypatch.setenv(name, value)
        yield store
