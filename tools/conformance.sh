#!/usr/bin/env bash
# Runs public collections of tests as they are and under `steadfast passthrough`, and prints what differs.
#
#   tools/conformance.sh [python] [stress] [ltp]    these, or all that are there
#
#   TIMES=3            so many times each: a test has a set of results
#   PYTHON_TESTS=DIR   …/lib/python3.11 of libpython3.11-testsuite (unpacked by tools/deps.sh, or installed)
#   LTP=DIR            where the Linux Test Project was installed to (/opt/ltp)
#   ONLY="NAME ..."    of python: these modules; of the others: these tests
#   OUT=DIR            what was printed, and results (target/conformance)
#   STEADFAST=FILE     the binary (target/release/steadfast)
#
# Installs nothing. The collections run where they can do no harm (tools/conformance/contained.sh), as root.
# A difference that docs/conformance.md names (`collection name`) is explained; another one is the status 1.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD/tools/conformance
root=$PWD

times=${TIMES:-1}
out=$(realpath -m "${OUT:-target/conformance}")
steadfast=$(realpath -m "${STEADFAST:-target/release/steadfast}")
ltp=${LTP:-/opt/ltp}
read -ra only <<<"${ONLY:-}"

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

is_there() {
  case $1 in
    python) /usr/bin/python3 "$here/cpython.py" --where >/dev/null || missing "the tests of Python" "tools/deps.sh" ;;
    stress) command -v stress-ng >/dev/null || missing stress-ng "apt-get install stress-ng" ;;
    ltp) [ -e "$ltp/runtest/syscalls" ] || missing "the Linux Test Project" \
      "build https://github.com/linux-test-project/ltp by hand, and name where it was installed: LTP=DIR" ;;
    *) say "there is no collection $1"; exit 2 ;;
  esac
}
missing() {
  say "without $1: $2"
  return 1
}

# units COLLECTION: what is run on its own.
units() {
  if [ ${#only[@]} -gt 0 ]; then printf '%s\n' "${only[@]}"; else "units_of_$1"; fi
}
units_of_python() { listed python; }
units_of_stress() {
  local class
  for class in os scheduler memory filesystem network pipe interrupt; do
    stress-ng --class "$class?" 2>&1 | sed 's/^class.*: *//' | tr ' ' '\n'
  done | grep . | sort -u | grep -vxEf <(listed stress)
}
units_of_ltp() {
  local name command
  while read -r name command _; do
    [ ! -x "$ltp/testcases/bin/$command" ] || echo "$name"
  done <"$ltp/runtest/syscalls" | grep -vxEf <(listed ltp)
}
# listed COLLECTION: the names in its list; behind a name it says why.
listed() { awk '$1 !~ /^(#|not$)/ && NF { print $1 }' "$here/$1.list"; }

# start COLLECTION UNIT WORDS...: runs it, with these words in front; its results, a line for each.
start() { "start_$1" "${@:2}"; }
start_python() {
  local module=$1
  shift
  local exclude=()
  while read -r pattern; do exclude+=(--not "$pattern"); done < <(awk '$1 == "not" { print $2 }' "$here/python.list")
  limited 300 "$@" /usr/bin/python3 "$here/cpython.py" "${exclude[@]}" "$module" 2>"$log" ||
    printf '%s\tends with %s\n' "$module" "$(ending $?)"
}
start_stress() {
  local name=$1 status=0
  shift
  limited 60 "$@" stress-ng "--$name" 1 "--$name-ops" 20 --timeout 2 --verify --oomable --temp-path . >"$log" 2>&1 || status=$?
  printf '%s\tends with %s\n' "$name" "$(ending $status)"
}
start_ltp() {
  local name=$1 status=0 command
  shift
  command=$(awk -v name="$name" '$1 == name { $1 = ""; print; exit }' "$ltp/runtest/syscalls")
  PATH=$ltp/testcases/bin:$PATH LTPROOT=$ltp LTP_COLORIZE_OUTPUT=n TMPDIR=$PWD KCONFIG_SKIP_CHECK=y LTP_RUNTIME_MUL=0.1 \
    limited 60 "$@" sh -c "exec $command" >"$log" 2>&1 || status=$?
  printf '%s\tends with %s:%s\n' "$name" "$(ending $status)" "$(counted)"
}
# What a test of LTP says of its parts.
counted() {
  local what
  for what in TPASS TFAIL TBROK TCONF; do
    printf ' %s %s' "$(grep -c "$what" "$log" || true)" "$what"
  done
}

limited() {
  local seconds=$1
  shift
  setsid --wait timeout --kill-after 5 "$seconds" "$here/contained.sh" "$@" </dev/null
}
ending() {
  case $1 in 124 | 137) echo "no end" ;; *) echo "status $1" ;; esac
}

# run COLLECTION UNIT HOW NUMBER
run() {
  local folder=$out/$1 work
  local log=$folder/$2.$3.$4.log results=$folder/$2.$3.$4.results
  mkdir -p "$folder"
  work=$(mktemp -d)
  chmod 777 "$work"
  case $3 in
    native) set -- "$1" "$2" ;;
    passthrough) set -- "$1" "$2" "$steadfast" passthrough -- ;;
  esac
  (cd "$work" && start "$@") >"$results" || true
  rm -rf "$work"
}

collections=("$@")
[ $# -gt 0 ] || collections=(python stress ltp)
[ "$(id -u)" = 0 ] || { say "needs root, for namespaces"; exit 2; }
[ -x "$steadfast" ] || { say "there is no $steadfast: make build"; exit 2; }
ran=()
for collection in "${collections[@]}"; do
  is_there "$collection" || continue
  ran+=("$collection")
  for unit in $(units "$collection"); do
    say "$collection: $unit"
    for number in $(seq "$times"); do
      run "$collection" "$unit" native "$number"
      run "$collection" "$unit" passthrough "$number"
    done
  done
done
/usr/bin/python3 "$here/compare.py" "$out" docs/conformance.md "${ran[@]}"
