#include <deeprec/embedding/training/update.hpp>
