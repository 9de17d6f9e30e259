"""A tiny Chinese ALBERT with a WordPiece vocabulary goes from text to a served answer."""

from __future__ import annotations

import random

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from tests.builders import tiny_config
from tests.jobs import run

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("chinese")
    rng = random.Random(1)
    documents = [
        "\n".join("".join(rng.choices(CHARACTERS, k=rng.randint(4, 20))) + "。" for _ in range(9))
        for _ in range(40)
    ]
    (directory / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    pieces = [*SPECIAL, *CHARACTERS, "。", "？", "a", "##b"]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = tiny_config(vocab_size=len(pieces), max_position_embeddings=48)
    config.write(str(directory / "config.json"))
    return directory


@pytest.mark.slow
def test_text_to_answer(directory):
    vocabulary = f"--spm_model_file={directory}/vocab.txt"
    run(
        "pipelines.create_pretraining_data",
        f"--input_file={directory}/corpus.txt",
        vocabulary,
        f"--output_dir={directory}/records",
        "--max_seq_length=32",
        "--heldout_fraction=0.2",
        "--num_workers=1",
    )
    run(
        "pipelines.pretrain",
        f"--record_dir={directory}/records",
        vocabulary,
        f"--albert_config={directory}/config.json",
        f"--model_dir={directory}/model",
        "--max_seq_length=32",
        "--global_batch_size=8",
        "--num_train_steps=6",
        "--num_warmup_steps=1",
        "--steps_per_loop=3",
        "--save_checkpoint_steps=6",
    )
    tokenizer = AlbertTokenizer.load(str(directory / "model"))
    assert (directory / "model/vocab.txt").read_bytes() == (directory / "vocab.txt").read_bytes()
    out, _ = run(
        "pipelines.evaluate", f"--checkpoint={directory}/model", f"--record_dir={directory}/records"
    )
    assert "masked" in out
    rows = [
        f"{text}\t{text[0] in CHARACTERS[:20]}"
        for text in random.Random(2).choices(CHARACTERS, k=30)
    ]
    for split in ("train", "dev"):
        (directory / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    run(
        "pipelines.finetune",
        "--task=classification",
        f"--train_file={directory}/train.tsv",
        f"--dev_file={directory}/dev.tsv",
        f"--init_checkpoint={directory}/model",
        f"--output_dir={directory}/tuned",
        "--num_train_steps=4",
        "--num_warmup_steps=1",
        "--eval_steps=2",
        "--steps_per_loop=2",
        "--save_checkpoint_steps=4",
    )
    for model in ("model", "tuned/seed_12345"):
        run(
            "export.export_saved_model",
            f"--checkpoint={directory}/{model}",
            f"--output={directory}/export/{model}",
        )
    assert (directory / "export/model/1/assets/vocab.txt").is_file()
    out, _ = run(
        "export.ask", f"--saved_model={directory}/export/model", "--fill_mask=天地[MASK]黄。"
    )
    [line] = [line for line in out.splitlines() if "[MASK] 1:" in line]
    pieces = {tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)}
    found = [part.split()[0] for part in line.partition(":")[2].split(",  ")]
    assert len(found) == 5 and set(found) <= pieces
    out, _ = run("export.ask", f"--saved_model={directory}/export/tuned/seed_12345", "--text=天地")
    assert "label:" in out
