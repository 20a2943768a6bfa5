# Everything a newcomer needs: `make demo` and `make test`, each alone enough on a machine with Python, pip, make and git.

# The first of the supported versions that is installed. The numbers of the documentation are of the first one.
PYTHON ?= $(firstword $(foreach v,11 12 13 14,$(shell python3.$(v) -c 'print("python3.$(v)")' 2>/dev/null)) python3.11)
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST_ARGS ?=

# Some images set this variable. Each of the hundreds of processes that the tests start would then compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test heavy slow chaos proof check fix bench clean

help:  ## what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

# About 1.4 GB, most of it the CPU build of torch; constraints.txt pins what is tested.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,engine,dev]'
	touch $@

demo: $(STAMP)  ## a generation with its log-probabilities, through a network that breaks: nothing lost, nothing twice
	$(BIN)/python docs/examples/demo.py

test: $(STAMP)  ## the quick tests, three quarters of all, in five minutes; says what was skipped and why
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder -m 'not heavy and not slow' $(PYTEST_ARGS)

heavy: $(STAMP)  ## the tests of more than half a second each: browsers, killed servers, Ray, the pages of the documentation
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder -m 'heavy and not slow' $(PYTEST_ARGS)

slow: $(STAMP)  ## the long forms of the tests: every combination, and campaigns with more seeds and kills
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(PYTEST_ARGS)

chaos: $(STAMP)  ## 5,000 jobs through networks that break, while servers are killed: a quarter of an hour; CHAOS_JOBS, CHAOS_SEED
	CHAOS_JOBS=$${CHAOS_JOBS:-5000} $(BIN)/python -m pytest tests/chaos tests/integration/test_postgres_races.py \
		tests/integration/test_postgres_outage.py -m '' -rP $(PYTEST_ARGS)

NODE_READERS := eventsource@4.1.1 eventsource-parser@3.1.1 @microsoft/fetch-event-source@2.0.1
proof: $(STAMP)  ## proves the suite: every faulty server and client, and twenty runs over: more than an hour; writes docs/proof
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]' \
		|| echo "The readers of event streams in Python are not installed, so their rows are kept: pip install -e '.[peers]'"
	npm install --silent --no-save --prefix $(VENV)/event-streams $(NODE_READERS) \
		|| echo "The readers of event streams in JavaScript are not installed, so their rows are kept: npm install $(NODE_READERS)"
	$(BIN)/python -m proof flakiness
	$(BIN)/python -m proof servers
	$(BIN)/python -m proof clients
	$(BIN)/python -m proof event-streams --node-modules $(VENV)/event-streams
	$(BIN)/python -m proof traceability

check: $(STAMP)  ## lint, format, prose, types, drift of the specification, of its traceability and of generated signatures
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python tests/docs/plain_english.py
	$(BIN)/mypy && $(BIN)/mypy --strict tests/typing
	$(BIN)/python spec/extract.py --check
	$(BIN)/python src/client/generate_signatures.py --check
	$(BIN)/python -m proof traceability --check

fix: $(STAMP)  ## mend what the linter can mend
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

BENCHES ?= start decoder apply finding wire short_runs "streams --full" end_to_end client "batching --full" readers busy_threads log jobs postgres_load replicas large_values growth arrays engine_cpu engine_sampling engine_http engine_restart engine_host migration upstream
bench: $(STAMP)  ## the measurements of the documentation: half an hour; beside peers, as far as they can be installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[peers]' \
		|| echo "The peers are not installed, so the measurements leave out what is missing: pip install -e '.[peers]'"
	below=; for each in $(BENCHES); do set -- $$each; $(BIN)/python bench/$$1.py $$2 || below="$$below $$1"; done; \
	$(BIN)/python bench/page.py && if [ -n "$$below" ]; then echo "failed, or below a target:$$below"; exit 1; fi

clean:  ## remove the environment and what was built
	rm -rf $(VENV) .demo dist build bench/results proof/results
