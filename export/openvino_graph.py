"""Adds tokenization and labels to an OpenVINO model of piece ids.

OpenVINO Model Server contains all operations used, including the ones from openvino_tokenizers.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino
import sentencepiece
from openvino import opset15 as ops
from openvino_tokenizers import _get_factory

from albert_tf.text import sentencepiece_proto
from albert_tf.text.packing import FEATURES
from albert_tf.text.sentence_pieces import SentencePieceVocabulary
from albert_tf.text.wordpiece import CONTINUATION, LONGEST_WORD, WordPieceVocabulary
from .modules.serving_module import ServingModule

_Vocabulary = SentencePieceVocabulary | WordPieceVocabulary
# A capital sigma at the end of a word, which Python lower-cases differently.
_LAST_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\K\x{3a3}(?!\p{Case_Ignorable}*\p{Cased})"


def answering(model: openvino.Model) -> Callable[[Mapping[str, Sequence[bytes]]], dict]:
    """Returns a function from texts, by input, to outputs. All but int8 is computed in float32."""
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def answer(texts: Mapping[str, Sequence[bytes]]) -> dict[str, np.ndarray]:
        found = compiled([np.array(texts[field.any_name], bytes) for field in compiled.inputs])
        outputs = {field.any_name: values for field, values in found.items()}
        if "label" in outputs:  # as bytes, like TensorFlow's
            outputs["label"] = np.array([label.encode() for label in outputs["label"]], object)
        return outputs

    return answer


def with_texts(module: ServingModule, model: openvino.Model) -> openvino.Model:
    """Returns a model of texts, string [batch]. `model`, of piece ids, becomes a part of it."""
    names = ["text", "text_pair"][: 1 + bool(module.served.task.get("has_pairs"))]
    texts = [ops.parameter([-1], openvino.Type.string) for _ in names]
    packed = dict(zip(FEATURES, _pack(module, texts)))
    for parameter in model.get_parameters():
        ids = packed[parameter.output(0).any_name]
        for user in parameter.output(0).get_target_inputs():
            user.replace_source_output(ids.output(0))
    outputs = {result.output(0).any_name: result.input_value(0) for result in model.get_results()}
    for node in model.get_ops():  # compilation merges nodes, and would merge their names
        for output in node.outputs():
            output.tensor.set_names(set())
    if "sequence_output" in outputs:
        mean = _mean(outputs.pop("sequence_output"), packed["input_mask"])
        outputs["mean_pooled_output"] = mean.output(0)
    if "label" in module.signatures["serving_default"].outputs:
        best = _best(outputs["probabilities"], module.served.task["labels"])
        outputs["label"] = best.output(0)
    whole = openvino.Model([*outputs.values()], texts, "albert")
    for field, name in zip([*whole.inputs, *whole.outputs], [*names, *outputs]):
        field.tensor.set_names({name})
    return whole


def _mean(outputs, mask):
    """Averages outputs, float32 [b, L, H], over positions with mask 1, to [b, H]."""
    weights = ops.unsqueeze(ops.convert(mask, "f32"), 2)
    total = ops.reduce_sum(ops.multiply(outputs, weights), 1)
    return ops.divide(total, ops.reduce_sum(weights, 1))


def _best(probabilities, labels: Sequence[str]):
    """Returns the most probable label of each row, string [b]."""
    best = ops.topk(probabilities, 1, 1, "max", "index").output(1)
    return ops.string_tensor_pack(*_op("VocabDecoder", best, *_unpacked(labels))[2:])


def _pack(module: ServingModule, texts: list) -> list:
    """Tokenizes and packs texts. Returns ids, mask and segments, int64 [b, L].

    Source: Packer.truncate_and_pack.
    """
    tokenizer = module.served.tokenizer
    lengths, pieces = _tokenize(tokenizer.vocabulary, ops.concat(texts, 0))
    begins = ops.subtract(ops.cum_sum(lengths, 0), lengths)
    sizes = ops.concat([ops.shape_of(text) for text in texts], 0)
    begins, lengths = (ops.variadic_split(x, 0, sizes).outputs() for x in (begins, lengths))
    room: Any = np.int32(module.max_seq_length - 1 - len(texts))
    if len(texts) > 1:
        free = ops.maximum(ops.subtract(room, lengths[1]), np.int32((room + 1) // 2))
        lengths[0] = ops.minimum(lengths[0], free, "none")  # as many pairs as texts
        room = ops.subtract(room, lengths[0])
    lengths[-1] = ops.minimum(lengths[-1], room)
    one = np.int32(0), np.int32(1)  # places of a single piece
    parts = [*one, [tokenizer.cls_id]]
    for begin, length in zip(begins, lengths):
        parts += [begin, ops.add(begin, length), pieces]
        parts += [*one, [tokenizer.sep_id]]
    rows = _op("CombineSegments", *parts, [0, 0, 0, 1, 1][: 1 + 2 * len(texts)])
    longest = ops.reduce_max(ops.subtract(rows[1], rows[0]), 0)
    ids, mask = _op("RaggedToDense", *rows[:3], longest, np.int32(tokenizer.pad_id))
    segments = _op("RaggedToDense", *rows[3:], longest, np.int32(0))[0]
    return [ops.convert(x, "i64") for x in (ids, mask, segments)]


def _tokenize(vocabulary: _Vocabulary, texts) -> tuple:
    """Returns the number of pieces in each text, int32 [n], and the pieces of all, int32 [m]."""
    strings = _op("UTF8Validate", *ops.string_tensor_unpack(texts).outputs(), replace_mode=True)
    if isinstance(vocabulary, WordPieceVocabulary):
        return _wordpieces(vocabulary, _map_characters(vocabulary, strings))
    if vocabulary.prepares.latex_quotes:
        strings = _replace(strings, "``|''", '"')
    if vocabulary.prepares.do_lower_case:
        strings = _replace(strings, _LAST_SIGMA, "\u03c2")
    return _sentencepieces(vocabulary, _map_characters(vocabulary, strings))


def _map_characters(vocabulary: _Vocabulary, strings: list) -> list:
    attributes = {"normalization_form": "", "remove_extra_whitespaces": False}
    compiled = np.frombuffer(_character_map(vocabulary), np.uint8)
    return _op("CharsMapNormalization", *strings, compiled, **attributes)


@functools.cache
def _character_map(vocabulary: _Vocabulary) -> bytes:
    """Compiles the replacements of all characters by `preprocess`; white space becomes a space."""
    characters = (chr(i) for i in range(1, sys.maxunicode + 1) if not 0xD800 <= i < 0xE000)
    changed = ((c, " " if c.isspace() else vocabulary.preprocess(c)) for c in characters)
    rules = [(c, text) for c, text in changed if text != c]
    sentencepiece.set_min_log_level(1)
    model = sentencepiece.SentencePieceNormalizer(norm_map=rules).serialized_model_proto()
    return sentencepiece_proto.read(model).normalizer_spec.precompiled_charsmap


def _sentencepieces(vocabulary: SentencePieceVocabulary, strings: list) -> tuple:
    """Tokenizes prepared strings; see `_tokenize`."""
    model = np.frombuffer(vocabulary.model_bytes, np.uint8)
    where, pieces, shape = _op("SentencepieceTokenizer", model, *strings)
    splits = vocabulary.digit_comma_splits
    parts = [splits.get(i, [i]) for i in range(len(vocabulary.pieces))]
    table = np.full([len(parts), max(map(len, parts))], -1, np.int32)
    for row, ids in zip(table, parts):
        row[: len(ids)] = ids
    counts = ops.gather(np.array([*map(len, parts)], np.int32), pieces, 0)
    counts = ops.scatter_nd_update(ops.broadcast(np.int32(0), shape), where, counts)
    flat = ops.reshape(ops.gather(table, pieces, 0), [-1], False)
    real = ops.non_zero(ops.greater_equal(flat, np.int32(0)))
    flat = ops.gather(flat, ops.squeeze(real, [0]), 0)
    return ops.reduce_sum(counts, 1), flat


def _wordpieces(vocabulary: WordPieceVocabulary, strings: list) -> tuple:
    """Tokenizes prepared strings; see `_tokenize`."""
    strings = _replace(strings, r"[\x{0}\x{fffd}]", "")  # the map of characters leaves both
    strings = _replace(strings, f"[^ ]{{{LONGEST_WORD + 1},}}", "\ufffd")  # becomes [UNK]
    number = ops.squeeze(ops.shape_of(strings[0], "i32"), [0])
    begins = ops.range(np.int32(0), number, np.int32(1), "i32")
    rows = [begins, ops.add(begins, np.int32(1)), *strings, _bytes(" +")]
    words = _op("RegexSplit", *rows, behaviour="remove")[:5]
    pieces, unknown = _unpacked(vocabulary.pieces), np.int32(vocabulary.special_ids[1])
    limits = {"suffix_indicator": CONTINUATION, "max_bytes_per_word": 4 * LONGEST_WORD}
    begins, ends, pieces = _op("WordpieceTokenizer", *words, *pieces, unknown, **limits)
    return ops.subtract(ends, begins), pieces


def _replace(strings: list, pattern: str, text: str) -> list:
    """Replaces all matches of a regular expression (PCRE2) in unpacked strings."""
    return _op("RegexNormalization", *strings, _bytes(pattern), _bytes(text), global_replace=True)


def _op(name: str, *inputs, **attributes) -> list:
    """Adds an operation of openvino_tokenizers; returns its outputs. A list is int32."""
    arrays = [np.array(x, np.int32) if isinstance(x, list) else x for x in inputs]
    nodes = [ops.constant(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in arrays]
    outputs = [x if isinstance(x, openvino.Output) else x.output(0) for x in nodes]
    return _get_factory().create(name, outputs, attributes).outputs()


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def _unpacked(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the begins and ends of texts, int32 [n], and the bytes of all, uint8."""
    ends = np.cumsum([len(text.encode()) for text in texts], dtype=np.int32)
    return np.append(np.int32(0), ends[:-1]).astype(np.int32), ends, _bytes("".join(texts))
