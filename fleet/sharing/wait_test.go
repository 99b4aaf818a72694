package sharing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// reported builds a status of a generation from a compact notation:
// "east=Exposed:a.x/v1".
func reported(generation int64, entries string) *v1alpha1.SharedAPI {
	s := &v1alpha1.SharedAPI{}
	s.Status.ObservedGeneration = generation
	for _, word := range strings.Fields(entries) {
		name, rest, _ := strings.Cut(word, "=")
		reason, versions, _ := strings.Cut(rest, ":")
		e := v1alpha1.ClusterExposure{Name: name, Reason: reason, Exposed: reason == v1alpha1.ExposureExposed, Message: "the message"}
		if versions != "" {
			e.Versions = strings.Split(versions, ",")
		}
		s.Status.Clusters = append(s.Status.Clusters, e)
	}
	return s
}

func TestFollowerExpose(t *testing.T) {
	f := newFollower(change{clusters: []string{"east", "west"}, groups: []string{"a.x"}}, 2, false)
	at := time.Unix(0, 0)
	steps := []struct {
		after         time.Duration
		generation    int64
		entries       string
		lines, remain string
		hopeless      bool
	}{
		{0, 0, "", "", "east,west", false},
		{0, 1, "east=Exposed", "east: Exposed", "east,west", false}, // from before the change
		{0, 2, "east=Exposed west=Applying", "west: Applying", "west", false},
		{0, 2, "east=Exposed west=GroupConflict", "west: Applying → GroupConflict", "west", false},
		{2 * time.Second, 2, "east=Exposed west=GroupConflict", "", "west", false},
		{time.Second, 2, "east=Exposed west=GroupConflict", "", "west", true},
		{0, 2, "east=Unavailable west=GroupConflict", "east: Exposed → Unavailable: the message", "east,west", false}, // a permanent failure is not final while another cluster may recover
		{0, 2, "east=Exposed west=Exposed", "east: Unavailable → Exposed\nwest: GroupConflict → Exposed", "", false},
	}
	for i, step := range steps {
		at = at.Add(step.after)
		s := reported(step.generation, step.entries)
		lines := strings.Join(f.observe(at, s), "\n")
		pending := f.pending(s)
		if lines != step.lines || strings.Join(pending, ",") != step.remain || len(pending) > 0 && f.hopeless(at, pending) != step.hopeless {
			t.Errorf("step %d: printed %q, waits for %v, hopeless %v", i, lines, pending, f.hopeless(at, pending))
		}
	}
}

func TestFollowerUnexpose(t *testing.T) {
	was := reported(1, "")
	was.Spec = v1alpha1.SharedAPISpec{Groups: []string{"a.x", "b.x"}, Clusters: []string{"east", "west"}}
	whole := change{old: was, clusters: []string{"east", "west"}, groups: []string{"a.x", "b.x"}}
	one := change{old: was, spec: &v1alpha1.SharedAPISpec{Groups: []string{"a.x", "b.x"}, Clusters: []string{"west"}}, clusters: []string{"east"}, groups: []string{"a.x", "b.x"}}
	group := change{old: was, spec: &v1alpha1.SharedAPISpec{Groups: []string{"b.x"}, Clusters: []string{"east", "west"}}, clusters: []string{"east", "west"}, groups: []string{"a.x"}}
	tests := []struct {
		name          string
		c             change
		s             *v1alpha1.SharedAPI // nil: deleted
		lines, remain string
	}{
		{"deleted", whole, nil, "east: Removed\nwest: Removed", ""},
		{"deleted, in parts", whole, reported(2, "west=Removing"), "east: Removed\nwest: Removing", "west"},
		{"deleted, not seen yet", whole, reported(1, "west=Removing"), "west: Removing", "east,west"},
		{"from one, not seen yet", one, reported(1, "east=Exposed west=Exposed"), "", "east"},
		{"from one", one, reported(2, "west=Exposed"), "east: Removed", ""},
		{"one group, not told yet", group, reported(2, "east=Exposed:b.x/v1,a.x/v1 west=Exposed:b.x/v1"), "", "east"},
		{"one group", group, reported(2, "east=Exposed:b.x/v1 west=NoServers:b.x/v1"), "", ""},
		{"one group, of one that does not answer", group, reported(2, "east=Exposed:b.x/v1 west=ClusterUnreachable"), "", "west"},
	}
	for _, tt := range tests {
		f := newFollower(tt.c, 2, true)
		lines := strings.Join(f.observe(time.Unix(0, 0), tt.s), "\n")
		if pending := strings.Join(f.pending(tt.s), ","); lines != tt.lines || pending != tt.remain {
			t.Errorf("%s: printed %q, waits for %q", tt.name, lines, pending)
		}
	}
}

func TestFollowerCountsManyClusters(t *testing.T) {
	c, entries := change{groups: []string{"a.x"}}, ""
	for i := range 30 {
		c.clusters = append(c.clusters, fmt.Sprint("c", i))
		entries += fmt.Sprintf("c%d=%s ", i, map[bool]string{true: "Exposed", false: "Applying"}[i < 10])
	}
	f := newFollower(c, 1, false)
	if got := strings.Join(f.observe(time.Unix(0, 0), reported(1, entries)), "\n"); got != "Applying 20, Exposed 10 of 30" {
		t.Error(got)
	}
	if again := f.observe(time.Unix(0, 0), reported(1, entries)); len(again) > 0 {
		t.Error("says it twice:", again)
	}
}

func TestReportNamesNextStep(t *testing.T) {
	f := newFollower(change{clusters: []string{"east", "west", "north"}}, 1, false)
	s := reported(1, "east=Unavailable west=ClusterUnreachable")
	f.observe(time.Unix(0, 0), s)
	got := f.report(f.pending(s))
	for _, want := range []string{"east: Unavailable: the message\n", "must reach every address", "kubectl describe cluster west", "north: not reconciled yet"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	f.removal = true
	if got := f.report(f.pending(s)); !strings.Contains(got, "`atoll leave west --cascade=orphan`") {
		t.Error(got)
	}
}
