"""ALBERT (Lan et al., 2020) on TensorFlow 2: the model, its tokenizer and its optimizer.

    import albert_tf

    model, tokenizer = albert_tf.from_pretrained("demo/model")
    classifier = albert_tf.AlbertForSequenceClassification(model.config, num_labels=2)
    classifier.create_variables()
    classifier.encoder.set_weights(model.encoder.get_weights())

The names of `__all__` are the declared API. Each is imported when it is first used, so that
`import albert_tf` does not import TensorFlow.
"""

import importlib

__version__ = "0.2.0"

_MODULES = {
    "AlbertConfig": "config",
    "AlbertEncoder": "encoder",
    "AlbertForAnswerableQuestionAnswering": "models",
    "AlbertForMultipleChoice": "models",
    "AlbertForPreTraining": "models",
    "AlbertForQuestionAnswering": "models",
    "AlbertForSequenceClassification": "models",
    "AlbertTokenizer": "tokenization",
    "from_pretrained": "checkpoints.pretrained",
    "lamb": "optimization",
    "save_pretrained": "checkpoints.pretrained",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
