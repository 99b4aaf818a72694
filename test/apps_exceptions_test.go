package test

// appExceptions are the objects that do not become in the members what they become
// in one cluster, and why; "SET pods" means the number of a set's pods. The list is
// exact: one that is no exception any more fails the test. docs/apps.md explains them
// to users.
func appExceptions() map[string]string {
	const unneeded, enforcedHere = "nothing that is placed refers to it", "the control plane enforces it on what is applied to it"
	return map[string]string{
		"guardrails ConfigMap/limits":                                     enforcedHere,
		"guardrails ValidatingAdmissionPolicy/guardrails-replicas":        enforcedHere,
		"guardrails ValidatingAdmissionPolicyBinding/guardrails-replicas": enforcedHere,
		"monitoring ConfigMap/dashboard-orders":                           unneeded + ": a sidecar finds it by its label",
		"operator ClusterRole/vault-backup-editor":                        unneeded + ": it is for people who are aggregated into editors",
		"release Secret/sh.helm.release.v1.ledger.v1":                     unneeded + ": Helm keeps its state in it, where it was run",
		"tenants RoleBinding/developers":                                  "it is about people, who are users of the control plane",
	}
}
