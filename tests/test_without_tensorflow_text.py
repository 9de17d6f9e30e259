"""The programs where tensorflow-text has no package (Linux on ARM)."""

import copy
import sys

import pytest
import tensorflow as tf

import albert_tf
from albert_tf.scoring import MaskFiller
from albert_tf.text.tokenization import AlbertTokenizer
from albert_tf.text.wordpiece import WordPieceVocabulary
from export import ask, export_saved_model, tflite
from pipelines.tasks.running import fine_tuned
from tests import sentences
from tests.builders import raises_one_line, tiny_config
from tests.conftest import WORDS, make_text
from tests.jobs import QUICKLY, run


@pytest.mark.parametrize("kind", ["sentence pieces", "words"])
def test_pieces_and_their_places_are_those_of_the_graph(kind, tmp_path, monkeypatch):
    path = tmp_path / "vocab.txt"
    if kind == "words":
        pieces = [*"bcdefghijklmnoprstuvwyz0123.,“ü我", *WORDS, *(f"##{c}" for c in "aeinrstß")]
        path.write_text("\n".join([*WordPieceVocabulary.special, *pieces]), encoding="utf-8")
    else:
        path = sentences.train_vocabulary(tmp_path)
    tokenizer = AlbertTokenizer(path)
    copied, texts = copy.deepcopy(tokenizer), [*sentences.ugly(), "", "ﬁ½ 😀 2010, x", "x" * 70]

    def read(tokenizer):
        graph, inputs = tokenizer.in_graph(), tokenizer(texts, max_length=9).values()
        pieces, *places = graph.align(tf.constant(texts))
        assert pieces.to_list() == graph(tf.constant(texts)).to_list()
        assert graph(tf.constant([], tf.string)).to_list() == []
        arrays = [pieces.flat_values, pieces.row_splits, *places, *inputs]
        return [array.numpy().tolist() for array in arrays], tokenizer.encode_batch(texts)

    expected = read(tokenizer)
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    assert read(copied) == expected


def test_what_runs_and_what_is_refused(tuned, pretrained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    assert MaskFiller(*albert_tf.from_pretrained(pretrained))(["the [MASK] fox"], top_k=1)
    run_dir, output = str(tuned / "seed_1"), str(tmp_path / "out")
    tflite.convert(run_dir, output, max_seq_length=8)
    (tmp_path / "saved_model.pb").touch()
    message = r"^SavedModels need tensorflow-text, .* on x86-64 or a Mac"
    with raises_one_line(message):
        export_saved_model.export(checkpoint=run_dir, output=f"{output}s")
    with raises_one_line(message):
        ask.load(str(tmp_path))
    with raises_one_line(message):
        fine_tuned.Export(None, None)


COMMANDS = """\
pipelines.train_vocab --input_file=@text --output_prefix=@v --vocab_size=90
pipelines.create_pretraining_data --input_file=@text --output_dir=@records VOCABULARY
pipelines.pretrain --record_dir=@records --albert_config=@config --model_dir=@model VOCABULARY STEPS
pipelines.evaluate --record_dir=@records --checkpoint=@model
pipelines.convert_checkpoint --input=@model --output_dir=@converted
pipelines.finetune --init_checkpoint=@model --train_file=@a.tsv --output_dir=@tuned STEPS TASK
pipelines.predict --model=@tuned --input_file=@a.tsv --output_file=@out.tsv
export.export_saved_model --checkpoint=@tuned/seed_1 --output=@exports"""


@pytest.mark.slow
def test_the_programs(tmp_path):
    (tmp_path / "text").write_text(f"{make_text(30)} hahahahahaha {'x' * 70}.\n")
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "the fox\ta\na river runs\tb\n" * 4)
    tiny_config(vocab_size=90, max_position_embeddings=512).write(f"{tmp_path}/config")
    commands = COMMANDS.replace("VOCABULARY", "--spm_model_file=@v.model")
    commands = commands.replace("STEPS", "--num_train_steps=2 --global_batch_size=2")
    commands = commands.replace("TASK", "--task=classification --eval_steps=0")
    blocked = f"import sys\nsys.modules['tensorflow_text'] = None\n{QUICKLY}"
    for command in commands.replace("@", f"{tmp_path}/").splitlines():
        name, *flags = command.split()
        refused = name == "export.export_saved_model"
        _, err = run(name, *flags, before=blocked, exit_code=2 * refused)
    assert err.count("\n") == 1 and "SavedModels need tensorflow-text" in err
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 9
