// A line of stages on threads.
#pragma once

#include <deeprec/pipeline/depth_controller.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/pipeline/pipeline_options.hpp>
#include <deeprec/pipeline/stages.hpp>
#include <deeprec/pipeline/statistics.hpp>
