"""Reads the fields of a SentencePiece model file, a protocol buffer.

The messages are declared here with the needed fields only, because `sentencepiece_model_pb2` of the
sentencepiece package does not load with TensorFlow 2.15's protobuf.

Source: sentencepiece_model.proto of https://github.com/google/sentencepiece.
"""

import functools

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

UNIGRAM, BPE, WORD, CHAR = 1, 2, 3, 4  # trainer_spec.model_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # type of a piece

# The enums are declared as int32, which is stored in the same way. Lists of: name, number in the
# file, type, default value.
_FIELDS: dict[str, list[tuple]] = {
    "SentencePiece": [
        ("piece", 1, "STRING", ""),
        ("score", 2, "FLOAT", "0"),
        ("type", 3, "INT32", str(NORMAL)),
    ],
    "TrainerSpec": [
        ("model_type", 3, "INT32", str(UNIGRAM)),
        ("treat_whitespace_as_suffix", 24, "BOOL", "false"),
        ("byte_fallback", 35, "BOOL", "false"),
    ],
    "NormalizerSpec": [
        ("name", 1, "STRING", ""),
        ("precompiled_charsmap", 2, "BYTES", ""),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ],
    "ModelProto": [
        ("pieces", 1, "SentencePiece", None),
        ("trainer_spec", 2, "TrainerSpec", None),
        ("normalizer_spec", 3, "NormalizerSpec", None),
    ],
}


def read(model_bytes: bytes):
    """Parses a SentencePiece model.

    Returns a message with `pieces` (`.piece`, `.score`, `.type`; the index is the id),
    `trainer_spec` and `normalizer_spec`. Fields that the file lacks have SentencePiece's default
    values. Raises google.protobuf.message.DecodeError if the bytes are not a protocol buffer.
    """
    return _model_proto().FromString(model_bytes)


@functools.cache
def _model_proto():
    """Returns the class of the message ModelProto."""
    # A pool and a package of its own, in case another package declares the original messages.
    package = "albert_tf.sentencepiece"
    file = descriptor_pb2.FileDescriptorProto(
        name="albert_tf/sentencepiece.proto", package=package, syntax="proto2"
    )
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind, default in fields:
            field = message.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if name == "pieces" else field.LABEL_OPTIONAL
            if default is None:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type, field.default_value = getattr(field, f"TYPE_{kind}"), default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.ModelProto"))
