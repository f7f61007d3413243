/* What benchmarks/<suite>/<suite>_bodies.cpp exports and benchmarks/against calls: the measured bodies of a suite, built
 * into a shared object whose only symbol is deeprec_bodies. Plain C: objects of two commits are loaded into one process.
 *
 * Whoever changes a line of code here raises DEEPREC_BODIES_VERSION: an object of another version is not used. */
#ifndef DEEPREC_BENCHMARKS_BODIES_H
#define DEEPREC_BENCHMARKS_BODIES_H

#include <stdint.h>

#define DEEPREC_BODIES_VERSION 1u

#ifdef __cplusplus
extern "C" {
#endif

/* What the driver does for a body. */
typedef struct deeprec_bodies_host {
  /* The body's memory of this name: on huge pages, all zeros and *fresh = 1 when it is new. Both commits and all their
   * states share it, so that it lies on the same pages for both: put inputs and outputs there, and write inputs while
   * fresh. Null: there is not so much memory. */
  void* (*memory)(void* self, const char* name, uint64_t bytes, int* fresh);
  /* Why make() made nothing because this machine can't run the body. */
  void (*absent)(void* self, const char* why);
  /* What make() or run() found wrong. */
  void (*fault)(void* self, const char* why);
  /* Moves the clock of the driver's option --counted; for tests of the driver. */
  void (*spend)(void* self, double seconds);
  void* self;
} deeprec_bodies_host;

typedef struct deeprec_body {
  const char* name;  /* suite/what/parameter:value */
  uint32_t threads;  /* 1: only the calling thread works, and its processor time is what counts */
  double items;      /* what one run() deals with, and what they are */
  const char* item;
  /* A state, or null. The host outlives it. States of one body are alike whatever the seed: it says where to begin. */
  void* (*make)(const deeprec_bodies_host* host, uint64_t seed);
  int (*run)(void* state);           /* the measured work; not 0: it failed */
  uint64_t (*checksum)(void* state); /* of the answer, when called before anything was run on the body's fresh memory */
  void (*end)(void* state);
} deeprec_body;

typedef struct deeprec_bodies_table {
  uint32_t version; /* DEEPREC_BODIES_VERSION */
  uint32_t count;
  const deeprec_body* bodies;
} deeprec_bodies_table;

__attribute__((visibility("default"))) const deeprec_bodies_table* deeprec_bodies(void);

#ifdef __cplusplus
}
#endif
#endif
