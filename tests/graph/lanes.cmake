deeprec_not_in(tsan "no threads" cut_search_test flat_graph_test smart_stage_test)
