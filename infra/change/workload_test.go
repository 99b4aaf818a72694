package change

import "testing"

func TestWorkloadAddress(t *testing.T) {
	for _, version := range []string{"v1", "apps/v1", `od"d]./v1`} {
		a := WorkloadAddress("shop", version, "Deployment", "web")
		if got, kind, is := a.Workload(); !is || got != version || kind != "Deployment" {
			t.Errorf("%s: %q %q %v", a, got, kind, is)
		}
	}
	if a := WorkloadAddress("shop", "apps/v1", "Deployment", "web"); a.String() != `namespace["shop"].k8s["apps/v1"].Deployment["web"]` {
		t.Errorf("it is formatted as %s", a)
	}
	for _, typeName := range []string{"k8s_thing", "k8s", "aws_vpc", "k8s[", `k8s["v1"`, "k8s[v1].Pod"} {
		if _, _, is := (Address{Type: typeName}).Workload(); is {
			t.Errorf("%s is parsed as a workload", typeName)
		}
	}
}
