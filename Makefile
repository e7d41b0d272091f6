# The commands of everyday work; `make help` lists them. The work is done by CMake and by the scripts in tools/.

PRESET ?= dev
JOBS ?= $(shell nproc)

.DEFAULT_GOAL := help
KIND ?= runs/kind
.PHONY: help images images-cuda dist chart run test test-all explore test-long bench bench-operator lint fuzz mutants features matrix build programs setup clean kind-up kind-load kind-down e2e gpu-check

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Install what is missing, build, and train a small GPT on real text (10 to 20 minutes the first time)
	@tools/run_example

test: ## Install, build and run the tests but those that need a cluster or hours (about 20 minutes the first time)
	@tools/run_tests

test-all: ## What CI runs: also a real API server, asan, tsan, formatting; its inputs are fixed
	@tools/run_tests --all

explore: ## Look for what test-all cannot see: other seeds, mutants, fuzzing, clang-tidy, real nodes (MINUTES=30)
	@tools/explore $(or $(MINUTES),30)

test-long: ## Every test without bounds: hours
	@tools/run_tests --long

setup: ## Install the Debian packages that building needs
	@tools/setup build

build: setup ## Build everything, the tests too (PRESET=dev|release|asan|tsan)
	@[ $(PRESET) != asan ] || tools/setup lint
	@cmake --preset $(PRESET)
	@tools/build $(PRESET) -j $(JOBS)

programs: setup ## Build the four programs alone, as they are shipped, into build/release/bin
	@cmake --preset release
	@tools/build release -j $(JOBS) --target trainyard trainyard-agent trainyard-worker trainyard-operator

images: programs ## Make the container images into build/images, without Docker or a registry
	@tools/images/build

images-cuda: setup ## Make the image of the worker for NVIDIA GPUs, with NVIDIA's libraries (fetches 1 GB the first time)
	@tools/setup cuda
	@cmake --preset release
	@tools/build release -j $(JOBS) --target trainyard-agent trainyard-cuda trainyard-worker-cuda
	@tools/images/build worker-cuda

dist: images ## Make the archives of a release into build/dist: programs, images and chart, with checksums
	@tools/dist

chart: ## Make manifests/install.yaml and docs/reference/chart.md from the chart (needs helm)
	@tools/chart

bench: ## Measure this machine: products, collectives, training against PyTorch, checkpoints (BENCH=--quick)
	@tools/run_bench $(BENCH)

bench-operator: ## Measure the operator on a real API server with fake nodes (BENCH='--scale quick': about a minute)
	@tools/run_operator_bench $(BENCH)

kind-up: ## A Kubernetes cluster of real nodes in containers, in KIND=runs/kind (ARGS='--nodes 3': tools/kind/up --help)
	@tools/setup build kind
	@tools/kind/build $(if $(findstring --image public,$(ARGS)),--programs)
	@tools/kind/up $(KIND) $(ARGS)

kind-load: ## Give images to its nodes: those of `make images`, or IMAGES='a.tar b.tar'
	@tools/kind/load $(KIND) $(or $(IMAGES),build/images/trainyard-operator.tar build/images/trainyard-worker-cpu.tar)

kind-down: ## End it; nothing of it stays
	@tools/kind/down $(KIND)

e2e: ## The tests on a cluster of real nodes, with the images of `make images` (ARGS='--images dev': tools/run_e2e --help)
	@tools/run_e2e $(ARGS)

lint: ## Formatting, clang-tidy, shellcheck, layering (FILES=all for every file)
	@tools/lint $(if $(filter all,$(FILES)),--all)

fuzz: ## Run every fuzz target for SECONDS seconds (default 60)
	@tools/run_fuzz $(SECONDS)

mutants: ## Plant known bugs, one at a time, and see whether the tests catch them (an hour or more); MUTANTS=--generated
	@tools/run_mutants $(MUTANTS)

matrix: programs ## Prove that no way of dividing the work changes the bits (half a minute, once built)
	@build/release/bin/trainyard matrix

features: programs ## Run the commands of every row of docs/features.md that says "works" (some need root or Docker)
	@tools/check_features

gpu-check: ## Make build/gpu-check, whose run.sh confirms the CUDA kernels on a machine with a GPU and measures them
	@tools/setup build cuda
	@tools/gpu_check/bundle

clean: ## Remove the build folders; runs/ and the cache stay
	rm -rf build
