"""Base class of the vocabularies: pieces, special pieces, and how text is prepared."""

from typing import ClassVar

from albert_tf.storage.errors import UserError
from albert_tf.text.settings import TextSettings


class Vocabulary:
    """Pieces of a model. It can be pickled and copied, and then needs no file.

    `path` is for error messages, `model_bytes` the content of the file.

    Attributes:
      pieces: texts of all pieces, by id.
      special: texts of padding, unknown, [CLS], [SEP] and [MASK].
      special_ids: their ids.

    Raises a UserError if the content is not a vocabulary of this type.
    """

    file_name: ClassVar[str]  # in a model directory
    special: ClassVar[tuple[str, ...]]
    hint: ClassVar[str]  # what to do if a special piece is missing

    def __init__(self, path: str, model_bytes: bytes, settings: TextSettings):
        self.path, self.model_bytes, self.settings = path, model_bytes, settings
        self.pieces = self._read()
        if missing := [piece for piece in self.special if piece not in self.pieces]:
            raise UserError(f"the vocabulary {path!r} lacks {', '.join(missing)}: {self.hint}")
        self.special_ids = tuple(map(self.pieces.index, self.special))

    def __reduce__(self):
        return type(self), (self.path, self.model_bytes, self.settings)

    @property
    def prepares(self) -> TextSettings:
        """How text is prepared before the model of the vocabulary reads it."""
        return self.settings

    def _read(self) -> list[str]:
        """Returns the pieces in `model_bytes`."""
        raise NotImplementedError
