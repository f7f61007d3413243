#!/usr/bin/env bash
# test_script_test.sh SCRIPTS PARTS.TXT   scripts/test.sh in a repository whose parts take recorded seconds, and no real ones.

set -uo pipefail
scripts="$(realpath "$1")" parts="$(realpath "$2")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAILED: $*" && failed=1; }

# A repository and its tools. behave/PART has what the fake ctest does: fail, or hang.
house="$work/a house" bin="$work/bin"
mkdir -p "$house/scripts" "$house/tests" "$bin" "$work/behave"
cp "$scripts/test.sh" "$scripts/common.sh" "$house/scripts/"
for tool in bash env awk sed grep date dirname realpath mkdir rm tee timeout sleep git cat nproc uname tr head wc id; do
  path="$(type -P "$tool")" && ln -s "$path" "$bin/$tool"
done
cat >"$bin/cmake" <<'END'
#!/usr/bin/env bash
if [[ "$1" == --preset ]]; then mkdir -p "build/$2" && : >"build/$2/build.ninja"; fi
if [[ "$1" == --build && -f "$STUB/behave/unbuilt" && "${*: -1}" == "$(cat "$STUB/behave/unbuilt")" ]]; then exit 1; fi
exit 0
END
cat >"$bin/ctest" <<'END'
#!/usr/bin/env bash
if [[ " $* " == *" -N "* ]]; then cat "$STUB/behave/lost" 2>/dev/null; exit 0; fi
part=release
for ((i = 1; i <= $#; ++i)); do
  if [[ "${!i}" == -L ]]; then j=$((i + 1)) part="${!j//[\^\$]/}"; fi
done
echo "$part" >>"$STUB/ran"
mkdir -p "$2/Testing/Temporary"
printf '[doctest] test cases: 3 | 3 passed\n[doctest] assertions: 5 | 5 passed\n' >"$2/Testing/Temporary/LastTest.log"
case "$(cat "$STUB/behave/$part" 2>/dev/null)" in
  hang) exec sleep 300 ;;
  fail) printf '1/1 Test #1: x ...***Failed 1 s\n\n0%% tests passed, 1 tests failed out of 1 of %s\n' "$part" && exit 8 ;;
esac
printf '\n100%% tests passed, 0 tests failed out of 1 of %s\n' "$part"
END
printf '#!/usr/bin/env bash\nsleep 0.2\n' >"$bin/c++"
chmod +x "$bin"/{cmake,ctest,c++}
: >"$house/CMakePresets.json"
table() { printf '# the probe of scripts/test.sh takes 0.2 s.\n' && printf '%s\n' "$@"; }
table "release release 1000 the first" "one release 2000 a" "two asan 3000 b" "three tsan 4000 c" >"$house/tests/parts.txt"
git_here() { git -C "$house" -c user.name=x -c user.email=x@x "$@"; }
git_here init -q && git_here commit -q --allow-empty -m 1

probe=0.2 # as recorded
# run <arguments>...: the script's output is in $said, its end in $code, the parts that ran in $ran.
run() {
  rm -rf "$house/build" "$work/ran"
  said="$(cd / && env -i PATH="$bin" HOME="$work" STUB="$work" DEEPREC_PROBE_SECONDS="$probe" bash "$house/scripts/test.sh" "$@" 2>&1)"
  code=$?
  ran="$(cat "$work/ran" 2>/dev/null | tr '\n' ' ')"
}
expect() { [[ "$2" == $3 ]] || fail "$1: '$2' is not like '$3'; it printed: $said"; }

run
expect "alone" "$code $ran" "0 release "
run all
expect "without a limit" "$code $ran" "0 release one two three "
expect "the counts" "$said" "*== two: 3 test cases, 5 assertions; built in*"
run tsan
expect "a lane" "$code $ran" "0 three "
run nonsense
expect "an unknown part" "$code" 2

# One commit: the parts after the first begin at the second. Each is predicted with a tenth more.
run all --within 5000s
expect "the order begins elsewhere, and what fits is run" "$code $ran" "0 release two three one "
probe=0.24
run all --within 5000s
expect "what does not fit is left out" "$code $ran" "0 release two one "
expect "and named" "$said" "*LEFT OUT: three: c (it would take *"
probe=0.2
git_here commit -q --allow-empty -m 2
run all --within 5000s
expect "with another commit at another part" "$code $ran" "0 release three one two "
run all --within 4000s
expect "what no order can reach is an error" "$code" 1
expect "and named" "$said" "*== three can't end within 4000 s, wherever the order begins*FAILED: three*"

# A slow machine: the probe takes eight times as long.
probe=1.6
run all --within 20000s
expect "a slow machine does less" "$code $ran" "0 release one "
expect "and names it" "$said" "*LEFT OUT: three:*LEFT OUT: two:*"
probe=0.2

# What hangs is cut off; what fails fails, and its closing lines come last.
table "release release 1 the first" "one release 1 a" "two asan 1 b" >"$house/tests/parts.txt"
echo hang >"$work/behave/one"
run all --within 20s
expect "what takes too long is cut off" "$code" 0
expect "and named" "$said" "*LEFT OUT: one: a (cut off*100% tests passed, 0 tests failed out of 1 of release"
echo fail >"$work/behave/one"
run all
expect "a failure is an error" "$code" 1
expect "and the end of the output" "$said" "*FAILED: one*0% tests passed, 1 tests failed out of 1 of one"
rm "$work/behave/one" && echo part_two >"$work/behave/unbuilt"
run all
expect "so is a part that does not build" "$code $ran" "1 release one "
rm "$work/behave/unbuilt" && printf '  Test #7: nobodys\n' >"$work/behave/lost"
run all
expect "and a test that belongs to no part" "$code" 1
expect "by its name" "$said" "*these tests belong to no part: nobodys*"
rm "$work/behave/lost"

# The real probe gives a pace; without its recorded seconds nothing begins.
probe=
run all --within 90000s
expect "the probe" "$code $said" "0 *== a unit compiles here in [0-9]*.[0-9]* times the recorded time*"
sed -i 's/takes 0.2 s/takes 0 s/' "$house/tests/parts.txt"
run all --within 90000s
expect "no recorded probe" "$code $ran" "2 "

# The parts of this repository can all be reached within the minutes of its CI.
grep -Eq 'probe of scripts/test.sh takes [0-9]*[.]?[0-9]*[1-9][0-9]* s' "$parts" || fail "the probe's seconds of this repository"
minutes="$(sed -n 's/.*--within \([0-9]*\).*/\1/p' "$scripts/../.ci/run")"
first="$(awk '$1 == "release" { print $3 }' "$parts")"
awk -v first="$first" -v most="$((${minutes:-0} * 60))" '/^[a-z]/ && $1 != "release" && first + $3 > most { print $1; bad = 1 } END { exit bad }' \
  "$parts" || fail "parts that no order reaches within ${minutes:-no} minutes"
exit "$failed"
