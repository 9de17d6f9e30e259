"""An embedder in sentence-transformers' files, there and back; and trained as theirs."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import name_map, sentence_transformers
from albert_tf.kinds import KINDS
from pipelines.tasks.embedding import EmbeddingTask
from tests import marks
from tests.albert_tf.checkpoints.test_fine_tuned import to_hugging_face, write_model
from tests.albert_tf.checkpoints.test_name_map import convert
from tests.builders import raises_one_line

TASK = {"task": "embedding", "kind": "embedder", "pooling": "mean", "has_pairs": False}
TASK["max_seq_length"] = 40


def write_json(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_task_is_read_from_their_files(pooling, tiny_vocabulary, tmp_path):
    task = {**TASK, "pooling": pooling}
    model = write_model(tmp_path / "a", task, tiny_vocabulary)
    theirs = to_hugging_face(tmp_path)
    (theirs / "task.json").unlink()
    path = theirs / "1_Pooling/config.json"
    write_json(path, {**json.loads(path.read_text()), "include_prompt": True})
    convert(theirs, tmp_path / "b")
    assert json.loads((tmp_path / "b/task.json").read_text()) == task
    found = name_map.arrays(albert_tf.from_pretrained(tmp_path / "b")[0])
    for name, array in name_map.arrays(model).items():
        assert "pooler" in name or np.array_equal(found[name], array)


@pytest.mark.parametrize(
    ("file", "values", "error"),
    [
        ("modules.json", [{"path": "", "type": "x.Dense"}], "Normalize: remove this file to read"),
        ("modules.json", {"a": 1}, "modules.json: expected a list of parts"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling 'max', expected one of mean,"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_x": True},
            "pooling .*mode_x'",
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case or default_prompt_"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, "lacks: unset it"),
    ],
)
def test_refusals(file, values, error, tmp_path):
    sentence_transformers.write(str(tmp_path), TASK, 20)
    assert sentence_transformers.read_task(str(tmp_path), 30)["max_seq_length"] == 30
    write_json(tmp_path / file, values)
    with raises_one_line(error):
        sentence_transformers.read_task(str(tmp_path), 30)


@pytest.fixture
def ours_and_theirs(tmp_path):
    """Returns our model and tokenizer, and the same model in sentence-transformers."""

    def make(kind="wordpiece", **task):
        import sentence_transformers

        write_model(tmp_path / "a", {**TASK, **task}, marks.write_vocabulary(tmp_path, kind))
        directory = to_hugging_face(tmp_path)
        theirs = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
        return *albert_tf.from_pretrained(tmp_path / "a"), theirs

    return make


needs_packages = pytest.mark.extras("torch", "sentence_transformers")


@pytest.mark.slow
@needs_packages
@pytest.mark.parametrize("kind", marks.KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_their_vectors_are_ours(kind, pooling, ours_and_theirs, tmp_path):
    model, tokenizer, theirs = ours_and_theirs(kind, pooling=pooling)
    texts = ["", *marks.texts(5, 50, 60)]  # some are cut
    expected = albert_tf.TextEmbedder(model, tokenizer)(texts)
    np.testing.assert_allclose(theirs.encode(texts), expected, atol=1e-5)
    theirs.save(str(tmp_path / "saved"))  # in the form of their version, without a vocabulary
    for name in ("*.model", "vocab.txt", "tokenizer_config.json"):
        for path in (tmp_path / "hf").glob(name):
            shutil.copy(path, tmp_path / "saved")
    model, tokenizer = albert_tf.from_pretrained(tmp_path / "saved")
    found = albert_tf.TextEmbedder(model, tokenizer)(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@needs_packages
@pytest.mark.parametrize("form", ["pairs", "hard negatives", "single texts", "scores"])
def test_twelve_steps_are_theirs(form, ours_and_theirs):
    import torch
    from sentence_transformers.sentence_transformer import losses

    model, tokenizer, theirs = ours_and_theirs()
    ranking = losses.MultipleNegativesRankingLoss(
        theirs, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    their_loss = losses.CoSENTLoss(theirs) if form == "scores" else ranking
    columns, task = 3 if form == "hard negatives" else 2, EmbeddingTask("embedding", {})
    variables = name_map.model_variables(model)
    rows = list(name_map.variables(model.config, name_map.fine_tuned_table(KINDS["embedder"])))
    parameters = dict(theirs[0].model.named_parameters())
    theirs.eval()  # without dropout
    for step in range(12):
        texts = [marks.texts(9 * step + k, 6, 8) for k in range(columns)]
        if form == "single texts":
            texts[1] = texts[0]
        scores = np.random.default_rng(step).integers(0, 4, 6).astype(np.float32)
        features = [theirs.preprocess(column) for column in texts]
        loss = their_loss(features, torch.tensor(scores))
        theirs.zero_grad()
        loss.backward()
        numbers = np.unique(np.array(texts), return_inverse=True)[1].reshape(columns, 6).T
        labels = {"scores": scores} if form == "scores" else {"texts": numbers.astype(np.int32)}
        encoded = [tokenizer.encode_batch(column) for column in texts]
        with tf.GradientTape() as tape:
            outputs = model(batch_of(encoded, tokenizer))
            ours = tf.reduce_mean(task.losses(outputs, labels))
        # float32: torch's own loss is up to 6e-6 from float64.
        assert float(ours) == pytest.approx(loss.item(), abs=1e-5)
        gradients = dict(zip(variables, tape.gradient(ours, [*variables.values()])))
        norm, difference = 0.0, 0.0
        for row in rows:
            gradient = parameters[row.torch.removeprefix("albert.")].grad.numpy()
            gradient = gradient.T if "torch" in row.transposed else gradient
            found = tf.convert_to_tensor(gradients[row.ours]).numpy()
            norm += np.square(gradient).sum()
            difference += np.square(found - gradient).sum()
            variables[row.ours].assign_sub(0.01 * found)
            # Both have the same weights in each step: rounding would add up.
            weights = variables[row.ours].numpy()
            weights = torch.tensor(weights.T if "torch" in row.transposed else weights)
            parameters[row.torch.removeprefix("albert.")].data.copy_(weights)
        assert np.sqrt(difference / norm) < 2e-5  # measured 9e-6


def batch_of(encoded, tokenizer):
    """Returns inputs, int32 [rows, columns, L], of pieces [columns][rows]."""
    rows = [[tokenizer.cls_id, *ids[:38], tokenizer.sep_id] for row in zip(*encoded) for ids in row]
    ids = tf.ragged.constant(rows, dtype=tf.int32)
    mask = tf.ones_like(ids).to_tensor()
    shape = [-1, len(encoded), mask.shape[1]]
    return {
        "input_word_ids": tf.reshape(ids.to_tensor(), shape),
        "input_mask": tf.reshape(mask, shape),
    }
