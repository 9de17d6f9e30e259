"""Every command on the pages runs here on small inputs, or ELSEWHERE says where it is tested."""

import gzip
import json
import re
import subprocess

import pytest

from albert_tf.text.tokenization import AlbertTokenizer
from pipelines.tasks.multiple_choice import MultipleChoiceTask
from pipelines.tasks.task import create_model
from tests import builders
from tests.conftest import make_text
from tests.export.task_models import TASKS
from tests.jobs import PROJECT, run_code
from tests.test_readmes import FENCE, MODULES, PAGES

NAMES = [name for name in PAGES if not name.startswith(("tests/", "BUILD"))]
# What a page expects to exist: commands that write it, before those of the page.
FIRST = {
    "pipelines/README.md": "albert convert_checkpoint --input=demo/model "
    "--output_format=huggingface --output_dir=albert_base_v2",
    "pipelines/recipes/README.md": """
        text=--input_file=heldout.txt; vocabulary=--spm_model_file=vocabulary/30k.model
        albert train_vocab $text --output_prefix=vocabulary/30k --vocab_size=30000
        albert create_pretraining_data $text $vocabulary --output_dir=records_512""",
    "export/README.md": "for task in rte squad race; do albert export_saved_model "
    "--checkpoint=runs/$task/seed_1 --output=exports/$task; done",
}
# Commands that do not run here: the page must mark them, or the file that is named tests them.
NEVER = "never run"
ELSEWHERE = {
    r"^(docker|kubectl|gcloud) |[ =](hf|gs)://|--strategy=tpu": NEVER,
    r"^(make|pip|cp|id|ls|head) ": "Makefile",
    r"--server=|^curl ": "tests/export/test_client.py",
    r"^dask |DaskRunner": "tests/pipelines/test_record_job_faults.py",
    r"--strategy=multi_worker": "tests/test_distributed.py",
    r" --format=onnx ": "tests/export/test_onnx.py",
    r" --format=openvino ": "tests/export/test_openvino.py",
    r" tests\.benchmarks\.": "tests/benchmarks",
}
NUMBER = re.compile(r" *\d[\d.,e-]*")
# What makes commands, flagfiles and configs small.
SMALLER = {
    r"(eval_steps)=\d+\n--eval_examples=\d+": r"\1=0",
    r"(num_train_steps|stop_step|eval_steps)=[1-9]\d*": r"\1=2",
    r"(num_warmup_steps|random_seeds)=[\d,]+": r"\1=1",
    r"(global_batch_size)=\d+": r"\1=8",
    r"(albert_config)=(albert_base\b|pipelines/recipes/paper/\w+\.json)": r"\1=tiny.json",
    r'((vocab|embedding|hidden|intermediate)_size"?[=:] ?)\d+': r"\g<1>84",
}
# Bash expands loops and variables, finds no program, and prints line and words of each command.
RECORD = """exec 3>&1 >/dev/null 2>&1; PATH=/none
command_not_found_handle() { printf '%s\\0' $BASH_LINENO "$@" $'\\1' >&3; }
"""
# Runs programs in one process, one after the other. Other tests cover what is replaced.
RUN = """
import json, os, runpy, sys, tensorflow as tf
import albert_tf.jobs.pictures, export.verify, pipelines.data.beam_job
from absl import app, flags
albert_tf.jobs.pictures.write = lambda *_: ""
export.verify.verify = lambda *_: 0.0
pipelines.data.beam_job.run = lambda work, units, *_: [*map(work, units)]
app.define_help_flags()
known = {*flags.FLAGS}
os.chdir(sys.argv[1])
for module, *sys.argv[1:] in json.loads(sys.argv[2]):
    for name in {*flags.FLAGS} - known:
        delattr(flags.FLAGS, name)
    tf.config.run_functions_eagerly(not module.startswith("export."))
    print("run:", module, *sys.argv[1:], flush=True)
    try:
        runpy.run_module(module, None, "__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, end.code
"""


def make_smaller(text):
    for pattern, replacement in SMALLER.items():
        text = re.sub(pattern, replacement, text)
    return text


def commands_of(page):
    """Returns (the text that may mark it, words, pattern of ELSEWHERE) of each command."""
    text, found = f"```bash\n{FIRST.get(page, '')}\n```\n{PAGES[page]}", []
    for match in (match for match in FENCE.finditer(text) if match[1] == "bash"):
        before = text[: match.start()].rstrip().rpartition("\n\n")[2]
        block = make_smaller(match[2].replace("\\\n", " "))
        out = subprocess.check_output(["bash", "-c", f"{RECORD}{block}\n:"], text=True)
        for number, *words in (line.split("\0") for line in out.split("\0\1\0")[:-1]):
            *earlier, line = block.splitlines()[: int(number) - 2]
            comments = [line for line in earlier if line.startswith("#")]
            if words[0] == "albert":
                words[:2] = ["python", "-m", MODULES[words[1]]]
            pattern = next((p for p in ELSEWHERE if re.search(p, " ".join(words))), None)
            found.append((" ".join([before, *comments[-1:], line]).lower(), words, pattern))
    return found


def test_every_command_runs_here_or_elsewhere():
    found = [(page, *command) for page in NAMES for command in commands_of(page)]
    for page, near, words, pattern in found:
        assert pattern or words[:2] == ["python", "-m"], f"{page}: {words}"
        assert ELSEWHERE.get(pattern) != NEVER or NEVER in near, f"{page}: no mark: {words}"
    assert {pattern for *_, pattern in found} == {None, *ELSEWHERE}
    assert all((PROJECT / place).exists() for place in {*ELSEWHERE.values()} - {NEVER})


def write_files(directory, page, vocabulary):
    """Writes what the page reads: texts, tables, recipes, and models with random weights."""
    rows = [row[1:] for row in builders.make_rows(120, 1)]
    table = ["subject,body,queue", *map(",".join, rows)]
    pairs = [json.dumps({"question": first, "paragraph": second}) for first, second, _ in rows]
    rte = "index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tentailment\n1\ta\tb\tnot_entailment\n"
    pair = {"sentence_good": "birds sing", "sentence_bad": "birds sings", "UID": "agreement"}
    files = {f"glue_data/RTE/{split}.tsv": rte for split in ("train", "dev")}
    files |= {f"{name}.csv": "\n".join(table) for name in ("tickets", "new")}
    files |= {"sentences.csv": "text\nBirds sing.\n", "pairs.jsonl": "\n".join(pairs)}
    files["texts.jsonl"] = '{"text": "Birds sing.", "paragraph": "Birds sing."}\n'
    files["sts.csv"] = "sentence1,sentence2,score\na,b,1\na,a,5\nb,c,2\n"
    files |= {"blimp/data/a.jsonl": json.dumps(pair), "zorro/a.txt": "birds sings\nbirds sing\n"}
    for seed, name in enumerate("corpus/a law/a short/a paragraphs heldout docstrings".split()):
        files[f"{name}.txt"] = make_text(100, seed)
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        files[name] = "Ada B-per\nmet O\nBob B-per\n\nbirds O\n"
    for path in (PROJECT / "pipelines/recipes").rglob("*.*s*"):  # .flags and .json
        files[str(path.relative_to(PROJECT))] = make_smaller(path.read_text(encoding="utf-8"))
    files["new/a.jsonl.gz"] = gzip.compress(b'{"title": "a", "body": "b"}\n')
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    shape = {"num_hidden_layers": 1, "max_position_embeddings": 512}
    builders.tiny_config(vocab_size=84, **shape).write(str(directory / "tiny.json"))
    for name in ("demo/model", "runs/base", "runs/better"):
        if f"--model_dir={name}\n" not in page:
            builders.write_pretrained(directory / name, vocabulary, **shape)
    tokenizer = AlbertTokenizer(str(vocabulary))
    config = builders.tiny_config(vocab_size=tokenizer.vocab_size, **shape)
    tasks = {"rte": TASKS["classifier"], "squad": TASKS["question_answering"]}
    tasks["race"] = MultipleChoiceTask("race", {}, {}, 19, 4)
    for name, task in tasks.items():
        if f"--saved_model=exports/{name} " in page:
            model = builders.with_random_weights(create_model(task, config), scale=0.1)
            builders.write_task_model(directory / f"runs/{name}/seed_1", task, model, tokenizer, 64)


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_commands_run(page, tmp_path, tiny_vocabulary):
    write_files(tmp_path, PAGES[page], tiny_vocabulary)
    commands = [words[2:] for _, words, pattern in commands_of(page) if not pattern]
    printed = "".join(
        run_code(RUN, str(tmp_path), json.dumps(commands[place : place + 8]))[0]
        for place in range(0, len(commands), 8)
    )
    if page == "pipelines/tasks/README.md":
        # The first output on the page has these lines, with other numbers.
        shown = next(block for kind, block in FENCE.findall(PAGES[page]) if kind == "text")
        shown, printed = ({*NUMBER.sub("0", text).splitlines()} for text in (shown, printed))
        assert shown <= printed
