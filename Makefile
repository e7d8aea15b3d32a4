# `make` alone lists the goals. What a goal does stands in scripts/.

# Where Go's own instructions put it.
export PATH := $(PATH):/usr/local/go/bin

.DEFAULT_GOAL := help
.PHONY: help check test sim e2e fuzz proof soak bench lint measure weight site

help: ## list the goals
	@awk -F ':.*## ' '/^[a-z0-9%-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@scripts/proof -list

check: ## what a minute can say, without a server: vet, subjects, the API, the short tests
	@scripts/check

test: ## everything that must hold before a change is kept; as root on Debian it installs what it lacks
	@scripts/test

sim: ## histories of the simulator (internal/sim), each from a seed: SEEDS=10000 FROM=1
	@bash -c '. scripts/lib.sh; need_go; step "sim" go test -count=1 -timeout 0 -v -run "^TestSeeds$$" ./internal/sim \
		-seeds $(or $(SEEDS),10000) -from $(or $(FROM),1); finish' sim

e2e: export ONCEMILL_TEST_JAEGER = $(abspath $(JAEGER))
e2e: ## dashboards, alerts, traces and compose.yaml; with JAEGER=path-to-a-jaeger-v2 through a real one, too
	@bash -c '. scripts/lib.sh; need_go; need_prometheus; \
		step "e2e: go test" go -C e2e test -count=1 -v -timeout 10m . ./dashboard; finish' e2e

fuzz: ## every fuzz target with 150,000 inputs: some ten minutes
	@scripts/fuzz 150000x

soak: export ONCEMILL_SOAK = $(or $(DURATION),10m)
soak: ## everything fails while three pairs work: DURATION=10m; tables, series and evidence in build/soak
	@scripts/proof soak

proof: ## every long proof, one after the other
	@scripts/proof

proof-%:
	@scripts/proof $*

bench: ## every program of bench/, some minutes each, then every benchmark of the tree
	@scripts/bench

lint: ## the linter, at the pinned version; its first build takes minutes
	@scripts/lint

measure: ## how large the library is, by package
	@scripts/measure

weight: ## what typical sets of packages weigh for a user: modules, binary, time of a cold build
	@scripts/weight

site: ## the docs as a static site, in build/site; it fetches MkDocs and Mermaid once
	@scripts/site
