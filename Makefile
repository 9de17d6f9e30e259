# make demo     raw text to an answer of the served model, on a corpus that every installation has
# make install  the environment, in which `albert PROGRAM` and `import albert_tf` work in any directory
# make test     the tests; `make test-slow` the longer ones; `make test-extras` those of ONNX, torch, Dask

# The first Python that both stacks allow: TensorFlow 2.15 (3.10, 3.11), else 2.21 (3.12, 3.13).
PYTHON ?= $(shell for python in python3.11 python3.10 python3.13 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)
BIN := .venv/bin
RUN := $(BIN)/python -m
EXTRAS := .venv-extras/bin
EXTRAS_5 := .venv-extras5/bin
EXTRAS_NEWEST := .venv-extras-newest/bin

.PHONY: demo install test test-slow test-extras test-extras-newest $(EXTRAS_NEWEST)/installed lint lock wheel sbom clean

demo: $(BIN)/albert
	@echo "== 1/6 corpus: prose of this installation's own documentation -> demo/corpus.txt"
	@$(RUN) pipelines.data.demo_corpus --output_file=demo/corpus.txt
	@echo "== 2/6 vocabulary: SentencePiece -> demo/vocabulary.model"
	@$(RUN) pipelines.train_vocab --flagfile=pipelines/recipes/demo_vocabulary.flags
	@echo "== 3/6 records: tokenised once, masked on the fly -> demo/records_32, demo/records_64"
	@for length in 32 64; do $(RUN) pipelines.create_pretraining_data --flagfile=pipelines/recipes/demo_records.flags \
		--max_seq_length=$$length --output_dir=demo/records_$$length || exit $$?; done
	@echo "== 4/6 pre-training in two parts -> demo/model"
	@$(RUN) pipelines.pretrain --flagfile=pipelines/recipes/demo_32.flags
	@$(RUN) pipelines.pretrain --flagfile=pipelines/recipes/demo_64.flags
	@echo "== 5/6 evaluation on held-out documents -> demo/model/evaluations"
	@$(RUN) pipelines.evaluate --checkpoint=demo/model --record_dir=demo/records_64
	@echo "== 6/6 export for TF Serving -> demo/export"
	@$(RUN) export.export_saved_model --checkpoint=demo/model --output=demo/export
	@echo "== the exported model answers raw text (export.ask)"
	@$(RUN) export.ask --saved_model=demo/export --flagfile=pipelines/recipes/demo_questions.flags
	@echo "curves       demo/model/curves.png"
	@echo "TensorBoard  $(BIN)/tensorboard --logdir demo/model/tensorboard"

install: $(BIN)/albert

# To compile tiny models takes longer than to run them, so XLA does not optimise. The slow tests compile
# as users do.
QUICK := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Files may run in any order: FILE_ORDER_SEED=7 make test draws one.
test: $(BIN)/albert
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy & $(QUICK) $(RUN) pytest -n 2 --max-worker-restart=0 --timeout=300 \
		-o faulthandler_timeout=290 && wait $$!

# Writes tests/slow_tests.txt: commit it. TEST_SECONDS=900 skips what has not begun by then.
test-slow: $(BIN)/installed
	$(RUN) pytest -n 2 --max-worker-restart=0 -p tests.slow_ledger -m "slow and not extras"

# The tests that need packages of .ci/extras.txt. Then those of Hugging Face's packages once more, with
# transformers 5 (.ci/extras_5.txt). None may skip.
TEST_EXTRAS := -m pytest -n 2 --max-worker-restart=0 -p tests.slow_ledger -m extras
test-extras: $(EXTRAS)/installed $(EXTRAS_5)/installed
	NO_SKIPS=1 $(EXTRAS)/python $(TEST_EXTRAS) -k "not sentence_transformers"
	NO_SKIPS=1 $(EXTRAS_5)/python $(TEST_EXTRAS) -k "transformers or huggingface_hub"

# Those tests with the newest packages of today (.ci/extras_newest.txt). A failure shows the versions of
# the packages that the test needs. The ledger of slow tests stays as it is.
test-extras-newest: $(EXTRAS_NEWEST)/installed
	$(EXTRAS_NEWEST)/python -m pytest -n 2 --max-worker-restart=0 -m extras -k "not distributed"

lint: $(BIN)/installed
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# pip downloads setuptools alone; the wheel is pure Python. It would get the files of an earlier build.
wheel:
	rm -rf build
	$(or $(PYTHON),python3) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir=dist .

# CycloneDX of requirements.txt, and the licences that its packages declare, as installed here. The two
# tools get an environment of their own, which is removed.
sbom: $(BIN)/installed
	@mkdir -p dist
	@tools=$$(mktemp -d) && trap "rm -rf $$tools" EXIT && $(BIN)/python -m venv $$tools && \
	$$tools/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-licenses==5.5.5 && \
	$$tools/bin/python -W ignore -m cyclonedx_py requirements --pyproject=pyproject.toml --output-file=dist/sbom.json requirements.txt && \
	set -- --python=$(BIN)/python --with-system --packages $$(sed -n 's/^\([a-z0-9_.-]*\)==.*/\1/p' requirements.txt) && \
	$$tools/bin/pip-licenses "$$@" --format=csv --output-file=dist/licences.csv && \
	$$tools/bin/pip-licenses "$$@" --summary --order=count

# The environment; made again when the locked set changes.
$(BIN)/installed: requirements.txt requirements-dev.txt
	@version=$$($(or $(PYTHON),false) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	case "$$version" in 3.1[0-3]) ;; *) \
	echo "error: albert_tf needs Python 3.10 to 3.13 (tensorflow-text 2.15 and 2.21 exist for no other), found $(or $(PYTHON),$$(python3 --version 2>/dev/null || echo none)): install python3.11 with its venv module and call make PYTHON=python3.11" >&2; exit 2;; esac
	@echo "== environment: the packages of requirements.txt and requirements-dev.txt -> .venv (some 600 MB, once)"
	@$(PYTHON) -m venv .venv || { echo "error: $(PYTHON) has no venv module: install it (Debian: apt install python3-venv)" >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	@touch $@

# The package itself, from this checkout, and its command. Nothing is downloaded.
$(BIN)/albert: $(BIN)/installed pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

# $(call layer,ENVIRONMENT,SIZE,OTHERS): the packages of the rule's first file; imports find those of OTHERS, too.
define layer
@echo "== environment: the packages of $< -> $1 (some $2)"
@$(BIN)/python -m venv --clear --without-pip $1
@packages='import sysconfig; print(sysconfig.get_path("purelib"))'; \
for other in $3; do $$other/bin/python -c "$$packages"; done > "$$($1/bin/python -c "$$packages")/main.pth"
@$1/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -r $<
@$1/bin/python -m pip check
@touch $@
endef

# All are made for Python 3.11; the last one anew each time.
$(EXTRAS)/installed: .ci/extras.txt $(BIN)/installed
	$(call layer,.venv-extras,1.6 GB,.venv)
$(EXTRAS_5)/installed: .ci/extras_5.txt $(EXTRAS)/installed
	$(call layer,.venv-extras5,170 MB,.venv-extras .venv)
$(EXTRAS_NEWEST)/installed: .ci/extras_newest.txt $(EXTRAS)/installed
	$(call layer,.venv-extras-newest,200 MB,.venv-extras .venv)

# Resolved for Python 3.10 to 3.13 on every platform, with the hash of each file; needs uv. Versions
# stay while they fit: delete both files to renew all.
LOCK = uv pip compile --quiet --universal --python-version 3.10 --no-emit-index-url --generate-hashes \
	--custom-compile-command "make lock"
lock:
	$(LOCK) pyproject.toml -o requirements.txt
	$(LOCK) -c requirements.txt requirements-dev.in -o requirements-dev.txt

clean:
	rm -rf demo build dist *.egg-info .venv-extras .venv-extras5 .venv-extras-newest
