#pragma once

#include <deeprec/core/listed.hpp>
