// expect: "deeprec::batch_reader: not a text format. Fix: "
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/exec/inline_executor.hpp>

struct parquet {};

void call(deeprec::inline_executor& executor) {
#if DEEPREC_MUST_FAIL
  (void)deeprec::read_files(executor, parquet{}, {"part-0.parquet"});
#else
  (void)deeprec::read_files(executor, deeprec::libsvm_format{}, {"part-0.txt"});
#endif
}
