# berm: `make` alone lists the targets. Everything else is in scripts/ and in Go.

GO        ?= go
GOARCH    := $(shell $(GO) env GOARCH)
FUZZTIME  ?= 5m
PACKAGES  ?= ./...
# The race detector needs a C compiler; a machine without one runs without it.
CC_FOUND  := $(shell command -v $$($(GO) env CC) 2>/dev/null)
RACE      ?= $(if $(CC_FOUND),-race,)

AGENT     := bin/berm-agent
BERM      := bin/berm
# What tests and programs find the built binaries by.
export BERM_AGENT := $(CURDIR)/$(AGENT)
export BERM_BIN   := $(CURDIR)/$(BERM)

.DEFAULT_GOAL := help
.PHONY: help setup run build agent test e2e fmt vet lint gen gen-check archtest fuzz mutants bench soak vm check fresh clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## set everything up and run a command in a real sandbox
	@scripts/setup
	@$(MAKE) --no-print-directory build
	@scripts/demo

build: agent ## build bin/berm with the agent in it, and bin/berm-agent
	@cp $(AGENT) cmd/berm/berm-agent
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -tags berm_embed -o $(BERM) ./cmd/berm

agent:
	@mkdir -p bin
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -ldflags '-s -w' -o $(AGENT) ./cmd/berm-agent

test: setup agent ## run all tests and hold them against the committed lists (LONG=1 for full sizes, UPDATE=1 rewrites the lists, PACKAGES=./link/... chooses)
	$(GO) run ./internal/testlist $(RACE) $(if $(filter 1,$(LONG)),-long) $(if $(filter 1,$(UPDATE)),-update) $(PACKAGES)

e2e: setup build ## drive the built binary as a person would, as root and without privileges
	@scripts/e2e

setup:
	@scripts/setup

fmt: ## check the formatting
	@out=$$(gofmt -l $$(git -c safe.directory='*' ls-files -co --exclude-standard '*.go')); \
		if [ -n "$$out" ]; then echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...
	@# Names inside are the same on every host: the library has to build there.
	GOOS=windows $(GO) vet . ./config ./driver ./drivertest

lint: fmt vet ## go vet, gofmt and the analyzers chosen in tools/lint
	@scripts/lint

gen: ## compile proto/ into internal/gen
	$(GO) run ./internal/genproto

gen-check:
	@scripts/gen-check

archtest:
	$(GO) test -count=1 ./internal/archtest

mutants: setup ## turn each defence off in a test build, and fail unless a test notices (SHORT=1 takes every sixth, ONLY=filter:sockets,lease: chooses)
	$(GO) run ./internal/mutants $(if $(filter 1,$(SHORT)),-short) $(if $(ONLY),-only $(ONLY))

fuzz: ## run every fuzz target for FUZZTIME (5m)
	@FUZZTIME=$(FUZZTIME) scripts/fuzz

bench: setup agent ## measure against raw bubblewrap, os/exec, srt from npm and other proxies; fails where a target is missed (BENCH="-only create,exec -json")
	@srt=$$(scripts/srt) && peers=$$(scripts/egress-peers) && $(GO) run ./bench -srt "$$srt" -peers "$$peers" $(BENCH)

soak: setup agent ## use one sandbox over and over and fail when memory, goroutines or threads grow (SHORT=1 for a tenth)
	$(GO) run ./internal/e2e/soak $(if $(filter 1,$(SHORT)),-short)

vm: ## run the process backend's tests on Debian's kernel with cgroup v2, emulated (SHORT=1 for the limits only)
	@scripts/setup --vm
	@scripts/vm $(if $(filter 1,$(SHORT)),--short)

check: lint gen-check archtest test ## everything that a change has to pass

fresh: ## run `make run` and `make test` in a bare Debian root (root only)
	@scripts/fresh-machine

clean: ## remove what was built
	rm -rf bin cmd/berm/berm-agent
