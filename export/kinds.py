"""The kinds of exports, one row each: the module that serves a kind, with its signatures.

No other file of this folder names the kinds. albert_tf/kinds.py defines the models of fine-tuned
kinds, and which kinds TFLite and ONNX can answer in one graph. README.md lists the steps to add a
kind.
"""

from __future__ import annotations

from .modules.classification_module import (
    ClassifierModule,
    MultiLabelModule,
    MultipleChoiceModule,
    RegressorModule,
)
from .modules.pretraining_module import EncoderModule, PreTrainingModule
from .modules.question_answering_module import QuestionAnsweringModule
from .modules.serving_module import ServingModule
from .modules.token_classification_module import TokenClassifierModule

# Kinds of a model that was not fine-tuned, and of the encoder of any model.
PRETRAINING, ENCODER = "pretraining", "encoder"

MODULES: dict[str, type[ServingModule]] = {
    PRETRAINING: PreTrainingModule,
    ENCODER: EncoderModule,
    "classifier": ClassifierModule,
    "regressor": RegressorModule,
    "multilabel": MultiLabelModule,
    "token_classifier": TokenClassifierModule,
    "question_answering": QuestionAnsweringModule,
    "multiple_choice": MultipleChoiceModule,
}
