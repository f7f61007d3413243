#!/usr/bin/env bash
# limited.sh kilobytes N COMMAND...     runs a command with that much address space
# limited.sh processors 1 COMMAND...    runs it on the first processor that this process may use
case "$1" in
  kilobytes) ulimit -v "$2" && shift 2 && exec "$@" ;;
  processors)
    allowed="$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
    shift 2 && exec taskset -c "${allowed%%[,-]*}" "$@"
    ;;
esac
exit 2
