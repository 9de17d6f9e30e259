"""Predictions of an embedder: vectors of texts, cosines of pairs, and files of vectors."""

import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf.text.tokenization import AlbertTokenizer
from pipelines import predict as predict_lib
from pipelines.tasks.embedding import EmbeddingTask
from pipelines.tasks.running import fine_tuned
from pipelines.tasks.task import create_model
from tests.builders import with_random_weights, write_json_lines, write_task_model
from tests.conftest import WORDS
from tests.pipelines.test_predict import predict, rows_of

pytestmark = pytest.mark.usefixtures("eager")
TEXTS = ["", *(" ".join(WORDS[i : 2 * i]) for i in range(1, 25)), "the sea " * 200]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory, pretrained):
    directory = tmp_path_factory.mktemp("embedder")
    config = AlbertConfig.read(str(pretrained / "albert_config.json"))
    task = EmbeddingTask("embedding", {}, {"text_pair": "second", "label": "score"})
    model = with_random_weights(create_model(task, config), scale=0.1)
    write_task_model(directory, task, model, AlbertTokenizer.load(str(pretrained)), 48)
    return directory


def test_files_of_vectors(embedder, tmp_path, monkeypatch):
    monkeypatch.setattr(fine_tuned.FineTunedRun, "rows_per_part", 10)
    path = write_json_lines(tmp_path / "in.jsonl", [{"text": text} for text in TEXTS])
    assert predict(embedder, path, tmp_path / "out.jsonl")["metrics"] == {}
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == [str(i) for i in range(len(TEXTS))]
    vectors = np.array([row["embedding"] for row in rows])
    assert vectors.shape == (len(TEXTS), 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    alone = predict_lib.load(embedder).predict(TEXTS[3:4])[0]["embedding"]
    np.testing.assert_allclose(alone, vectors[3], atol=2e-6)


def test_cosines_of_pairs(embedder, tmp_path):
    rows = [{"text": text, "b": TEXTS[i - 1], "y": i} for i, text in enumerate(TEXTS)]
    path = write_json_lines(tmp_path / "in.jsonl", rows)
    columns = {"text_pair": "b", "label": "y"}
    summary = predict(embedder, path, tmp_path / "out.jsonl", columns=columns)
    assert [*summary["metrics"]] == ["spearman", "pearson"] == [*summary["intervals"]]
    vectors = np.array([row["embedding"] for row in predict_lib.load(embedder).predict(TEXTS)])
    cosines = [row["prediction"] for row in rows_of(tmp_path / "out.jsonl")]
    np.testing.assert_allclose(cosines, (vectors * vectors[np.arange(-1, 25)]).sum(1), atol=1e-5)
