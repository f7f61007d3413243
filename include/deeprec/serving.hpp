// Serving models: versions that are replaced while they are read, and sessions of requests.
#pragma once

#include <deeprec/serving/delta_follower.hpp>
#include <deeprec/serving/session_choice.hpp>
#include <deeprec/serving/session_group.hpp>
#include <deeprec/serving/versioned.hpp>
