"""The awkward files: those of tests/nasty, and the long ones, which are written by a formula."""

import base64
import random
import shutil
from pathlib import Path

STORED = Path(__file__).resolve().parent / "nasty"
ODD_NAME = "naïve file name (é) 空白 .txt"

_WORDS = (
    "the of and to in that was his he it with is for as had you not be her on at by which have "
    "or from this him but all she they were my are me one their so an said them we who would "
    "been will no when there if more out"
).split()


def write_all(directory: Path) -> None:
    """Writes all files that INDEX.tsv describes, and two names that trouble Git in some places."""
    shutil.copytree(STORED, directory, dirs_exist_ok=True)
    rng = random.Random(0)
    long_line = " ".join(rng.choice(_WORDS) for _ in range(400_000)) + "\n"  # 1.6 MB
    contents = {
        "very_long_line.txt": long_line.encode(),
        "long_token.txt": b"%b end.\nx%b\n\nNormal sentence.\nAnother.\n"
        % (b"a" * 100_000, b"." * 20_000),
        "long_url_base64.txt": b"data:text/plain;base64,%b\nplain.\n"
        % base64.b64encode(b"ABC" * 20_000),
        "squad_truncated.json": (STORED / "squad_nasty.json").read_bytes()[:38_239],
        ODD_NAME: b"A file whose name has spaces, accents and CJK.\nSecond line.\n",
        "dir_named.txt/.keep": b"",
    }
    (directory / "dir_named.txt").mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
