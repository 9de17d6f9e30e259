"""A tiny Chinese ALBERT with a WordPiece vocabulary goes from text to a served answer."""

import random

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from tests.builders import finetune_flags, tiny_config
from tests.jobs import pretrain_flags, record_flags, run

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"


@pytest.fixture
def directory(tmp_path):
    rng = random.Random(1)
    documents = [
        "\n".join("".join(rng.choices(CHARACTERS, k=rng.randint(4, 20))) + "。" for _ in range(9))
        for _ in range(40)
    ]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    pieces = [*SPECIAL, *CHARACTERS, "。", "？", "a", "##b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = tiny_config(vocab_size=len(pieces), max_position_embeddings=48)
    config.write(str(tmp_path / "config.json"))
    rows = [f"{c * 2}\t{c in CHARACTERS[:20]}\n" for c in rng.choices(CHARACTERS, k=30)]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_text_to_answer(directory):
    vocabulary, model = f"--spm_model_file={directory}/vocab.txt", directory / "model"
    records = record_flags(directory, directory / "records", vocabulary)
    run("pipelines.create_pretraining_data", *records)
    steps = ["--num_train_steps=6", "--save_checkpoint_steps=6"]
    run("pipelines.pretrain", *pretrain_flags(directory, model), vocabulary, *steps)
    assert (model / "vocab.txt").read_bytes() == (directory / "vocab.txt").read_bytes()
    flags = [f"--checkpoint={model}", f"--record_dir={directory}/records"]
    assert "masked" in run("pipelines.evaluate", *flags)[0]
    tuned = f"--output_dir={directory}/tuned"
    run("pipelines.finetune", *finetune_flags(directory, model), tuned)
    saved = {}
    for name in ("model", "tuned/seed_12345"):
        saved[name] = directory / "export" / name
        flags = [f"--checkpoint={directory}/{name}", f"--output={saved[name]}"]
        run("export.export_saved_model", *flags)
    assert (saved["model"] / "1/assets/vocab.txt").is_file()
    flags = [f"--saved_model={saved['model']}", "--fill_mask=天地[MASK]黄。"]
    out, _ = run("export.ask", *flags)
    [line] = [line for line in out.splitlines() if "[MASK] 1:" in line]
    tokenizer = AlbertTokenizer.load(str(model))
    pieces = {tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)}
    found = [part.split()[0] for part in line.partition(":")[2].split(",  ")]
    assert len(found) == 5 and set(found) <= pieces
    out, _ = run("export.ask", f"--saved_model={saved['tuned/seed_12345']}", "--text=天地")
    assert "label:" in out
