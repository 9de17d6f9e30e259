"""What the programs that `jobs.run` forks need neither import nor compute anew."""

import unicodedata

import matplotlib.backends.backend_agg  # noqa: F401
import tensorflow_text  # noqa: F401

from albert_tf.text.characters import character_class
from pipelines import finetune, pretrain  # noqa: F401

for test in (str.isspace, unicodedata.combining):
    character_class(test)  # looks at a million characters, and is cached
