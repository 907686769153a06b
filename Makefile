# `make` alone tells what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Programs for administrators are not on everybody's PATH.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# The data folder of `make run`, and the image store that it and the tests use.
# Both may be set from outside; the tests need an absolute path.
export EQVPS_DATA ?= /var/lib/eqvps
export EQVPS_IMAGES ?= $(EQVPS_DATA)/images

# Static programs that do not depend on where or from which commit they were
# built, so that nothing is linked again without need. Everything is compiled
# this way, so that builds, vet and tests share what is compiled.
export GOFLAGS := $(GOFLAGS) -trimpath -buildvcs=false
export CGO_ENABLED := 0
GOBUILD := go build -ldflags "-s -w"

# Packages whose tests start machines or make networks, as root. Those of the
# network have the host's to themselves; the others run two at a time, because a
# machine under emulation is one thread. The rest is pure and runs under the race
# detector, which needs a C compiler.
MACHINE_TESTS := /(network|node|guest(/.*)?|vmm/qemu|vmm/vmmtest(/.*)?|cmd/eqvps|cmd/eqvps-guest)$$
UNIT_TESTS := $(if $(shell command -v gcc),CGO_ENABLED=1 go test -race,go test)

# Tests with values in cmd/eqvps/scale_soak_test.go, or that only soak runs.
SOAK_TESTS := TimeoutIs|OrphansAre|UploadIs|ClientGoneWhile|ServerGoneWhile|ClockIs|TmpIs|TaskOutlives|HostileGuest|SideBySide|RacingCallers|KilledAtEachStepOfPersistent

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0

##@ First steps
.PHONY: run
run: deps build ## run a first task in a sandbox; makes everything it needs
	@bin/eqvps run --summary examples/first-task/task.py

.PHONY: test
test: deps build image vet unit machine ## everything that CI runs

##@ Parts
.PHONY: deps
deps: ## install what is missing (Debian or Ubuntu, as root); nothing when nothing is
	@deploy/deps.sh

.PHONY: build
build: ## build bin/eqvps with the guest agent inside
	@$(GOBUILD) -o guest/agentbin/eqvps-guest ./cmd/eqvps-guest
	@$(GOBUILD) -o bin/eqvps ./cmd/eqvps

.PHONY: image
image: deps build ## build the default guest image; nothing when it is there
	@bin/eqvps image build

.PHONY: vet
vet: build ## go vet and staticcheck
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: unit
unit: build ## the tests that start no machines, under the race detector
	$(UNIT_TESTS) -timeout 10m $$(go list ./... | grep -Ev '$(MACHINE_TESTS)')

.PHONY: machine
machine: image ## the tests that start machines (as root)
	go test -count=1 -timeout 5m ./network
	go test -p 2 -count=1 -timeout 25m $$(go list ./... | grep -E '$(MACHINE_TESTS)' | grep -v '/network$$')

##@ Now and then
.PHONY: soak
soak: image ## the tests that `test` scales down, in full (as root; an hour)
	go test -tags soak -count=1 -timeout 2h -run '$(SOAK_TESTS)' ./cmd/eqvps

.PHONY: bench
bench: deps build image ## measure how long sandboxes take to start
	@bin/eqvps bench

.PHONY: lint
lint: build ## golangci-lint; building it takes minutes the first time, so `test` goes without
	go run $(GOLANGCI) run

.PHONY: clean
clean: ## remove what `build` made; data folder and images stay
	rm -rf bin guest/agentbin/eqvps-guest

.PHONY: help
help: ## this text
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
