package test

// appExceptions are the objects that do not become in the members what they become
// in one cluster, and why; "SET pods" means the number of a set's pods. The list is
// exact: one that is no exception any more fails the test. docs/apps.md explains them
// to users.
func appExceptions() map[string]string {
	return map[string]string{}
}
