#include <deeprec/embedding/batches/detail/entries.hpp>
