# Every target is one line that calls `python -m labkit`; nothing needs make. `make` alone lists them.
#
#   PYTHON=path                the interpreter to use, or to make .venv from
#   LAB=labs|reference         judge your files (the default) or the reference; read by labkit itself
#   TASK=2                     of a phase, this task alone: for lab-NN, hint-NN, diff-NN and reset-NN
#   KERNEL=name  FILE=path  MODE=word  TRACE=path  AGAINST=path      what a target works on
#   ARGS="..."                 further words for the command

NUMBERS := $(filter 0% 1% 2% 3% 4% 5% 6% 7% 8% 9%,$(MAKECMDGOALS))
NUMBER := $(subst $() ,.,$(NUMBERS))
# `make lab-03 2`: a number behind a phase is its task.
TASK ?= $(or $(task),$(if $(findstring -,$(firstword $(MAKECMDGOALS))),$(NUMBER)))
ARGS ?= $(args)
ifndef PYTHON
PYTHON := $(shell for p in .venv/bin/python python3 python; do $$p -c '' 2>/dev/null && echo $$p && break; done)
PYTHON := $(or $(PYTHON),python3)
else
CHOSEN := --python $(PYTHON)
endif
LABKIT = @$(PYTHON) -m labkit
SLIP = $(LABKIT)
# On a terminal the screen of these has said what is wrong; "make: *** Error 1" below it adds nothing.
ifneq ($(MAKE_TERMOUT),)
MAKEFLAGS += --silent
lab lab% watch-% hint-% trace-diff-% diff-% reset-% undo hunt-% change-% quiz-% interview-% maintain-% portfolio review \
	run-% read-% notebook-% progress update inspect grade-% doctor: LABKIT = -@$(PYTHON) -m labkit
SLIP = -$(LABKIT)
endif

.DEFAULT_GOAL := help
.PHONY: setup doctor demo chat lab progress maintain portfolio review undo update book serve arena inspect bench \
	bench-scheduler profile tune families upstream real-vllm \
	check-kernel gpu-report grade-class export student-dist test test-fast test-full lint conformance \
	suite-quality docs cite-check clean help

##@ Start
setup: ## install what is needed into .venv (a ready environment is used as it is)
	$(LABKIT) setup $(CHOSEN) $(ARGS)
doctor: ## check this machine line by line, with the fix for what is missing
	$(LABKIT) doctor $(ARGS)
demo: ## watch a real, small model answer through the whole engine
	$(LABKIT) demo $(ARGS)
chat: ## talk to SmolLM2, a public model of 135 million weights, once its package is installed
	$(LABKIT) chat $(ARGS)

##@ Learn
lab-%: ## judge your answers of phase NN: what has changed; ARGS="--all" runs all of it
	$(LABKIT) lab $* $(if $(TASK),--task $(TASK)) $(ARGS)
lab:
	$(LABKIT) lab $(NUMBER) $(if $(TASK),--task $(TASK)) $(ARGS)
watch-%: ## judge phase NN again at every save
	$(LABKIT) watch $* $(ARGS)
hint-%: ## the next hint of phase NN
	$(LABKIT) hint $* $(TASK) $(ARGS)
trace-diff-%: ## the first step where your module and the reference differ
	$(LABKIT) trace-diff $* $(TRACE) $(ARGS)
diff-%: ## compare with the solution of phase NN, function by function
	$(LABKIT) diff $* $(TASK) $(ARGS)
reset-%: ## restore the skeleton of phase NN, keeping a backup
	$(LABKIT) reset $* $(if $(TASK),--task $(TASK)) $(ARGS)
undo: ## bring back what the last reset or update replaced
	$(LABKIT) undo $(ARGS)
hunt-%: ## find a bug that an engine really had: hunt-03, hunt-03.2
	$(LABKIT) hunt $* $(ARGS)
change-%: ## a requirement changes, as at work: change-03, change-03.1
	$(LABKIT) change $* $(ARGS)
quiz-%: ## predict what the engine does: fresh questions of phase NN
	$(LABKIT) quiz $* $(ARGS)
interview-%: ## an interview for one: fresh questions of phase NN, a clock, key points
	$(LABKIT) interview $* $(ARGS)
maintain-%: ## mend a bug of the real vLLM: maintain-22; maintain-check judges it
	$(LABKIT) maintain $* $(ARGS)
maintain: ## the bugs of the real vLLM that you can mend, by phase and difficulty
	$(LABKIT) maintain $(ARGS)
portfolio: ## one page about your engine: what you wrote, its speed, the bugs you found
	$(LABKIT) portfolio $(ARGS)
review: ## questions that are due again, a few minutes a day
	$(LABKIT) review $(ARGS)
run-%: ## run the engine with your modules of phase NN in it
	$(LABKIT) run $* $(ARGS)
read-%: ## read phase NN in the browser, beside the vLLM source it cites
	$(LABKIT) read $* $(ARGS)
notebook-%: ## open the notebook of phase NN (installs Jupyter the first time)
	$(LABKIT) notebook $* $(ARGS)
progress: ## everything done so far
	$(LABKIT) progress $(ARGS)
update: ## merge new skeletons into your labs, keeping backups
	$(LABKIT) update $(ARGS)
book: ## build the whole course as a site, with search
	$(LABKIT) book $(ARGS)

##@ Look inside
serve: ## serve the bundled model over HTTP: ARGS="MODEL --port 8000"
	$(LABKIT) serve $(ARGS)
arena: ## let schedulers race on the same load; FILE=mine.py:MyScheduler lets yours run too
	$(LABKIT) arena $(if $(FILE),--scheduler $(FILE)) $(ARGS)
inspect: ## look into a run, step by step: TRACE=file, AGAINST=another beside it
	$(LABKIT) inspect $(TRACE) $(if $(AGAINST),--against $(AGAINST)) $(ARGS)
bench: ## measure the engine's throughput
	$(LABKIT) bench $(ARGS)
bench-scheduler: ## measure one schedule-and-update call
	$(LABKIT) bench-scheduler $(ARGS)
profile: ## a flame graph of host and device, as a page: ARGS="05" puts your phase 05 in
	$(LABKIT) profile $(ARGS)
tune: ## the engine's settings for a promise: ARGS="--rate 4 --ttft-p99 0.5 --tpot-p50 0.02"
	$(LABKIT) tune $(ARGS)
families: ## every family of models against transformers' tokens, whichever way it is scheduled
	$(LABKIT) families $(ARGS)
real-vllm: ## run one prompt in the real vLLM, in its own environment, beside ours
	$(LABKIT) real-vllm $(ARGS)
upstream: ## fetch the pinned vLLM source, to read beside the chapters
	$(LABKIT) upstream $(ARGS)

##@ Judge
grade-%: ## run the hidden suite of phase NN
	$(LABKIT) grade $* $(ARGS)
check-kernel: ## judge one Triton kernel: KERNEL=name, FILE=yours, MODE=cpu or gpu
	$(LABKIT) check-kernel $(KERNEL) $(if $(FILE),--file $(FILE)) $(if $(MODE),--mode $(MODE)) $(ARGS)
gpu-report: ## measure the engine on this machine's GPU: ARGS="--part roofline" for a part
	$(LABKIT) gpu-report $(ARGS)
grade-class: ## grade a folder of submissions: ARGS="03 submissions/ --out results/"
	$(LABKIT) grade-class $(ARGS)
export: ## render results: ARGS="gradescope result.json", or classroom, junit, csv
	$(LABKIT) export $(ARGS)
student-dist: ## write the tree to hand out to students, with a sealed hidden pack
	$(LABKIT) student-dist $(ARGS)

##@ Maintain
test: ## every check of the project: linters, types, imports, tests
	$(LABKIT) test $(ARGS)
test-fast: ## lint, types, and some tests of each package of the engine: before a commit
	$(LABKIT) test --fast $(ARGS)
test-full: ## the same, with the slow tests and the full mutant matrices
	$(LABKIT) test --full $(ARGS)
lint: ## the checks that run no code
	$(LABKIT) lint $(ARGS)
conformance: ## compare with vLLM's own scheduler, decision for decision
	$(LABKIT) conformance $(ARGS)
suite-quality: ## measure what the hidden suites catch, phase by phase
	$(LABKIT) suite-quality $(ARGS)
prove-%: ## all that proves phase NN, one line each
	$(LABKIT) prove $* $(ARGS)
docs: ## make the documents' tour, pictures and figures: ARGS="figures", ARGS="--check"
	$(LABKIT) docs $(ARGS)
cite-check: ## check every citation of vLLM's source
	$(LABKIT) cite-check $(ARGS)
clean: ## remove caches and built files; your labs and .venv stay
	$(LABKIT) clean $(ARGS)
help: ## list the targets
	$(LABKIT) help

# Any other word is a slip of the fingers (lab_03, Lab-03, hint 03): labkit runs what it surely means,
# or says what is near. FORCE, because a file of that name (labs) is no result of it.
Makefile FORCE: ;
$(if $(word 2,$(MAKECMDGOALS)),$(NUMBERS)): ; @:
%: FORCE
	$(SLIP) meant $@$(addprefix -,$(filter-out $@,$(NUMBER))) $(ARGS)
