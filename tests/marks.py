"""Words with hyphens, quotation marks, brackets and accents, and vocabularies made of such text."""

import random

from pipelines.data.corpus import TextFormat
from pipelines.train_vocab import VocabularySettings, train_vocab
from tests.conftest import WORDS

# Most hold a piece that train_vocab defines, inside, before or behind a word.
FORMS = ("{}", "{}", "{}-{}", '"{}', '{}"', "({}", "{})", "{}.", "{}.{}", "{}–{}", "£{}", "{}'s")
FORMS += ("1,234", "3-4", "--", "é{}", "{}\u0301{}")
KINDS = ("wordpiece", "unigram", "bpe")


def texts(seed, number, longest):
    """Returns texts of 1 to `longest` words. One is upper case, one title case, one has gaps."""
    rng = random.Random(seed)

    def word():
        return rng.choice(FORMS).format(*rng.choices(WORDS, k=2))

    made = [" ".join(word() for _ in range(rng.randint(1, longest))) for _ in range(number)]
    return [made[0].upper(), made[1].title(), made[2].replace(" ", "  "), *made[3:]]


def write_vocabulary(directory, kind):
    """Writes a vocabulary of one of KINDS; returns its path."""
    if kind != "wordpiece":
        corpus = directory / "corpus.txt"
        corpus.write_text("\n\n".join("\n".join(texts(seed, 24, 12)) for seed in range(20)))
        settings = VocabularySettings(vocab_size=160, model_type=kind)
        train_vocab([str(corpus)], str(directory / kind), settings, TextFormat())
        return directory / f"{kind}.model"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(word[:5] for word in WORDS)]
    pieces += [*"?.,()-\"'", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    path = directory / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    return path
