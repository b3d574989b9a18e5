module tfparallel/testing/cluster/probe

go 1.26.0
