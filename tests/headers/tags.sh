#!/usr/bin/env bash
# tests/headers/tags.sh ROOT HEADER...   Universal Ctags sees what public headers define: at least one type, function, variable or
# concept in namespace deeprec of each that defines anything, and none where the namespace is spelt as before.
set -euo pipefail
[[ "$(ctags --version 2>/dev/null)" == *"Universal Ctags"* ]] || { echo "SKIPPED: no Universal Ctags"; exit 77; }
root="$1"
shift
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

# Names that FILE defines in the library's namespace itself.
tags_of() {
  ctags -f - --language-force=C++ --kinds-C++=+p --fields=+s "$1" |
    awk -F'\t' '/\tnamespace:deeprec::DEEPREC_ABI(\t|$)/ { print $1 }' | sort -u
}

failed=0 total=0
for header in "$@"; do
  count="$(tags_of "$root/include/$header" | wc -l)"
  total=$((total + count))
  echo "$count $header"
  if ((count == 0)) && grep -q "inline namespace DEEPREC_ABI" "$root/include/$header"; then
    echo "FAILED: $header defines names that ctags does not see" && failed=1
  fi
done
echo "$total names"

sed 's/^namespace deeprec { inline namespace DEEPREC_ABI {/namespace deeprec::inline DEEPREC_ABI {/; s/^}}  \/\/ namespace deeprec::DEEPREC_ABI/}/' \
  "$root/include/deeprec/core/status.hpp" >"$place/respelt.hpp"
if [[ -n "$(tags_of "$place/respelt.hpp")" ]]; then echo "FAILED: this check sees tags in a spelling that hides them" && failed=1; fi
exit "$failed"
