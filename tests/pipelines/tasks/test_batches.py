import numpy as np
import pytest
import tensorflow as tf

from pipelines.tasks.reading.sequences import Sequences
from pipelines.tasks.running import batches
from pipelines.tasks.running.batches import Prediction, make_batch, training_dataset, training_order
from tests.pipelines.tasks.test_classification import pieces_of
from tests.replicas import mirrored


def make_sequences(examples, per_example=1):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 90, examples * per_example)
    row_splits = np.cumsum([0, *lengths])
    pieces = rng.integers(5, 1000, row_splits[-1]).astype(np.int32)
    first_lengths = np.array([rng.integers(2, length + 1) for length in lengths], np.int32)
    labels = {"label": np.arange(examples, dtype=np.int32) * 7}
    return Sequences(pieces, row_splits, first_lengths, labels, per_example)


@pytest.mark.parametrize("per_example", [1, 3])
def test_a_batch_is_its_examples_padded(per_example):
    sequences = make_sequences(6, per_example)
    rows = np.diff(sequences.row_splits).reshape(6, per_example)
    assert sequences.lengths().tolist() == rows.max(axis=1).tolist()
    batch = make_batch(sequences, np.array([4, -1, 0, 5, 4]), 96)
    batch = {name: values.numpy() for name, values in batch.items()}
    assert batch["label"].tolist() == [28, 0, 0, 35, 28]
    assert batch["weight"].tolist() == [1, 0, 1, 1, 1]
    assert batch["example"].tolist() == [4, -1, 0, 5, 4]
    inputs = {name: values for name, values in batch.items() if name.startswith("input_")}
    assert inputs["input_mask"].shape == ((5, 96) if per_example == 1 else (5, per_example, 96))
    batch.update({name: values.reshape(-1, 96) for name, values in inputs.items()})
    rows = [example * per_example + k for example in (4, 0, 0, 5, 4) for k in range(per_example)]
    for out, row in enumerate(rows):
        pieces, first = pieces_of(sequences)[row], sequences.first_lengths[row]
        n = len(pieces)
        assert batch["input_word_ids"][out].tolist() == pieces + [0] * (96 - n)
        assert batch["input_mask"][out].tolist() == [1] * n + [0] * (96 - n)
        types = [0] * first + [1] * (n - first) + [0] * (96 - n)
        assert batch["input_type_ids"][out].tolist() == types


def batches_of(lengths, batch_size, number, start_step=0, by_length=True):
    order = training_order(lengths, batch_size, 3, start_step, by_length)
    return [batch.tolist() for batch in order.take(number).as_numpy_iterator()]


def test_a_run_goes_on_at_any_step():
    """Also where batches cross the ends of epochs."""
    lengths = np.random.default_rng(1).integers(3, 500, 77)
    whole = batches_of(lengths, 6, 37, by_length=False)
    assert batches_of(lengths, 6, 8, 29, by_length=False) == whole[29:]
    epochs = np.concatenate(whole)[: 2 * 77].reshape(2, 77)
    assert (np.sort(epochs) == range(77)).all() and (epochs[0] != epochs[1]).any()


def test_batches_of_similar_lengths():
    lengths = np.random.default_rng(1).integers(3, 500, 80)
    found = batches_of(lengths, 5, 48)  # three epochs
    assert batches_of(lengths, 5, 8, 29) == found[29:37]
    for epoch in range(3):
        assert sorted(np.concatenate(found[16 * epoch : 16 * epoch + 16])) == list(range(80))
    assert found[:16] != found[16:32]
    padded = sum(5 * lengths[batch].max() for batch in found) / (3 * lengths.sum())
    assert padded < 1.15
    # Short ones do not all come first.
    longest = [lengths[batch].max() for batch in found[:16]]
    assert longest != sorted(longest)
    # Few examples make batches of different ones.
    assert np.mean([len(set(batch)) for batch in batches_of(lengths[:40], 16, 50)]) > 14


def test_hosts_and_replicas_divide_a_batch(monkeypatch):
    sequences = make_sequences(50)
    longest = int(sequences.lengths().max())
    order = np.random.default_rng(2).permutation(48).reshape(4, 12)
    order = tf.data.Dataset.from_tensor_slices(order)
    monkeypatch.setattr(batches, "training_order", lambda *_: order)

    def batches_for(replicas, hosts, host):
        context = tf.distribute.InputContext(hosts, host, replicas)
        return iter(training_dataset(sequences, 12, 5, 2, longest, False, context))

    whole = batches_for(1, 1, 0)
    parts = [batches_for(4, 2, 0), batches_for(4, 2, 1)]
    for _ in range(2):
        expected = next(whole)
        assert expected["input_mask"].shape[1] <= longest
        found = [next(part) for part in parts for _ in range(2)]
        for name, value in expected.items():
            np.testing.assert_array_equal(tf.concat([f[name] for f in found], 0), value)
    fixed = training_dataset(sequences, 12, 5, 2, 90, True, tf.distribute.InputContext())
    assert next(iter(fixed))["input_mask"].shape == [12, 90]


class Echo(tf.keras.Model):
    traces = 0
    rows = None

    def call(self, inputs, dropout_seed=None):
        self.traces += 1
        self.rows = inputs["example"].shape[0]
        pieces = tf.cast(inputs["input_word_ids"], tf.float32)
        by_example = tf.reshape(pieces, [self.rows, -1, tf.shape(pieces)[1]])
        return {"sum": tf.reduce_sum(by_example, axis=[1, 2]), "pieces": by_example}


@pytest.mark.parametrize(("batch_size", "has_fixed_length"), [(4, False), (64, True), (1, False)])
def test_every_example_is_asked_once(batch_size, has_fixed_length):
    sequences, echo = make_sequences(23), Echo()
    longest = int(sequences.lengths().max())
    assert longest % 8, "no batch is longer than the model can take"
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    predict = Prediction(strategy, echo, batch_size, longest, has_fixed_length)
    for _ in range(2):
        outputs = predict(sequences)
        assert len(outputs) == 23
        for i, output in enumerate(outputs):
            pieces = pieces_of(sequences)[i]
            assert output["sum"] == sum(pieces)
            assert output["pieces"][0][: len(pieces)].tolist() == pieces
        lengths = [output["pieces"].shape[1] for output in outputs]
        assert max(lengths) == longest and (min(lengths) == longest) == has_fixed_length
    assert echo.traces == 1


@pytest.mark.parametrize("several_hosts", [False, True])
def test_every_example_is_asked_once_by_replicas(monkeypatch, several_hosts):
    """Several hosts gather what each has; here the replicas of one host do."""
    monkeypatch.setattr(batches, "has_several_hosts", lambda _: several_hosts)
    sequences = make_sequences(23, per_example=2)
    strategy = mirrored()
    with strategy.scope():
        model = Echo()
    outputs = Prediction(strategy, model, 6, 89, False)(sequences)
    rows = np.add.reduceat(sequences.pieces, sequences.row_splits[:-1])
    assert [output["sum"] for output in outputs] == rows.reshape(23, 2).sum(axis=1).tolist()
    assert model.rows == 3  # of six: each replica its own
    assert (len({output["pieces"].shape for output in outputs}) == 1) == several_hosts
