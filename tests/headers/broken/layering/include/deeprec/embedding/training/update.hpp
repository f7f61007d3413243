#include <deeprec/core/detail/private.hpp>
