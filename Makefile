# Everything runs from a clean checkout with Go, gcc, git and make. `make demo` and `make test` are all that a newcomer needs.
GO          ?= go
BIN         := bin
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS     := -s -w -X main.version=$(VERSION)
BUILD_FLAGS := -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
TOOLS       := packaging/tools
TEST_FLAGS  ?= -timeout 14m

.PHONY: all build tools tools-all tools-s3 torture crash bench-store bench-stop bench-handover demo test test-race lint fmt bench bench-windows bench-init conformance image packages test-packaging test-systemd vulncheck sbom clean help

all: build

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/etcd-warden
	CGO_ENABLED=0 $(GO) build $(BUILD_FLAGS) -o $(BIN)/etcd-warden ./cmd/etcd-warden

# The tools are real programs built from pinned modules of their own, so that none of their dependencies reach our go.mod.
# A tool is rebuilt only when its go.mod or go.sum changes.
tools: $(BIN)/etcd $(BIN)/etcdctl $(BIN)/etcdutl ## build the pinned real etcd, etcdctl and etcdutl (once, a few minutes on a cold cache)

tools-all: tools $(BIN)/etcd-3.5 $(BIN)/etcdutl-3.5 $(BIN)/etcd-3.7 $(BIN)/etcdutl-3.7 ## every etcd that the torture runs with

tools-s3: $(BIN)/versitygw ## build the S3 server that the tests use (once, a few minutes on a cold cache)

define tool # $(1) program, $(2) module directory, $(3) package, $(4) why
$(BIN)/$(1): $(TOOLS)/$(2)/go.mod $(TOOLS)/$(2)/go.sum
	@echo "building $(1) ($(4)); the first time takes a few minutes, then it is cached"
	@mkdir -p $(BIN)
	cd $(TOOLS)/$(2) && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(CURDIR)/$(BIN)/$(1) $(3)
	@touch $$@
endef
$(eval $(call tool,etcd,etcd-3.6,go.etcd.io/etcd/server/v3,the etcd that demo and tests supervise))
$(eval $(call tool,etcdctl,etcd-3.6,go.etcd.io/etcd/etcdctl/v3,to look into that etcd))
$(eval $(call tool,etcdutl,etcd-3.6,go.etcd.io/etcd/etcdutl/v3,to check our snapshots with etcd's own tool))
$(eval $(call tool,etcd-3.5,etcd-3.5,go.etcd.io/etcd/server/v3,etcd 3.5))
$(eval $(call tool,etcdutl-3.5,etcd-3.5,go.etcd.io/etcd/etcdutl/v3,etcd 3.5))
$(eval $(call tool,etcd-3.7,etcd-3.7,go.etcd.io/etcd/server/v3,etcd 3.7))
$(eval $(call tool,etcdutl-3.7,etcd-3.7,go.etcd.io/etcd/etcdutl/v3,etcd 3.7))
$(eval $(call tool,versitygw,s3,github.com/versity/versitygw/cmd/versitygw,a real S3 server for the tests))

demo: build tools ## an ownership change, start to end, on loopback
	$(BIN)/etcd-warden demo $(DEMO_FLAGS)

test: build tools tools-s3 ## all tests, with the race detector
	$(GO) test -race -buildvcs=false $(TEST_FLAGS) ./...

test-race: test ## the same as test: the race detector is always on

NFPM := $(BIN)/nfpm
GOVULNCHECK := $(BIN)/govulncheck
$(eval $(call tool,nfpm,nfpm,github.com/goreleaser/nfpm/v2/cmd/nfpm,to build the packages))
$(eval $(call tool,govulncheck,govulncheck,golang.org/x/vuln/cmd/govulncheck,to look for known vulnerabilities))

image: build tools ## the container image etcd-warden:VERSION, from local files only (dist/image is its context)
	packaging/image.sh etcd-warden:$(subst +,-,$(VERSION)) dist/image $(BIN)

packages: build $(NFPM) ## the .deb and the .rpm into dist/
	packaging/package.sh $(BIN)/etcd-warden $(NFPM) $(VERSION) dist

test-packaging: ## Kubernetes examples against the API's types, alerts against Prometheus' parser (modules of their own)
	cd $(TOOLS)/kubernetes && $(GO) test ./...
	cd $(TOOLS)/prometheus && $(GO) test ./...

test-systemd: build tools tools-s3 $(NFPM) ## the package under a real systemd in a container (root, Docker, debootstrap; a few minutes)
	packaging/package.sh $(BIN)/etcd-warden $(NFPM) v0.0.0 dist/test-systemd
	packaging/containertest/rootfs.sh dist/systemd-rootfs.tar
	$(GO) vet -buildvcs=false -tags systemd ./packaging/containertest
	$(GO) test -buildvcs=false -tags systemd -count=1 -timeout 10m -run '^TestSystemd$$' ./packaging/containertest \
		-rootfs $(CURDIR)/dist/systemd-rootfs.tar -deb $(CURDIR)/dist/test-systemd/etcd-warden_0.0.0_$(shell $(GO) env GOARCH).deb

vulncheck: build $(GOVULNCHECK) ## known vulnerabilities in what is linked (asks vuln.go.dev)
	$(GOVULNCHECK) -mode binary $(BIN)/etcd-warden

sbom: build ## dist/etcd-warden.cdx.json and dist/THIRD-PARTY-LICENSES.txt, from the built program
	packaging/sbom.sh $(BIN)/etcd-warden dist

# Long ones, each with a short run among the tests. A run prints its seed, which replays it: make torture N=200 SEED=1.
torture: build tools ## etcds ended in every way under load, each final compared write by write (N rounds, SEED, ETCD=bin/etcd-3.5)
	TORTURE_N=$(N) TORTURE_SEED=$(SEED) TORTURE_ETCD=$(abspath $(ETCD)) \
		$(GO) test -race -buildvcs=false -v -timeout 24h -run TestTortureFinalIsExact ./cmd/etcd-warden

crash: build tools ## wardens killed at random moments of a handover (N rounds, SEED)
	CRASH_N=$(N) CRASH_SEED=$(SEED) $(GO) test -race -buildvcs=false -v -timeout 24h -run TestKilledAtRandomMoments ./cmd/etcd-warden

bench: bench-store bench-init bench-stop bench-handover bench-windows ## all benchmarks; they print ratios measured side by side

bench-store: tools-s3 ## speed and memory of the store beside curl and zstd (2 GiB; needs curl and room in /dev/shm)
	TMPDIR=/dev/shm STORE_SPEED_MIB=2048 STORE_SPEED_ROUNDS=5 \
		$(GO) test -buildvcs=false -count=1 -timeout 40m -v -run '^TestStoreSpeed$$' ./snapshot

bench-stop: tools ## from the loss of ownership to the proof of death, with 200 watchers and 64 writers (ETCD=bin/etcd-3.5)
	HANDOVER_ETCD=$(abspath $(ETCD)) $(GO) test -buildvcs=false -run '^$$' -bench BenchmarkStopInAHandover -benchtime 5x ./cmd/etcd-warden

bench-handover: tools ## from TERM to the committed final of 1 GiB, against cat, sha256sum and zstd
	$(GO) test -buildvcs=false -v -timeout 30m -run '^$$' -bench BenchmarkHandoverOfALarge -benchtime 1x ./cmd/etcd-warden

bench-windows: build tools ## how long an old owner still acknowledges after the record moved
	$(GO) test -buildvcs=false -timeout 20m -run '^$$' -bench LossVisible -benchtime $(or $(N),40)x ./cmd/etcd-warden

bench-init: build ## our init against tini and dumb-init where installed
	$(GO) test -buildvcs=false -run '^$$' -bench '^BenchmarkInit$$' -benchtime 1x -timeout 10m ./supervisor

conformance: build ## an init conformance kit: INITKIT=directory of its source
	@test -n "$(INITKIT)" || { echo "say INITKIT=directory"; exit 1; }
	cd "$(INITKIT)" && $(GO) build -buildvcs=false -o $(CURDIR)/$(BIN)/initkit .
	$(BIN)/initkit --limit 16s --wrap '$(CURDIR)/$(BIN)/etcd-warden run --log-level error --http 127.0.0.1:0 -- {}'

fmt: ## format
	gofmt -l -w cmd supervisor ownership snapshot signals packaging

lint: ## formatting and vet
	@test -z "$$(gofmt -l cmd supervisor ownership snapshot signals packaging)" || { gofmt -l cmd supervisor ownership snapshot signals packaging; exit 1; }
	$(GO) vet -buildvcs=false ./...

clean: ## remove what was built
	rm -rf $(BIN) dist
