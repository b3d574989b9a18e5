module tfparallel/testing/cluster/pause

go 1.26.0
