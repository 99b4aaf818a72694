# Atoll. Bare `make` lists the targets.

GO       ?= go
# The go command, with how far it is: it is silent while it compiles Kubernetes.
COMPILE   = GO=$(GO) $(GO) run ./playground/compile
# make release PLATFORMS='linux/amd64 darwin/arm64'
PLATFORMS ?= linux/amd64 linux/arm64
# Programs for release and vulnerabilities.
SBOM_TOOL = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
VULN_TOOL = golang.org/x/vuln/cmd/govulncheck@v1.9.0
# make vulnerabilities VULNDB=file:///path/of/a/copy
VULNDB   ?= https://vuln.go.dev
# make demo CLUSTERS=5 DIR=/somewhere
CLUSTERS ?= 3
DIR      ?= .demo
# kubectl contains kustomize, which can load Go plugins unless this tag says not to. The linker removes
# no method from a binary that can: a test binary with kubectl takes 97 s of CPU to link then, instead of
# 34. Only the packages of kustomize and kubectl depend on the tag.
export GOFLAGS := $(GOFLAGS) -tags=kustomize_disable_go_plugin_support
# What go run ./bench gets, for example BENCH='-clients 64'.
BENCH    ?=
# make faults RUNS=200
RUNS     ?= 6
# make conformance DATASTORE=postgres://user:password@host:port/database
DATASTORE ?=
# make test RACE= does without the race detector, and so without a C compiler. SQLite itself, which is
# C translated to Go, is not instrumented: each connection has its own instance of it. The driver around
# it is, so the detector still notices two goroutines in one connection.
RACE     ?= -race -gcflags=github.com/ncruces/go-sqlite3-wasm/v6=-race=false
# So many tests of a package at once, more than cores: most wait, for disks, leases
# and databases.
PARALLEL ?= 4
# Test binaries have no DWARF, which only debuggers read: that is a quarter of the time to link them.
LINK     = -ldflags=-w

.DEFAULT_GOAL := help
.PHONY: help build release vulnerabilities demo kubectl test loaded soak race example faults conformance floors lint bench generate clean go gcc postgres pgbouncer faketime recipes iproute containers kubelets

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# The same flags everywhere, because a package that is compiled with others is compiled
# twice, and Kubernetes takes minutes. Flags of a release belong to the target release.
build: go ## bin/atoll, and bin/kubectl-atoll beside it
	@$(COMPILE) build -o bin/atoll .
	ln -sf atoll bin/kubectl-atoll

release: go ## static binaries in bin/release, stripped and reproducible, with their SBOMs (CycloneDX), for PLATFORMS
	@GOBIN=$(CURDIR)/bin/tools $(GO) install $(SBOM_TOOL)
	@for platform in $(PLATFORMS); do \
		out=bin/release/atoll-$${platform%/*}-$${platform#*/}; echo "$$out"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) build -trimpath -ldflags '-s -w' -o "$$out" . || exit 1; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} bin/tools/cyclonedx-gomod app -json -noserial -licenses -main . -output "$$out.cdx.json" . || exit 1; \
	done

vulnerabilities: build ## known vulnerabilities in the code of bin/atoll, from the database VULNDB
	@GOBIN=$(CURDIR)/bin/tools $(GO) install $(VULN_TOOL)
	bin/tools/govulncheck -mode binary -db $(VULNDB) bin/atoll

demo: go ## a control plane and CLUSTERS=3 real Kubernetes clusters, left running (Ctrl-C stops all)
	@$(COMPILE) build -o bin/playground ./playground
	@echo "bin/playground --clusters $(CLUSTERS) --dir $(DIR)"; trap 'stopped=1' INT; \
	bin/playground --clusters $(CLUSTERS) --dir $(DIR) || [ "$$stopped" ]

# The version is that of the kubelets: the Go toolchain does not record it for them.
kubelets: go containers ## the same with real nodes, on which containers run (Linux, as root)
	@$(COMPILE) build -ldflags "-X k8s.io/component-base/version.gitVersion=$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)" -o bin/playground ./playground
	@echo "bin/playground --kubelets --clusters $(CLUSTERS) --dir $(DIR)"; trap 'stopped=1' INT; \
	bin/playground --kubelets --clusters $(CLUSTERS) --dir $(DIR) || [ "$$stopped" ]

kubectl: go ## bin/kubectl, for a machine without one
	@$(COMPILE) build -ldflags "-X k8s.io/component-base/version.gitVersion=$$($(GO) list -m -f '{{.Version}}' k8s.io/kubernetes)" -o bin/kubectl ./playground/kubectl

# Three groups of packages with tests. Kubernetes takes longer to compile under the race detector
# than to test, so a test that contains it runs without; the go command knows which do. Pure packages
# start no goroutine that shares anything: the detector would triple their time and find nothing.
# Sequential ones are among them: fleet/join and fleet/sharing send one request after another,
# infra/changesapi keeps nothing between requests, and processes share the store of infra/packages,
# but no memory. These and test/faults run under it in make soak.
PURE = api/.*|bench.*|fleet/(schema|interpret|override|placement|capacity|names|join|sharing)|infra/(changesapi|packages|schema|graph|expr|change|approval|decide|render|planstore|problems|statefile)|kv/kvtest|playground/.*|test/.*

# Lists "race PACKAGE.test", "pure PACKAGE.test" or "kubernetes PACKAGE.test" for every package with tests.
sort_tests = $(GO) list -test -f '{{$$group := "race"}}{{range .Deps}}{{if eq (printf "%.18s" .) "k8s.io/kubernetes/"}}{{$$group = "kubernetes"}}{{end}}{{end}}{{$$group}} {{.ImportPath}}' ./... | \
	sed -E 's,^race ([a-z.-]+/[a-z-]+/[a-z-]+/($(PURE))\.test)$$,pure \1,'
of_group = sed -n 's/^$(1) \(.*\)\.test$$/\1/p'

# The longest of a group begin first, or the last would be tested alone in the end.
longest_first = awk '/\/(test|server|test\/apply|test\/moving|test\/store|test\/partition|kv\/postgres|kv\/partition)$$/ { print; next } { rest = rest $$0 "\n" } END { printf "%s", rest }'

# One group after the other, and two packages of each at once: tests wait, and then others have the
# cores; but whole clusters lose their leases on a machine that computes everything else at once. go
# test would also compile one package while it tests another, and tests that start whole clusters
# would time out; so compile first, with a go list that links nothing. Vetting packages with
# Kubernetes in them would vet all of it: make lint does that.
test: SHELL = bash
test: .SHELLFLAGS = -o pipefail -c
test: go gcc postgres pgbouncer faketime recipes iproute containers ## all tests; installs what is missing
	@tests=$$($(sort_tests)) || exit 1; \
	group() { echo "$$tests" | sed -n "s/^$$1 \(.*\)\.test$$/\1/p" | $(longest_first); }; \
	kubernetes=$$(group kubernetes); race=$$(group race); pure=$$(group pure); \
	$(COMPILE) list -export -test $$kubernetes $$pure || exit 1; \
	$(COMPILE) list $(RACE) -export -test $$race || exit 1; \
	{ status=0; \
	echo "packages that contain Kubernetes"; \
	$(GO) test $(LINK) -p 2 -parallel $(PARALLEL) -vet=off -timeout 60m $$kubernetes || status=1; \
	echo "packages without it: go test $(RACE), and those that only compute without the race detector"; \
	$(GO) test $(RACE) $(LINK) -p 2 -parallel $(PARALLEL) -timeout 20m $$race || status=1; \
	$(GO) vet $(RACE) $$pure || status=1; \
	$(GO) test $(LINK) -p 2 -parallel $(PARALLEL) -vet=off -timeout 20m $$pure || status=1; \
	echo "the examples and the test providers, which are modules of their own"; \
	$(GO) -C examples/operator test ./... || status=1; \
	$(GO) -C examples/site test ./... || status=1; \
	$(GO) -C infra/testproviders test -timeout 20m ./... || status=1; \
	exit $$status; } 2>&1 | $(GO) run ./test/failures

loaded: go ## RUNS=6 runs of make test while all cores and the disk have other work
	$(GO) run ./test/load -runs $(RUNS) -- sh -c '$(GO) clean -testcache && $(MAKE) test'

race: go gcc postgres ## only the tests that run under the race detector
	@tests=$$($(sort_tests)) || exit 1; \
	$(GO) test $(RACE) -parallel $(PARALLEL) -timeout 20m $$(echo "$$tests" | $(call of_group,race) | $(longest_first))

example: go ## the examples, and their tests over three real clusters
	$(GO) -C examples/operator vet ./...
	$(GO) -C examples/operator test ./...
	$(GO) -C examples/site vet ./...
	$(GO) -C examples/site test ./...
	$(GO) test ./test -vet=off -count=1 -v -run 'TestTheExampleOperator|TestAnOperatorDoesNotNotice'

faults: go postgres ## RUNS=6 faulted runs of three servers on a PostgreSQL, or on ATOLL_TEST_DATASTORE (docs/faults.md)
	$(GO) test ./test/faults -v -timeout 2h -run TestFaults -runs $(RUNS)

# What chance decides, for long: each line is one of docs/testing.md. All run, whichever fail.
soak_test = echo "go test $(1)"; began=$$(date +%s); $(GO) test -count=1 -vet=off $(1) || failed="$$failed\n  go test $(1)"; echo "  took $$(($$(date +%s) - began)) s"
soak: go gcc postgres pgbouncer iproute ## the long versions of randomized tests, one to two hours (docs/testing.md)
	@failed=; \
	$(call soak_test,./kv/mvcc -timeout 1h -run TestRandom -runs 100); \
	$(call soak_test,./kv/etcd -timeout 1h -run TestRandom -runs 30); \
	$(call soak_test,./kv/sqlite -timeout 1h -run TestCrash -runs 100); \
	$(call soak_test,./kv/postgres -timeout 1h -run TestRandom -runs 20); \
	$(call soak_test,./test/faults -timeout 1h -run TestFaults$$ -runs 200 -stages 2); \
	$(call soak_test,./test/failover -timeout 2h -runs 200); \
	$(call soak_test,-race ./test/faults -timeout 1h -runs 20); \
	$(call soak_test,-race ./fleet/join ./fleet/sharing ./infra/changesapi ./infra/packages -timeout 1h); \
	$(call soak_test,./test/partition -timeout 1h -time 2m -thorough); \
	$(call soak_test,./test -timeout 1h -run TestNegotiatedSchemasHold -runs 100); \
	$(call soak_test,./test/store -timeout 1h -runs 20 -time 5m); \
	$(call soak_test,./test/tenants -timeout 2h -runs 1000 -sleepers 2000); \
	$(call soak_test,./test/tenants -timeout 2h -runs 100 -postgres); \
	$(call soak_test,./test/moving -timeout 1h -run TestMoves -moves 20); \
	$(call soak_test,./test/moving -timeout 1h -thorough); \
	$(call soak_test,./test/kubelets -timeout 1h -run TestMoves -moves 20); \
	$(call soak_test,./test/moving -timeout 1h -run TestDrain -workloads 200); \
	$(call soak_test,./test -timeout 1h -run TestFenced -fencing); \
	$(call soak_test,./test/apply -timeout 2h -run TestKilledApplies$$ -runs 100 -changes 500); \
	$(call soak_test,./test/negotiation -timeout 2h -run Sound -runs 100000); \
	$(call soak_test,./test/negotiation -timeout 2h -run Mutants -mutants -runs 4000 -seed 9); \
	for fuzz in $$(grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z]+' . | cut -d' ' -f2); do \
		package=$$(dirname $$(grep -rlE --include='*_test.go' "^func $$fuzz\(" .)); \
		$(call soak_test,$$package -run none -fuzz $$fuzz\$$ -fuzztime 1m); \
	done; \
	[ -z "$$failed" ] || { printf "these failed:$$failed\n" >&2; exit 1; }

conformance: go ## the suites of a shared database against DATASTORE=postgres://… (docs/faults.md)
	@[ -n "$(DATASTORE)" ] || { echo "name a database to run against, for this alone: make conformance DATASTORE=postgres://user:password@host:port/database" >&2; exit 1; }
	$(GO) test ./kv/postgres -count=1 -timeout 60m -postgres.url '$(DATASTORE)'
	$(GO) test ./test/faults -count=1 -v -timeout 2h -run 'TestFaults|TestLeases' -runs $(RUNS) -postgres.url '$(DATASTORE)'

floors: go ## the rules of docs/architecture.md, in seconds
	$(GO) test ./floors*_test.go

lint: go floors ## gofmt and go vet
	@unformatted=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) -C infra/testproviders vet ./...

bench: go ## Atoll and etcd side by side (BENCH= takes its flags); minutes, on a quiet machine
	$(GO) run ./bench $(BENCH)

generate: go ## deep copies and CRD YAML from api/
	$(GO) generate ./...

clean: ## remove bin/ and the demo's data
	rm -rf bin .demo

go:
	@command -v $(GO) >/dev/null || { \
		echo "Atoll needs Go $$(sed -n 's/^go //p' go.mod) or newer: https://go.dev/dl" >&2; exit 1; }

# $(call install,PACKAGES,WHAT THEY ARE FOR): by apt-get, where there is one and we may.
install = if [ "$$(id -u)" = 0 ]; then as=""; else as=sudo; fi; \
	command -v apt-get >/dev/null && { [ -z "$$as" ] || command -v sudo >/dev/null; } && \
	echo "installing $(1), which $(2)" && \
	$$as apt-get -qq update && $$as env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(1) >/dev/null

gcc:
	@[ -z "$(RACE)" ] || command -v gcc >/dev/null || { $(call install,gcc libc6-dev,the race detector needs); } || { \
		echo "The race detector needs gcc, and it could not be installed here. Install gcc with your package manager," >&2; \
		echo "or run the tests without the race detector: make test RACE=" >&2; exit 1; }

postgres:
	@command -v postgres >/dev/null || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { $(call install,postgresql,the tests run); } || { \
		echo "The tests run a PostgreSQL of their own, 14 or newer, and it could not be installed here." >&2; \
		echo "Install the server (Debian: postgresql) with your package manager; it need not be started." >&2; exit 1; }

# Without it, the tests through a pooler are skipped.
pgbouncer:
	@command -v pgbouncer >/dev/null || { $(call install,pgbouncer,tests connect through); } || \
		echo "The tests through PgBouncer are skipped: it could not be installed here." >&2

# Without it, the tests in which a database's clock jumps are skipped.
faketime:
	@ls /usr/lib/*/faketime/libfaketime.so.1 /usr/lib*/faketime/libfaketime.so.1 2>/dev/null | grep -q . || { $(call install,libfaketime,moves the clock of databases); } || \
		echo "The tests in which a database's clock jumps are skipped: libfaketime could not be installed here." >&2

# Without them, the tests of docs/recipes.md are skipped.
recipes:
	@command -v haproxy >/dev/null && command -v curl >/dev/null && command -v openssl >/dev/null && command -v psql >/dev/null || \
		{ $(call install,haproxy curl openssl postgresql-client,recipes use); } || \
		echo "The tests of docs/recipes.md are skipped: haproxy curl openssl or psql could not be installed here." >&2

# Only root may cut networks; for others those tests are skipped.
iproute:
	@[ "$$(uname)" != Linux ] || [ "$$(id -u)" != 0 ] || command -v ip >/dev/null || { $(call install,iproute2,tests cut networks with); } || { \
		echo "The tests cut networks of their own with ip, which could not be installed here. Install iproute2 with your package manager." >&2; exit 1; }

# Only root can run nodes; for others, and without these packages, the tests on real kubelets are skipped.
CONTAINERS = containerd runc containernetworking-plugins iptables iproute2 util-linux tini busybox-static
containers:
	@[ "$$(uname)" != Linux ] || [ "$$(id -u)" != 0 ] || { command -v containerd runc tini iptables busybox nsenter >/dev/null && [ -x /usr/lib/cni/bridge ]; } || \
		{ $(call install,$(CONTAINERS),real kubelets need); } || \
		echo "The tests on real kubelets are skipped: $(CONTAINERS) could not be installed here." >&2
