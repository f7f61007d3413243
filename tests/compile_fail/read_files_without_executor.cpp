// expect: "deeprec::read_files: no executor, whose threads parse. Fix: read_files.pool, format, paths. with "
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/exec/thread_pool.hpp>

void call(deeprec::thread_pool& pool) {
#if DEEPREC_MUST_FAIL
  auto reader = deeprec::read_files(deeprec::criteo_format{}, {"day_0.tsv"}).or_throw();
  (void)pool;
#else
  auto reader = deeprec::read_files(pool, deeprec::criteo_format{}, {"day_0.tsv"}).or_throw();
#endif
}
