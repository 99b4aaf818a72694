package test

// appExceptions lists the objects whose result in the members differs from that in one cluster, with the
// reason; "SET pods" stands for the number of a set's Pods. The list is exact: an entry that no longer differs
// fails the test. docs/apps.md explains the exceptions to users.
func appExceptions() map[string]string {
	const unneeded = "nothing that is placed refers to it"
	return map[string]string{
		"release Secret/sh.helm.release.v1.ledger.v1": unneeded + ": Helm keeps its state in it, where it was run",
		"tenants RoleBinding/developers":              "it is about people, who are users of the control plane",
	}
}
