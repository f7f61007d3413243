"""progress.py PROGRAM WORK: train_ctr, its stderr a terminal, reports how far it is while it reads.

A writer feeds rows into a pipe until the line is there; then, for --predict, the same with a model.
"""
import os
import pty
import select
import subprocess
import sys
import threading
import time

program, work = sys.argv[1:]
rows = open(work + "/rows.tsv", "rb").read()


def shows(args, word):
    terminal, end = pty.openpty()
    run = subprocess.Popen([program, *args], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    stop = threading.Event()

    def feed():
        try:
            while not stop.is_set():
                run.stdin.write(rows * 3)
                time.sleep(0.05)
            run.stdin.close()
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=feed)
    writer.start()
    seen, due = b"", time.monotonic() + 200
    while word not in seen and time.monotonic() < due:
        if select.select([terminal], [], [], 1)[0]:
            try:
                got = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not got:
                break
            seen += got
    stop.set()
    writer.join()
    run.kill()
    run.wait()
    if word not in seen:
        sys.exit(f"train_ctr {args} wrote {seen!r} and not {word!r}")


shows(["--data", "-", "--model", "lr", "--memory", "3G"], b"read  ")
shows(["--load", work + "/clicks", "--predict", "-", "--output", "/dev/null"], b"predict  ")
