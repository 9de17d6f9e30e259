"""The kinds of exports, one row each: the module that serves a kind, with its signatures.

No other file of this folder names them. For the fine-tuned ones, albert_tf/kinds.py has how their
models are made, and which answer in one graph, as TFLite and ONNX do. README.md has the steps that
add a kind.
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

# Of a model that was not fine-tuned, and of the encoder of any model.
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
