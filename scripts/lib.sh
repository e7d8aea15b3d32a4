# What the scripts of this folder share; sourced by them, with bash, in the root of the repository.
# Each script does all that it can, says what failed, and only then ends with a status.

set -u -o pipefail

failed=()  # names of the steps that failed
missing=() # what could not be had, a sentence each

say() { printf '\n== %s\n' "$*"; }

# step NAME COMMAND...: runs the command, remembers its failure, says how long it took, goes on.
step() {
	local name=$1 began=$SECONDS
	shift
	say "$name"
	"$@" || failed+=("$name")
	echo "($((SECONDS - began)) s)"
}

# finish: what is missing, what failed, and the status.
finish() {
	local line
	if [ ${#missing[@]} -gt 0 ]; then
		say "Missing here"
		printf '%s\n' "${missing[@]}"
		if [ "${CI:-}" = true ]; then failed+=("with CI=true nothing may be missing"); fi
	fi
	if [ ${#failed[@]} -gt 0 ]; then
		say "${0##*/}: FAILED after $SECONDS s"
		for line in "${failed[@]}"; do printf '  %s\n' "$line"; done
		exit 1
	fi
	local green="all green"
	if [ ${#missing[@]} -gt 0 ]; then green="not everything could run, see above; what did is green"; fi
	say "${0##*/}: $green, after $SECONDS s"
}

# need_go: also where Go's own instructions put it, for all that is started from here.
need_go() {
	command -v go >/dev/null || export PATH="$PATH:/usr/local/go/bin"
	command -v go >/dev/null && return
	echo "Go is missing: install the version that go.mod names, from https://go.dev/dl/, and put it into PATH." >&2
	exit 1
}

golangci=github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

formatted() {
	local files
	files=$(gofmt -l .) || return 1
	[ -z "$files" ] && return
	printf 'not formatted, run gofmt -w:\n%s\n' "$files"
	return 1
}

# module_of DIR: the path of the module whose go.mod is in the folder.
module_of() { awk '$1 == "module" { print $2 }' "$1/go.mod"; }

# module_dirs: the folders of all modules of the repository, the root first.
module_dirs() { git ls-files go.mod '*/go.mod' | grep -v /testdata/ | xargs -n 1 dirname | LC_ALL=C sort; }

# released_dirs: the folders of the modules that get a tag with each release: not programs to learn from or to test with, unless
# a module with a tag requires them.
released_dirs() {
	local dir more='^(bench|e2e|examples|internal)(/|$)' all chosen
	all=$(module_dirs)
	chosen=$(grep -Ev "$more" <<<"$all")
	while more=$(for dir in $chosen; do own_requirements "$dir"; done | LC_ALL=C sort -u | grep -vxFf <(echo "$chosen")); do
		chosen+=$'\n'$more
	done
	LC_ALL=C sort <<<"$chosen"
}

# own_requirements DIR: the folders of the modules of this repository that the one in DIR requires.
own_requirements() {
	local root
	root=$(module_of .)
	awk -v root="$root" '{ sub(/^require /, "") } $1 == root && $2 ~ /^v/ { print "." }
		index($1, root "/") == 1 && $2 ~ /^v/ { print substr($1, length(root) + 2) }' "$1/go.mod"
}

# need_packages: sets `packages` to the packages of all modules but bench, and but those of e2e that compile Prometheus,
# drive a browser or play the pages for newcomers, which have a step of their own.
need_packages() { packages=($(go list work | grep -Ev '/bench(/|$)|/e2e(/dashboard|/console|/start)?$')) || exit 1; }

# alone: each module is built and vetted without the workspace, as its users build it.
alone() {
	local dir status=0
	for dir in $(module_dirs); do GOWORK=off go -C "$dir" vet "${race[@]}" ./... || status=1; done
	return $status
}

can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

updated=no
# apt_install PACKAGE...: from the Debian archive. What counts afterwards is whether the program is there.
apt_install() {
	say "Installing $*"
	if [ $updated = no ]; then
		updated=yes
		apt-get update -q || echo "apt-get update failed; trying with the lists that are here" >&2
	fi
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# need_program PROGRAM PACKAGE WHAT_FOLLOWS: installs the package if the program is not in PATH and that is possible,
# and notes what follows if it is still not there.
need_program() {
	command -v "$1" >/dev/null && return
	can_install && apt_install "$2"
	command -v "$1" >/dev/null && return
	missing+=("$1: $3 (on Debian, as root: apt-get install $2)")
	return 1
}

# need_venv WHAT_FOLLOWS: a Python that can make an environment of its own, which Debian packs apart.
need_venv() {
	python3 -c 'import ensurepip' 2>/dev/null && return
	can_install && apt_install python3-venv
	python3 -c 'import ensurepip' 2>/dev/null && return
	missing+=("python3 with venv: $1 (on Debian, as root: apt-get install python3-venv)")
	return 1
}

need_redis() {
	local follows="tests against a real Redis were skipped; ONCEMILL_TEST_REDIS=redis://... names one to use"
	if [ -n "${ONCEMILL_TEST_REDIS:-}" ]; then
		follows="only tests that can use the server of ONCEMILL_TEST_REDIS ran; those that start and kill their own were skipped"
	fi
	need_program redis-server redis-server "$follows"
}

race=() # the flags of the race detector, where it can work
# need_race: the race detector needs cgo, and that a C compiler. It does not watch SQLite itself, which is C in Go's clothes:
# that made its tests three times as long, and calls from our code look the same. Without the tables of debuggers a
# hundred programs are linked in two thirds of the time.
need_race() {
	if need_compiler "the race detector was off"; then
		race=(-race "-gcflags=modernc.org/...=-race=false" -ldflags=-w)
		export CGO_ENABLED=1
	else
		export CGO_ENABLED=0
	fi
}

# need_postgres: initdb is in a folder of its own on Debian, out of PATH.
need_postgres() {
	local follows="tests against a real PostgreSQL were skipped; ONCEMILL_TEST_POSTGRES=postgres://... names one to use"
	if [ -n "${ONCEMILL_TEST_POSTGRES:-}" ]; then
		follows="only tests that can use the server of ONCEMILL_TEST_POSTGRES ran; those that start and kill their own were skipped"
	fi
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && return
	need_program initdb postgresql "$follows" && return
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && unset 'missing[-1]'
}

# need_mariadb: Debian's package starts a server at once and at every boot: not here.
need_mariadb() {
	local follows="tests against a real MariaDB were skipped; ONCEMILL_TEST_MYSQL, a DSN, names one to use" theirs=no
	[ -x /usr/sbin/mariadbd ] && return
	if can_install; then
		systemctl cat mariadb >/dev/null 2>&1 && theirs=yes
		without_services apt_install mariadb-server
		[ $theirs = yes ] || systemctl disable --now mariadb >/dev/null 2>&1 # nor at the next boot
	fi
	[ -x /usr/sbin/mariadbd ] || missing+=("mariadbd: $follows (on Debian, as root: apt-get install mariadb-server)")
}

# need_kafka: Java for the broker, and Maven, which fetches its jars: here, where one sees that and no test's time runs out.
# After need_race: with its flags everything is compiled once.
need_kafka() {
	local follows="tests against a real Kafka were skipped"
	need_program java default-jre-headless "$follows" && need_program mvn maven "$follows" || return
	say "Kafka's jars: about 50 MB, once"
	go test "${race[@]}" -count=1 -timeout 20m -v -run '^TestKafka_JarsAreFetchedOnce$' ./internal/testserver/kafkatest
}

# need_rabbitmq: Debian's package starts a server at once and at every boot: not here.
need_rabbitmq() {
	local follows="tests against a real RabbitMQ were skipped" theirs=no
	command -v rabbitmq-server >/dev/null && return
	if can_install; then
		systemctl cat rabbitmq-server >/dev/null 2>&1 && theirs=yes
		without_services apt_install rabbitmq-server
		[ $theirs = yes ] || systemctl disable --now rabbitmq-server >/dev/null 2>&1 # nor at the next boot
	fi
	command -v rabbitmq-server >/dev/null && return
	missing+=("rabbitmq-server: $follows (on Debian, as root: apt-get install rabbitmq-server)")
	return 1
}

# need_dynalite: npm, which fetches it once, into the user's cache.
need_dynalite() { need_program npm npm "tests against dynalite, which stands in for DynamoDB, were skipped"; }

# need_cassandra: as need_kafka. It needs Java 17, or 11, which Debian 12 has.
need_cassandra() {
	local follows="tests against a real Cassandra were skipped"
	need_program java openjdk-17-jre-headless "$follows" && need_program mvn maven "$follows" || return
	say "Cassandra's jars: about 50 MB, once"
	go test "${race[@]}" -count=1 -timeout 20m -v -run '^TestCassandra_JarsAreFetchedOnce$' ./internal/testserver/cassandratest
}

# need_prometheus: Debian's package for a server, which it starts at once and at every boot: not here.
need_prometheus() {
	local follows="dashboards, rules and alerts were not tried on a real Prometheus"
	if ! has_prometheus && can_install; then
		local theirs=no
		systemctl cat prometheus >/dev/null 2>&1 && theirs=yes
		without_services apt_install prometheus
		[ $theirs = yes ] || systemctl disable --now prometheus >/dev/null 2>&1 # nor at the next boot
	fi
	local program
	for program in prometheus promtool; do # not need_program, which would install it with its service
		command -v $program >/dev/null && continue
		missing+=("$program: $follows (on Debian, as root: apt-get install prometheus)")
		return 1
	done
}

axe_version=4.14.1

# need_chromium: a browser for the tests of the console, and axe-core, which finds what keeps people with disabilities out.
need_chromium() {
	local follows="the console was not tried in a browser" cache=${XDG_CACHE_HOME:-$HOME/.cache}/oncemill/axe-core-$axe_version
	need_program chromium chromium "$follows" || return
	if [ ! -e "$cache/node_modules/axe-core/axe.min.js" ]; then
		need_program npm npm "axe-core did not look at the console" || return
		say "axe-core: once"
		npm install --prefix "$cache" --ignore-scripts --no-audit --no-fund "axe-core@$axe_version" || return
	fi
	export ONCEMILL_TEST_AXE=$cache/node_modules/axe-core
}

has_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }

policy=/usr/sbin/policy-rc.d # what Debian's packages ask before they start a service; see policy-rc.d(8)

# without_services COMMAND...: no package that the command installs may start a service. In a shell of its own, whose end, by
# a signal too, takes the policy away. A machine that has a policy keeps that.
without_services() (
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		trap 'exit 129' HUP
		trap 'exit 130' INT
		trap 'exit 143' TERM
		printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" || exit 1
	fi
	"$@"
)

# need_compiler WHAT_FOLLOWS: a C compiler with the headers of the C library.
need_compiler() {
	links_c && return
	can_install && apt_install gcc libc6-dev
	links_c && return
	missing+=("a C compiler: $1 (on Debian, as root: apt-get install gcc libc6-dev)")
	return 1
}

links_c() {
	echo '#include <stdlib.h>
int main(void) { return 0; }' | $(CGO_ENABLED=1 go env CC) -x c -o /dev/null - >/dev/null 2>&1
}
