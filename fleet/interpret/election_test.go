package interpret

import "testing"

// TestElectsLeader: flags and variables of well-known operators.
func TestElectsLeader(t *testing.T) {
	for pod, want := range map[string]bool{
		`{containers: [{args: [--leader-elect]}]}`:                                                   true,
		`{containers: [{args: [--v=2, --leader-elect=true]}]}`:                                       true,
		`{containers: [{args: [--leader-elect=false]}]}`:                                             false,
		`{containers: [{args: [--enable-leader-election]}]}`:                                         true,
		`{containers: [{args: [--leader-election-namespace=kube-system]}]}`:                          true,
		`{containers: [{command: [/manager, --leaderElect]}]}`:                                       true,
		`{containers: [{args: [--disable-leader-election]}]}`:                                        false,
		`{containers: [{env: [{name: LEADER_ELECTION, value: "true"}]}]}`:                            true,
		`{containers: [{env: [{name: ENABLE_LEADER_ELECTION, value: "false"}]}]}`:                    false,
		`{containers: [{env: [{name: LEADER_ELECTION_ID, valueFrom: {fieldRef: {fieldPath: x}}}]}]}`: false,
		`{containers: [{args: [serve, --elect, --leader]}]}`:                                         false,
		`{}`: false,
	} {
		if got := ElectsLeader(parse(t, pod).Object, func() Rights { return Rights{} }); got != want {
			t.Errorf("%s: %v", pod, got)
		}
	}
}

// TestOperatorsElectLeaders: many do unless a flag forbids it. The rights of their account tell.
func TestOperatorsElectLeaders(t *testing.T) {
	const pod, forbidden = `{containers: [{args: [-v=2]}]}`, `{containers: [{args: [--leader-elect=false, --leader-election-namespace=kube-system]}]}`
	for name, tt := range map[string]struct {
		pod, role string
		want      bool
	}{
		"an operator": {pod, `rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}, {apiGroups: [example.com], resources: [databases/status], verbs: [patch]}]`, true},
		"a flag":      {forbidden, `rules: [{apiGroups: [coordination.k8s.io, example.com], resources: ["*"], verbs: ["*"]}]`, false},
		"reads only":  {pod, `rules: [{apiGroups: [coordination.k8s.io, example.com], resources: ["*"], verbs: [get, list, watch]}]`, false},
		"an ingress":  {pod, `rules: [{apiGroups: [coordination.k8s.io, networking.k8s.io], resources: [leases, ingresses/status], verbs: [update]}]`, false},
		"no election": {pod, `rules: [{apiGroups: [example.com], resources: [databases], verbs: [update]}]`, false},
		"an admin":    {pod, `rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]`, false},
	} {
		role := RightsOf(parse(t, tt.role))
		if got := ElectsLeader(parse(t, tt.pod).Object, func() Rights { return role }); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestStatusKeeper: who writes the status here, and who did so after Atoll ("!"). The times of writes are not
// kept.
func TestStatusKeeper(t *testing.T) {
	const own = `{manager: own, subresource: status, time: "2026-01-01T00:00:10Z"}`
	for manifest, want := range map[string]string{
		`metadata: {name: a}`: "",
		`metadata: {managedFields: [{manager: kubectl, operation: Update}, ` + own + `]}`:                                      "",
		`metadata: {managedFields: [{manager: kubectl-patch, subresource: status}]}`:                                           "kubectl-patch",
		`metadata: {managedFields: [{manager: velero-server, subresource: status}]}`:                                           "",
		`metadata: {managedFields: [{manager: operator, subresource: status, time: "2026-01-01T00:00:05Z"}, ` + own + `]}`:     "operator",
		`metadata: {managedFields: [{manager: operator, subresource: status, time: "2026-01-01T00:00:15Z"}, ` + own + `]}`:     "operator!",
		`metadata: {managedFields: [{manager: kubectl-edit, subresource: status, time: "2026-01-01T00:00:15Z"}, ` + own + `]}`: "kubectl-edit",
		`metadata: {managedFields: [{manager: velero-server, subresource: status}, {manager: operator, subresource: status}]}`: "operator",
	} {
		obj := parse(t, manifest)
		TrimToStatusManagers(obj, "own")
		keeper := StatusKeeper(obj)
		if contender := StatusContender(obj); contender != "" {
			keeper += "!"
		}
		if keeper != want {
			t.Errorf("%s: %q", manifest, keeper)
		}
		for _, e := range obj.GetManagedFields() {
			if e.Time != nil {
				t.Error("it has a time")
			}
		}
	}
}
