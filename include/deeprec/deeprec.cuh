// Everything for the host, and the device backends. Needs nvcc.
#pragma once

#include <deeprec/deeprec.hpp>
#include <deeprec/embedding/lookup.cuh>
#include <deeprec/exec/cuda_stream.hpp>
