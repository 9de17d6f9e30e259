"""Serving module for tagging words in texts of any length."""

import tensorflow as tf

from albert_tf.answering.classes import best_tags
from albert_tf.models import AlbertForTokenClassification
from albert_tf.text.entities import Tag, are_entity_tags
from albert_tf.text.words import join_rows, row_ids, split_words_in_graph
from ..batches import map_sorted_rows
from ..checks import MAX_OUTPUT_VALUES, are_words_read, check_total, first_chars_of_contexts
from .serving_module import ServingModule


class TokenClassifierModule(ServingModule):
    """Tags words and extracts entities from the tags.

    As in fine-tuning, words are tokenized separately, and each word gets the tag of its first
    piece. In long texts, a word is tagged in the window with the most context on both sides.
    """

    model: AlbertForTokenClassification

    def serving_default(self, text) -> dict:
        text = first_chars_of_contexts(text, "text")
        words, starts, limits = split_words_in_graph(text)
        tags = self._tag(words)
        first, last, label = self._spans(words, tags["place"])
        words_of_span = tf.ragged.range(first.flat_values, last.flat_values + 1)
        probabilities = tf.gather(tags["probability"], words_of_span.flat_values)
        mean = tf.math.segment_mean(tf.cast(probabilities, tf.float64), row_ids(words_of_span))
        mean = tf.cast(mean, tf.float32)
        starts = tf.gather(starts.flat_values, first.flat_values)
        limits = tf.gather(limits.flat_values, last.flat_values)
        # Join the characters, because tf.strings.substr would copy the whole text for each span.
        chars = tf.strings.unicode_split(text, "UTF-8")
        begins = tf.gather(tf.cast(chars.row_starts(), tf.int32), row_ids(first))
        places = tf.ragged.range(begins + starts, begins + limits)
        texts = join_rows(tf.gather(chars.flat_values, places))
        members = {
            "start": tf.strings.as_string(starts),
            "end": tf.strings.as_string(limits),
            "label": _json_strings(label.flat_values),
            "text": _json_strings(texts),
            "probability": tf.where(  # JSON has no NaN
                tf.math.is_finite(mean), tf.strings.as_string(mean, shortest=True), "null"
            ),
        }
        pairs = [tf.strings.join([f'"{name}": ', value]) for name, value in members.items()]
        objects = tf.strings.join(["{", tf.strings.join(pairs, ", "), "}"])
        spans = tf.strings.join(["[", join_rows(first.with_flat_values(objects), ", "), "]"])
        most = 4 * MAX_OUTPUT_VALUES  # as many bytes as float32 values need
        return {
            "spans": check_total(spans, "bytes of spans", tf.strings.length(spans), most),
            "num_spans": tf.cast(first.row_lengths(), tf.int32),
            "unknown_share": tags["unknown_share"],
        }

    def words(self, words) -> dict:
        # Only the first piece of a word is tagged, so long words can be truncated.
        shape = tf.shape(words, tf.int64)
        words = tf.reshape(self.read(tf.reshape(words, [-1])), shape)
        is_word = tf.not_equal(words, "") & are_words_read(words)
        ragged = tf.ragged.boolean_mask(words, is_word)
        tags = self._tag(ragged)
        indices = tf.where(is_word)
        labels = tf.gather(self.labels()["labels"], tags["place"])
        return {
            "labels": tf.tensor_scatter_nd_update(tf.fill(shape, ""), indices, labels),
            "probabilities": tf.scatter_nd(indices, tags["probability"], shape),
            "unknown_share": tags["unknown_share"],
        }

    def _tag(self, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        """Tags words, string [batch, (words)].

        Returns int32 `place` (of the label) and float32 `probability`, both [all words], and
        float32 `unknown_share` [batch].
        """
        tokens, windows = self.packer.pack_words(
            self.tokenizer, words, self.served.task["doc_stride"]
        )
        answers, _ = map_sorted_rows(self.answer, tokens)
        order = tf.argsort(answers.pop("word"))
        return {
            **{name: tf.gather(values, order) for name, values in answers.items()},
            "unknown_share": self.share_of_unknown(tokens, windows.counts),
        }

    def answer(self, tokens: dict) -> dict:
        """Tags the words of packed sequences, which contain `word`; see Packer.pack_words.

        Returns tensors [tagged words]: `word`, int32; `place`, int32, the index of the best label;
        its `probability`, float32.
        """
        word = tokens["word"]
        encoded = self.encode(tokens["input_ids"], tokens["input_mask"], tokens["segment_ids"])
        logits = self.model.classifier(encoded["sequence_output"])
        logits = tf.boolean_mask(logits, word > 0)
        place, probability = best_tags(logits)
        words = tf.boolean_mask(word, word > 0)
        return {"word": words, "place": place, "probability": probability}

    def _spans(
        self, words: tf.RaggedTensor, place: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the first word, last word and label of all entities, ragged [batch, (spans)].

        Words are numbered across all texts. See entities.find_entities. If the labels are not
        entity tags, each word is a span.
        """
        labels = self.served.task["labels"]
        if not are_entity_tags(labels):
            number = words.with_flat_values(tf.range(tf.size(place, tf.int64)))
            return number, number, words.with_flat_values(tf.gather(labels, place))
        tag = Tag(*(tf.gather(column, place) for column in zip(*map(Tag.parse, labels))))
        # The first word of a text, whose `before` is a word of another text, continues nothing.
        before = Tag(*(tf.concat([values[:1], values[:-1]], axis=0) for values in tag))
        is_first = tf.equal(tf.ragged.range(words.row_lengths()).flat_values, 0)
        continues = ~is_first & tag.continues(before)
        first = tf.where(tag.is_inside & ~continues)[:, 0]
        last = tf.where(tag.is_inside & ~tf.concat([continues[1:], [False]], axis=0))[:, 0]
        counts = tf.math.unsorted_segment_sum(
            tf.ones_like(first), tf.gather(row_ids(words), first), words.nrows()
        )
        label = tf.gather(tag.type, first)
        spans = tf.RaggedTensor.from_row_lengths(first, counts, validate=False)
        return spans, spans.with_flat_values(last), spans.with_flat_values(label)


def _json_strings(texts: tf.Tensor) -> tf.Tensor:
    """Formats valid UTF-8 texts, string [n], as quoted JSON strings."""
    texts = tf.strings.regex_replace(texts, r"\\", r"\\\\")
    texts = tf.strings.regex_replace(texts, '"', r'\\"')
    for code in range(32):  # JSON does not allow control characters in strings
        texts = tf.strings.regex_replace(texts, rf"\x{code:02x}", rf"\\u{code:04x}")
    return tf.strings.join(['"', texts, '"'])
