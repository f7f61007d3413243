#pragma once

#include <deeprec/ops/verb.hpp>
