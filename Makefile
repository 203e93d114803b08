# The targets, for those who do not want to remember the commands.

.DEFAULT_GOAL := help

.PHONY: help
help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## a server, contenders, a crash, a fail-over
	go run ./cmd/lockctl demo

.PHONY: test
test: ## the default tier, two minutes
	go test ./...

.PHONY: proof
proof: ## the tests of the proof tier too, one package at a time, half an hour
	@for pkg in $$(git grep -l 'tier\.Proof(' -- '*_test.go' | xargs -n 1 dirname | sort -u); do \
		NATSLOCK_TIER=proof go test -count=1 -timeout 30m ./$$pkg || failed="$$failed $$pkg"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

.PHONY: race
race: ## the default tier under the race detector
	go test -race ./...

.PHONY: ci
ci: ## everything a change has to pass
	bash .ci/run

.PHONY: lint
lint: ## staticcheck, as CI runs it
	GOWORK=off go tool -modfile=tools/go.mod staticcheck ./...

.PHONY: model
model: ## the protocol's model, in its large scopes: three quarters of an hour
	cd internal/verify/model && go test -run '^TestProtocol$$' -timeout 0 -count 1 -args -scope large

.PHONY: soak
soak: ## a thousand simulations with new seeds in memory, and as many on a server: an hour
	NATSLOCK_TIER=proof go test ./internal/verify/simulation -run 'TestSim(Server)?$$' -seeds 1000 -timeout 12h -v

.PHONY: fuzz
fuzz: ## every fuzz target for half a minute
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
			echo "== $$pkg $$target"; \
			go test -run '^$$' -fuzz "^$$target$$" -fuzztime 30s -fuzzminimizetime 20x $$pkg || exit 1; \
		done; \
	done

.PHONY: vuln
vuln: ## known vulnerabilities; needs https://vuln.go.dev
	GOWORK=off go tool -modfile=tools/go.mod govulncheck ./...

.PHONY: mutants
mutants: ## every weakened variant is caught by the test that is nearest to it, five minutes
	go run ./internal/verify/mutants

.PHONY: mutants-all
mutants-all: ## every weakened variant is caught by each test that it names, a minute more
	go run ./internal/verify/mutants -all

.PHONY: bench
bench: ## the hot paths beside bare publishes
	go test -run '^$$' -bench . ./internal/verify/ratios

.PHONY: compare
compare: ## natslock beside other locks, a quarter of an hour; writes docs/evidence/benchmarks.md
	cd bench && go run .

.PHONY: docs
docs: ## what is written from the code: the reference of lockctl, what the pages show of it, and the rules
	go generate ./...
	go test -count=1 ./cmd/lockctl -run '^Test(Picture|ExitsPage)$$' -update

.PHONY: build
build: ## lockctl into bin/
	go build -o bin/ ./cmd/lockctl
