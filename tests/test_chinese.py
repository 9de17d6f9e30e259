"""A tiny Chinese ALBERT with a WordPiece vocabulary goes from text to a served answer."""

import random

import pytest

from albert_tf.text.wordpiece import WordPieceVocabulary
from tests.builders import finetune_flags, tiny_config
from tests.jobs import pretrain_flags, record_flags, run

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"
PIECES = [*WordPieceVocabulary.special, *CHARACTERS, "。", "？", "a", "##b"]


@pytest.mark.slow
def test_text_to_answer(tmp_path):
    rng = random.Random(1)
    documents = [
        "\n".join("".join(rng.choices(CHARACTERS, k=rng.randint(4, 20))) + "。" for _ in range(9))
        for _ in range(40)
    ]
    rows = [f"{c * 2}\t{c in CHARACTERS[:20]}" for c in rng.choices(CHARACTERS, k=30)]
    texts = {"corpus.txt": "\n\n".join(documents), "vocab.txt": "\n".join(PIECES)}
    texts.update(dict.fromkeys(("train.tsv", "dev.tsv"), "\n".join(["text\tlabel", *rows])))
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    config = tiny_config(vocab_size=len(PIECES), max_position_embeddings=48)
    config.write(str(tmp_path / "config.json"))

    vocabulary, model = f"--spm_model_file={tmp_path}/vocab.txt", tmp_path / "model"
    records = record_flags(tmp_path, tmp_path / "records", vocabulary)
    run("pipelines.create_pretraining_data", *records)
    steps = ["--num_train_steps=6", "--save_checkpoint_steps=6"]
    run("pipelines.pretrain", *pretrain_flags(tmp_path, model), vocabulary, *steps)
    assert (model / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()
    flags = [f"--checkpoint={model}", f"--record_dir={tmp_path}/records"]
    assert "masked" in run("pipelines.evaluate", *flags)[0]
    tuned = f"--output_dir={tmp_path}/tuned"
    run("pipelines.finetune", *finetune_flags(tmp_path, model), tuned)
    asked = {"model": "--fill_mask=天地[MASK]黄。", "tuned/seed_12345": "--text=天地"}
    answers = []
    for name, flag in asked.items():
        saved = tmp_path / "export" / name
        run("export.export_saved_model", f"--checkpoint={tmp_path}/{name}", f"--output={saved}")
        assert (saved / "1/assets/vocab.txt").is_file()
        answers.append(run("export.ask", f"--saved_model={saved}", flag)[0])
    [line] = [line for line in answers[0].splitlines() if "[MASK] 1:" in line]
    found = [part.split()[0] for part in line.partition(":")[2].split(",  ")]
    assert len(found) == 5 and set(found) <= set(PIECES) and "label:" in answers[1]
