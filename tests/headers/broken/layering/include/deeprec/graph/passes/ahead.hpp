#include <deeprec/graph/step/step_graph.hpp>
