#!/usr/bin/env bash
# limited.sh KILOBYTES COMMAND...: runs a command with that much address space.
ulimit -v "$1" && shift && exec "$@"
