// Limits OpenMP regions opened by this thread to one thread during its lifetime. Include it only in units
// that are linked with an OpenMP runtime.
#pragma once

#include <deeprec/core/config.hpp>

#if __has_include(<omp.h>)
#  include <omp.h>
#else
extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
}
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class one_openmp_thread {
 public:
  one_openmp_thread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~one_openmp_thread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  one_openmp_thread(const one_openmp_thread&) = delete;
  one_openmp_thread& operator=(const one_openmp_thread&) = delete;

 private:
  int before_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
