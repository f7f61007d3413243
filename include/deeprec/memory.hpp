// Memory resources.
#pragma once

#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/memory/reclaimer.hpp>
