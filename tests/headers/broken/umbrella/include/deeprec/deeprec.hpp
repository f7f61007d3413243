#pragma once

#include <deeprec/core.hpp>
