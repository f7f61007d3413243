#!/usr/bin/env bash
# scripts/format.sh            formats every source file of the checkout
# scripts/format.sh --check    names the files that are formatted otherwise; exit code 1 where there are some
# Versions of clang-format differ in what they make of one style, so it is one version, fetched by pip into build/tools.

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case "$*" in "" | --check) ;; *) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}" && exit 2 ;; esac
fetch_clang_format
tool="$(clang_format)" || { say "no clang-format $clang_format_version here: the format is NOT CHECKED" && exit 77; }
mapfile -d '' files < <(git ls-files -z '*.hpp' '*.cuh' '*.inl' '*.cpp' '*.cu')
if [[ "${1:-}" == --check ]]; then
  printf '%s\0' "${files[@]}" | xargs -0 -P "$jobs" -n 32 "$tool" --dry-run --Werror
else
  printf '%s\0' "${files[@]}" | xargs -0 -P "$jobs" -n 32 "$tool" -i
fi
