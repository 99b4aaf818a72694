package view

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestVolumesOfOneCluster: a cluster sees the transfers of volumes in which it has a part, and the fencing of its objects.
func TestVolumesOfOneCluster(t *testing.T) {
	b := &v1alpha1.ResourceBinding{}
	b.Spec.Volumes = []v1alpha1.VolumeTransfer{{Claim: "leaves", From: "east", To: "west"}, {Claim: "comes", From: "west", To: "east"}, {Claim: "other", From: "west", To: "north"}}
	b.Spec.Fencing = &v1alpha1.BindingFencing{Lease: metav1.Duration{Duration: time.Minute}}
	got := reduced(b, "east").binding()
	if len(got.Spec.Volumes) != 2 || got.Spec.Volumes[0].Claim != "leaves" || got.Spec.Volumes[1].Claim != "comes" {
		t.Errorf("%+v", got.Spec.Volumes)
	}
	if got.Spec.Fencing == nil || got.Spec.Fencing.Lease.Duration != time.Minute {
		t.Errorf("%+v", got.Spec.Fencing)
	}
}

// TestVolumeReportsAreBounded: another cluster acts on what a cluster says about its volumes.
func TestVolumeReportsAreBounded(t *testing.T) {
	volume := v1alpha1.VolumeDescription{Name: "pv", Driver: "d", Handle: "h", Capacity: resource.MustParse("1Gi"), Request: resource.MustParse("1Gi"), ReclaimPolicy: "Delete"}
	bad := volume
	bad.Handle = ""
	for want, reports := range map[string][]v1alpha1.VolumeReport{
		"":                           {{Claim: "a", Volume: &volume}},
		"more than 32 entries":       make([]v1alpha1.VolumeReport, v1alpha1.MaxVolumeTransfers+1),
		"longer than 1024 bytes":     {{Message: strings.Repeat("x", maxMessageBytes+1)}},
		"no CSI driver or no handle": {{Claim: "a", Volume: &bad}},
	} {
		err := checkVolumes(reports)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
