"""Maps each kind of export to the module that serves it. No other file here lists the kinds.

albert_tf/kinds.py defines the models and their outputs. To add a kind, see tests/README.md.
"""

from .modules import classification_module as classification
from .modules.pretraining_module import EmbedderModule, EncoderModule, PreTrainingModule
from .modules.question_answering_module import QuestionAnsweringModule
from .modules.serving_module import ServingModule
from .modules.token_classification_module import TokenClassifierModule

# Kind of models that were not fine-tuned, and kind that serves the encoder of any model.
PRETRAINING, ENCODER = "pretraining", "encoder"

MODULES: dict[str, type[ServingModule]] = {
    PRETRAINING: PreTrainingModule,
    ENCODER: EncoderModule,
    "embedder": EmbedderModule,
    "classifier": classification.AnswersModule,
    "regressor": classification.AnswersModule,
    "multilabel": classification.AnswersModule,
    "token_classifier": TokenClassifierModule,
    "question_answering": QuestionAnsweringModule,
    "multiple_choice": classification.MultipleChoiceModule,
}
