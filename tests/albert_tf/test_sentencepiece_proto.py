"""The declared fields are those of sentencepiece's own messages."""

import sentencepiece

from albert_tf.text import sentencepiece_proto


def test_fields_equal_what_sentencepiece_reports(tiny_vocabulary):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tiny_vocabulary))
    model = sentencepiece_proto.read(tiny_vocabulary.read_bytes())
    assert len(model.pieces) == processor.vocab_size()
    for i, piece in enumerate(model.pieces):
        assert (piece.piece, piece.score) == (processor.id_to_piece(i), processor.get_score(i))
        kind = piece.type
        assert processor.is_control(i) == (kind == sentencepiece_proto.CONTROL)
        assert processor.is_unknown(i) == (kind == sentencepiece_proto.UNKNOWN)
    assert [p.piece for p in model.pieces if p.type == sentencepiece_proto.USER_DEFINED] == [
        *'()"-.–£€'
    ]
    assert model.trainer_spec.model_type == sentencepiece_proto.UNIGRAM
    assert (
        not model.trainer_spec.treat_whitespace_as_suffix and not model.trainer_spec.byte_fallback
    )
    assert model.normalizer_spec.name == "nmt_nfkc" and model.normalizer_spec.precompiled_charsmap
