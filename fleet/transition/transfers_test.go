package transition

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// disk has the claims of a member.
type disk struct {
	claims map[int32]bool // by ordinal
	said   map[string]VolumeReport
	// refuses: the member cannot use volumes of others.
	refuses bool
}

func newDisk() disk { return disk{claims: map[int32]bool{}, said: map[string]VolumeReport{}} }

func (d *disk) report() map[string]VolumeReport { return maps.Clone(d.said) }

// withVolumes gives the replicas volumes, in some fleets.
func (w *world) withVolumes() {
	if !w.in.Volumes.Together && (w.in.Rule != Numbered || w.r.IntN(2) == 0) {
		return
	}
	if w.in.Volumes.Claims = map[int32][]string{}; w.in.Volumes.Together {
		w.in.Volumes.Claims[0] = []string{"data"}
	}
	for ordinal := int32(0); !w.in.Volumes.Together && ordinal < w.in.Wanted; ordinal++ {
		w.in.Volumes.Claims[ordinal] = []string{fmt.Sprintf("data-web-%d", ordinal)}
	}
	w.lost = "" // then nothing is decided to move
	for _, name := range w.names {
		w.members[name].disk.refuses = w.r.IntN(8) == 0
	}
}

// mountTogether has all replicas mount the same claim, in some fleets.
func (w *world) mountTogether() {
	if w.in.Rule == Overlapping || w.in.Rule == Numbered {
		w.in.Volumes.Together = w.r.IntN(3) == 0
	}
}

// volumeOf returns the volume of a replica.
func (w *world) volumeOf(ordinal int32) int32 {
	if w.in.Volumes.Together {
		return 0
	}
	return ordinal
}

// uses reports whether pods of a member use the volume of a transfer.
func (m *member) uses(t *Transfer, w *world) bool {
	if w.in.Volumes.Together {
		return len(m.pods) > 0
	}
	return m.pods[t.Ordinal] != nil
}

// mount is called when a replica starts in a member.
func (w *world) mount(m *member, ordinal int32) {
	if len(w.in.Volumes.Claims) > 0 && !m.disk.claims[w.volumeOf(ordinal)] {
		w.faults = append(w.faults, fmt.Sprintf("replica %d starts with an empty volume", ordinal))
	}
}

// act does the member's part of transfers, now and then.
func (m *member) act(name string, w *world) {
	if m.silent >= 0 || w.r.IntN(3) == 0 {
		return
	}
	said := map[string]VolumeReport{}
	for _, t := range w.in.Volumes.Transfers {
		if state := m.actOn(&t, name, w); state != "" {
			said[t.Claim] = VolumeReport{State: state, Revision: t.Revision}
		}
	}
	m.disk.said = said
}

func (m *member) actOn(t *Transfer, name string, w *world) v1alpha1.VolumeState {
	here := m.disk.claims[t.Ordinal]
	switch {
	case name == t.From && t.Phase == v1alpha1.VolumeRemoving:
		if m.uses(t, w) {
			w.faults = append(w.faults, fmt.Sprintf("the volume of replica %d is removed while it runs", t.Ordinal))
		}
		delete(m.disk.claims, t.Ordinal)
		return v1alpha1.VolumeAbsent
	case name == t.From && t.Phase == v1alpha1.VolumeReturning:
		return v1alpha1.VolumeSettled
	case name == t.From && !m.uses(t, w):
		return v1alpha1.VolumeDetached
	case name == t.From:
		return v1alpha1.VolumeInUse
	case name != t.To:
		return ""
	}
	switch t.Phase {
	case v1alpha1.VolumePreparing:
		if m.disk.refuses && !here {
			return v1alpha1.VolumePending
		}
		return v1alpha1.VolumeReady
	case v1alpha1.VolumeAttaching, v1alpha1.VolumeAttached:
		m.disk.claims[t.Ordinal] = true
		return v1alpha1.VolumeBound
	case v1alpha1.VolumeSettling:
		return v1alpha1.VolumeSettled
	case v1alpha1.VolumeCleaning:
		if m.uses(t, w) {
			w.faults = append(w.faults, fmt.Sprintf("the volume of replica %d is removed while it runs", t.Ordinal))
		}
		delete(m.disk.claims, t.Ordinal)
		return v1alpha1.VolumeAbsent
	}
	return v1alpha1.VolumePending
}

// checkVolumes checks that no volume is lost, and at the end that each is where its replica runs, and nowhere else.
func (w *world) checkVolumes(t *testing.T, done bool) {
	t.Helper()
	if len(w.in.Volumes.Claims) == 0 {
		return
	}
	for _, fault := range w.faults {
		t.Error(fault)
	}
	for ordinal := range w.in.Wanted {
		if w.volumeOf(ordinal) != ordinal {
			continue
		}
		var in []string
		for _, name := range w.names {
			if w.members[name].disk.claims[ordinal] {
				in = append(in, name)
			}
		}
		if len(in) == 0 || done && len(in) > 1 {
			t.Errorf("the volume of replica %d is in %v", ordinal, in)
		}
		for _, s := range w.in.Now {
			if done && s.has(ordinal) && !slices.Contains(in, s.Cluster) {
				t.Errorf("replica %d is to run in %s, and its volume is in %v", ordinal, s.Cluster, in)
			}
		}
	}
}
