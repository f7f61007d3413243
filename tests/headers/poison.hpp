// Macros that well-known headers leave behind: complex.h, termios.h, sys/sysmacros.h, windows.h, Qt,
// logging libraries. A header that uses such a name breaks here, and not at a user's.
#pragma once

#define I poisoned(I)
#define B0 poisoned(B0)
#define major(x) poisoned(major, x)
#define minor(x) poisoned(minor, x)
#define min(a, b) poisoned(min, a, b)
#define max(a, b) poisoned(max, a, b)
#define emit poisoned(emit)
#define small poisoned(small)
#define near poisoned(near)
#define far poisoned(far)
#define ERROR poisoned(ERROR)
#define OK poisoned(OK)
#define DELETE poisoned(DELETE)
#define CHECK(x) poisoned(CHECK, x)
#define check_ poisoned(check_)
