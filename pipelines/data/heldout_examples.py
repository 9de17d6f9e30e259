"""Samples held-out examples for evaluation during training."""

import functools
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from albert_tf.storage.errors import UserError
from albert_tf.text.tokenization import AlbertTokenizer
from .examples import ExampleOptions
from .order_baselines import BASELINES, order_baselines
from .pretraining_dataset import Source, evaluation_dataset, evaluation_options


def heldout_examples(
    sources: Sequence[Source],
    options: ExampleOptions,
    tokenizer: AlbertTokenizer,
    batch_size: int,
    num_examples: int,
) -> tuple[Callable[[tf.distribute.InputContext], tf.data.Dataset], dict[str, float]]:
    """Returns a function that creates a dataset of held-out examples, and baseline accuracies.

    Each source contributes in proportion to its number of held-out examples. Its share of
    `num_examples` is rounded up. `options` are the training options. `batch_size` is the number of
    rows over all replicas.

    The function maps an input context to a dataset of batches (see evaluation_dataset). The
    accuracies of each baseline of order_baselines on each kind of pair have keys such as
    `inside_overlap_accuracy`. Raises a UserError if no source has held-out records.
    """
    options = evaluation_options(
        [source.manifest for source in sources], options.max_seq_length, options.sentence_objective
    )
    total = sum(source.manifest.splits["heldout"].examples for source in sources)
    if not total:
        raise UserError(
            "--eval_steps: there are no held-out records; write some with --heldout_fraction of "
            "pipelines.create_pretraining_data (static examples have none: omit --eval_steps, and "
            "evaluate files that were indexed apart by pipelines.evaluate --split=train)"
        )
    parts, found = [], []
    for source in sources:
        if examples := source.manifest.splits["heldout"].examples:
            count = math.ceil(num_examples * examples / total)
            where = source.record_dir, "heldout", options, tokenizer
            parts.append(functools.partial(evaluation_dataset, *where, batch_size, count))
            if options.objective.has_label:
                found.append(order_baselines(*where, count))

    def heldout(context):
        datasets = [part(context=context) for part in parts]
        return functools.reduce(lambda one, other: one.concatenate(other), datasets)

    # If any source has openings, the "pairs" of sources without openings are counted as "inside".
    if any("openings" in of_source for of_source in found):
        found = [{"inside" if k == "pairs" else k: v for k, v in f.items()} for f in found]
    known = {}
    for kind in dict.fromkeys(kind for of_source in found for kind in of_source):
        for name in BASELINES:
            counts = [of_source[kind][name] for of_source in found if kind in of_source]
            correct, pairs = map(sum, zip(*counts))
            known[f"{kind}_{name}_accuracy"] = correct / pairs
    return heldout, known
