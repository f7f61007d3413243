// Compiled while deeprec is configured: the number of this configuration's units is read from the object.
#include <deeprec/core/config.hpp>

namespace {

constexpr char digit(long long place) {
  return static_cast<char>('0' + static_cast<long long>(DEEPREC_KERNELS_NUMBER) / place % 10);
}

}  // namespace

extern const char deeprec_kernels_number[];
const char deeprec_kernels_number[] = {'d',
                                       'e',
                                       'e',
                                       'p',
                                       'r',
                                       'e',
                                       'c',
                                       '=',
                                       digit(1000000000),
                                       digit(100000000),
                                       digit(10000000),
                                       digit(1000000),
                                       digit(100000),
                                       digit(10000),
                                       digit(1000),
                                       digit(100),
                                       digit(10),
                                       digit(1),
                                       '.',
                                       '\0'};
