#!/usr/bin/env bash
# scripts/format.sh            formats every source file of the checkout
# scripts/format.sh --check    reports the files that are not formatted; exit code 1 if there are any
# Versions of clang-format format differently, so one version is used, installed by pip into build/tools.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "$*" in "" | --check) ;; *) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" && exit 2 ;; esac
[[ "${1:-}" == --check ]] || fetch_clang_format  # the lanes fetch it before they test
tool="$(clang_format)" || { say "no clang-format $clang_format_version here: the format is NOT CHECKED" && exit 77; }
git rev-parse --git-dir >/dev/null 2>&1 || { say "no git checkout here: the format is NOT CHECKED" && exit 77; }
mapfile -d '' files < <(git ls-files -z --cached --others --exclude-standard '*.hpp' '*.cuh' '*.inl' '*.cpp' '*.cu')
if [[ "${1:-}" == --check ]]; then
  failed=0
  printf '%s\0' "${files[@]}" | xargs -0 -P "$jobs" -n 32 "$tool" --dry-run --Werror || failed=1
  # What it can't break, such as a path in a comment.
  if printf '%s\0' "${files[@]}" | LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{111,}'; then
    say "lines of more than 110 columns" && failed=1
  fi
  exit "$failed"
else
  printf '%s\0' "${files[@]}" | xargs -0 -P "$jobs" -n 32 "$tool" -i
fi
