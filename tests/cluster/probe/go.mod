module tfparallel/tests/cluster/probe

go 1.26.0
