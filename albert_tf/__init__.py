"""ALBERT (Lan et al., 2020) in TensorFlow 2: models, tokenizer and optimizer.

    import albert_tf

    model, tokenizer = albert_tf.from_pretrained("demo/model")
    classifier = albert_tf.AlbertForSequenceClassification(model.config, num_labels=2)
    classifier.create_variables()
    classifier.encoder.set_weights(model.encoder.get_weights())
    albert_tf.save_pretrained(model, tokenizer, "huggingface")  # in Hugging Face's format

    batch = tokenizer(["The file is opened first."], max_length=64)
    config = albert_tf.AlbertConfig.named("albert_base_v1")  # with dropout
    encoder = albert_tf.AlbertEncoder(config)  # random weights

`__all__` lists the public API. Names are imported lazily, so `import albert_tf` does not import
TensorFlow. On Python 3.12 and later, the import sets TF_USE_LEGACY_KERAS=1. It raises an
ImportError if the variable has another value, or if TensorFlow was imported without it. After the
import, `tf.keras.models.load_model` can load `.keras` files that contain these models or layers.
Before it loads .h5 files or SavedModels, also `import albert_tf.models, albert_tf.addons`.

In all docstrings, "the reference" is Google's code (google-research/ALBERT, commit cbce824), and a
"piece" is a token of the SentencePiece or WordPiece vocabulary.
"""

import importlib
import os
import sys

try:
    import absl  # noqa: F401
    import wrapt
except ModuleNotFoundError as error:
    _message = (
        f"{error}: {sys.executable} lacks packages of albert_tf: in the checkout, run "
        "`make install`, then `source .venv/bin/activate`"
    )
    if sys.argv[:1] != ["-m"]:  # as `python -m` sets it until the program is found
        raise ModuleNotFoundError(_message, name=error.name) from None
    print(f"error: {_message}", file=sys.stderr)
    sys.exit(2)

__version__ = "0.33.0"

_MODULES = {
    "AlbertConfig": "config",
    "AlbertEncoder": "encoder",
    "AlbertForAnswerableQuestionAnswering": "models",
    "AlbertForEmbedding": "models",
    "AlbertForMultipleChoice": "models",
    "AlbertForPreTraining": "models",
    "AlbertForQuestionAnswering": "models",
    "AlbertForSequenceClassification": "models",
    "AlbertForTokenClassification": "models",
    "AlbertTokenizer": "text.tokenization",
    "SentenceScorer": "scoring",
    "TextEmbedder": "scoring",
    "from_pretrained": "checkpoints.pretrained",
    "lamb": "optimization",
    "save_pretrained": "checkpoints.pretrained",
}
__all__ = sorted(_MODULES)


def _select_keras_2() -> None:
    """Makes `tf.keras` refer to Keras 2, which TensorFlow 2.16 and later load from tf-keras."""
    if sys.version_info < (3, 12):  # with TensorFlow 2.15, which contains Keras 2
        return
    wanted = os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    # TensorFlow reads the variable once, when it is imported.
    found = getattr(sys.modules.get("tensorflow"), "_tf_uses_legacy_keras", True)
    if not found or wanted not in ("1", "true", "True"):
        raise ImportError(
            "albert_tf needs Keras 2, but tf.keras is Keras 3: set the environment variable "
            "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, or import albert_tf first"
        )


# Classes that are registered in Keras as "albert_tf>CLASS". This name is used in .keras files.
_KERAS_CLASSES = """
    AdamW AlbertEncoder AlbertForAnswerableQuestionAnswering AlbertForEmbedding
    AlbertForMultipleChoice AlbertForPreTraining AlbertForQuestionAnswering
    AlbertForSequenceClassification AlbertForTokenClassification ClassificationHead Dense
    FactorizedEmbedding FeedForward Lamb LayerNorm MaskedLMHead SelfAttention SentenceOrderHead
    SpanBeamHead SpanHead TransformerBlock WarmUpPolynomialDecay
""".split()


_select_keras_2()


@wrapt.when_imported("keras" if sys.version_info < (3, 12) else "tf_keras")
def _announce_classes(keras) -> None:
    """Allows Keras to load functional models whose layer classes have not been imported yet.

    Keras rejects a layer whose class is not registered, even if the file contains its module name.
    If the class name is registered as None, Keras imports the module, which registers the class.
    """
    for name in _KERAS_CLASSES:
        keras.saving.get_custom_objects().setdefault(f"{__name__}>{name}", None)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
