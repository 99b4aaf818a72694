package sharing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// parseState builds a state from a compact notation. Clusters: "east"; "east!"
// is leaving; "prod:east" has label tier=prod. SharedAPIs: "name=groups@clusters", or
// @tier=prod for a selector; "!" at the end means deleted. Groups are those with a CRD.
func parseState(clusters, shared, groups string) state {
	at := metav1.NewTime(time.Unix(0, 0))
	out := state{crds: []string{}}
	for _, word := range strings.Fields(clusters) {
		c := &v1alpha1.Cluster{}
		name, leaving := strings.CutSuffix(word, "!")
		if leaving {
			c.DeletionTimestamp = &at
		}
		if tier, rest, labelled := strings.Cut(name, ":"); labelled {
			name, c.Labels = rest, map[string]string{"tier": tier}
		}
		c.Name = name
		out.clusters = append(out.clusters, c)
	}
	for i, word := range strings.Fields(shared) {
		s := &v1alpha1.SharedAPI{}
		s.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
		word, deleted := strings.CutSuffix(word, "!")
		if deleted {
			s.DeletionTimestamp = &at
		}
		name, rest, _ := strings.Cut(word, "=")
		groups, chosen, _ := strings.Cut(rest, "@")
		s.Name, s.Spec.Groups, s.Spec.Namespaces = name, strings.Split(groups, ","), v1alpha1.NamespacesProvide
		chosen, over, _ := strings.Cut(chosen, "/")
		if tier, selected := strings.CutPrefix(chosen, "tier="); selected {
			s.Spec.ClusterSelector = &metav1.LabelSelector{}
			if tier != "" {
				s.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": tier}
			}
		} else {
			s.Spec.Clusters = strings.Split(chosen, ",")
		}
		for cluster := range strings.SplitSeq(over, ",") {
			if cluster != "" { // "/west": not removed from west yet
				s.Status.Clusters = append(s.Status.Clusters, v1alpha1.ClusterExposure{Name: cluster, Reason: v1alpha1.ExposureRemoving})
			}
		}
		out.shared = append(out.shared, s)
	}
	for _, group := range strings.Fields(groups) {
		out.crds = append(out.crds, "things."+group)
	}
	return out
}

// outcome formats a change in the same notation.
func outcome(c change) string {
	if c.spec == nil {
		return "delete " + c.name
	}
	verb := "keep"
	switch {
	case c.old == nil:
		verb = "create"
	case c.edits():
		verb = "change"
	}
	chosen := strings.Join(c.spec.Clusters, ",")
	if c.spec.ClusterSelector != nil {
		chosen = metav1.FormatLabelSelector(c.spec.ClusterSelector)
	}
	return fmt.Sprintf("%s %s=%s@%s", verb, c.name, strings.Join(c.spec.Groups, ","), chosen)
}

func TestExposePlan(t *testing.T) {
	const clusters = "east west prod:north gone! system"
	tests := []struct {
		name, shared string
		groups, to   string // to: clusters, or tier=...
		as           string // --name
		namespaces   v1alpha1.NamespacePolicy
		want         string // outcome and diff, or part of the error
	}{
		{"the first time", "", "a.x", "east,west", "", "", "create a.x=a.x@east,west"},
		{"named after the first group", "", "b.x,a.x", "east", "", "", "create b.x=b.x,a.x@east"},
		{"named", "", "a.x", "east", "mine", "", "create mine=a.x@east"},
		{"by label", "", "a.x", "tier=prod", "", "", "create a.x=a.x@tier=prod"},
		{"to one more", "a.x=a.x@east", "a.x", "west", "", "", "change a.x=a.x@east,west: also for west"},
		{"the same groups in another order, under another name", "mine=b.x,a.x@east", "a.x,b.x", "west", "", "", "change mine=b.x,a.x@east,west: also for west"},
		{"again", "a.x=a.x@east", "a.x", "east", "", "", "keep a.x=a.x@east"},
		{"again by label", "a.x=a.x@tier=prod", "a.x", "tier=prod", "", "", "keep a.x=a.x@tier=prod"},
		{"with another policy", "a.x=a.x@east", "a.x", "east", "", v1alpha1.NamespacesRequire, "change a.x=a.x@east: namespaces: Require instead of Provide"},
		{"one of two by name", "one=a.x@east two=a.x@west", "a.x", "west", "two", "", "keep two=a.x@west"},
		{"another group elsewhere", "a.x=a.x@east", "b.x", "east", "", "", "create b.x=b.x@east"},

		{"no such cluster", "", "a.x", "eats", "", "", "cluster \"eats\" not found (did you mean east?): the clusters are east, gone, north, system, west"},
		{"leaving", "", "a.x", "gone", "", "", "cluster gone is leaving"},
		{"reserved", "", "a.x", "system", "", "", "`atoll leave system`"},
		{"exposed by another", "all=a.x,b.x@east", "a.x", "west,east", "", "", "SharedAPI all already exposes a.x to east: omit east, or run `atoll unexpose a.x --from east` first"},
		{"exposed by another, by label", "all=a.x,b.x@tier=prod", "a.x", "north", "", "", "SharedAPI all already exposes a.x to north"},
		{"by label, exposed by another", "all=a.x,b.x@north", "a.x", "tier=prod", "", "", "SharedAPI all already exposes a.x to north"},
		{"one of two", "one=a.x@east two=a.x@west", "a.x", "north", "", "", "2 SharedAPIs expose exactly these groups (one, two): select one with --name"},
		{"name taken", "a.x=a.x,b.x@east", "a.x", "west", "", "", "SharedAPI a.x exposes a.x, b.x: use another --name"},
		{"still going", "a.x=a.x@east/east!", "a.x", "east", "", "", "SharedAPI a.x is still being removed from east"},
		{"by name where labels choose", "a.x=a.x@tier=prod", "a.x", "east", "", "", "by label (tier=prod): add the label to east"},
		{"by label where names choose", "a.x=a.x@east", "a.x", "tier=prod", "", "", "SharedAPI a.x selects clusters differently (east)"},
		{"by label where all are chosen", "a.x=a.x@tier=", "a.x", "tier=prod", "", "", "SharedAPI a.x selects clusters differently (all clusters)"},
		{"by another label", "a.x=a.x@tier=test", "a.x", "tier=prod", "", "", "SharedAPI a.x selects clusters differently (tier=test)"},
	}
	for _, tt := range tests {
		ask := Exposure{Groups: strings.Split(tt.groups, ","), Name: tt.as, Namespaces: tt.namespaces}
		if tier, selected := strings.CutPrefix(tt.to, "tier="); selected {
			ask.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": tier}}
		} else {
			ask.Clusters = strings.Split(tt.to, ",")
		}
		c, err := parseState(clusters, tt.shared, "a.x b.x").expose(ask)
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: refused with %q, want %q", tt.name, err, tt.want)
			}
			continue
		}
		got := outcome(c)
		if len(c.diff) > 0 {
			got += ": " + strings.Join(c.diff, "; ")
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if _, err := parseState("", "", "").expose(Exposure{Groups: []string{"a.x"}, Clusters: []string{"east"}}); err == nil || !strings.Contains(err.Error(), "atoll join east") {
		t.Errorf("without clusters: %v", err)
	}
}

func TestExposeWarnings(t *testing.T) {
	p := parseState("east west", "", "shop.example.org")
	p.clusters[1].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonClusterUnreachable}}
	blind := p
	blind.crds = nil
	selects := &v1alpha1.SharedAPISpec{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "prod"}}}
	tests := []struct {
		name  string
		p     state
		c     change
		want  string // part of the warnings
		waits bool
	}{
		{"none", p, change{groups: []string{"shop.example.org"}, clusters: []string{"east"}}, "", true},
		{"no such group", p, change{groups: []string{"shop.example.com"}, clusters: []string{"east"}}, "group shop.example.com (did you mean shop.example.org?)", false},
		{"may not see groups", blind, change{groups: []string{"shop.example.com"}, clusters: []string{"east"}}, "you are not allowed to list", true},
		{"not Ready", p, change{groups: []string{"shop.example.org"}, clusters: []string{"east", "west"}}, "west is not Ready (ClusterUnreachable)", true},
		{"nothing chosen", p, change{groups: []string{"shop.example.org"}, spec: selects}, "the selector (tier=prod) matches no joined cluster", false},
	}
	for _, tt := range tests {
		doubts, waits := tt.p.warnings(tt.c)
		got := strings.Join(doubts, "\n")
		if waits != tt.waits || !strings.Contains(got, tt.want) || tt.want == "" && got != "" || len(doubts) > 1 {
			t.Errorf("%s: waits %v, doubts %q", tt.name, waits, got)
		}
	}
}

func TestUnexposePlan(t *testing.T) {
	const clusters = "east west prod:north"
	tests := []struct{ name, shared, groups, from, want string }{
		{"everywhere", "a.x=a.x@east,west", "a.x", "", "delete a.x for east,west"},
		{"from one", "a.x=a.x@east,west", "a.x", "east", "change a.x=a.x@west for east"},
		{"from the last", "a.x=a.x@east", "a.x", "east", "delete a.x for east"},
		{"one group of two", "s=a.x,b.x@east,west", "a.x", "", "change s=b.x@east,west for east,west"},
		{"one group of two, naming all clusters", "s=a.x,b.x@east", "a.x", "east", "change s=b.x@east for east"},
		{"two groups of two", "s=a.x,b.x@east,west", "b.x,a.x", "east", "change s=a.x,b.x@west for east"},
		{"by label, everywhere", "s=a.x@tier=prod", "a.x", "", "delete s for north"},
		{"several", "s=a.x@east t=a.x@west", "a.x", "", "delete s for east; delete t for west"},
		{"of several, that one", "s=a.x@east t=a.x@west", "a.x", "west", "delete t for west"},
		{"again while it goes", "s=a.x@east/east!", "a.x", "", "delete s for east"},
		{"again while it goes from one", "s=a.x@west/east", "a.x", "east", "keep s=a.x@west for east"},
		{"from a cluster that left", "s=a.x@lost,west", "a.x", "lost", "change s=a.x@west for lost"},

		{"not exposed", "", "a.x", "", "a.x is not exposed: no groups are exposed"},
		{"misspelt", "s=shop.example.org@east", "shop.exmple.org", "", "(did you mean shop.example.org?)"},
		{"not there", "s=a.x@west", "a.x", "east", "a.x is not exposed to east: it is exposed to west"},
		{"from a misspelt cluster", "s=a.x@west", "a.x", "wets", "a.x is not exposed to wets (did you mean west?): it is exposed to west"},
		{"one of two from one of two", "s=a.x,b.x@east,west", "a.x", "east", "`atoll unexpose a.x,b.x --from east`, then `atoll expose b.x --to east`"},
		{"from one that a label chooses", "s=a.x@tier=prod", "a.x", "north", "remove the label from cluster north"},
	}
	for _, tt := range tests {
		var from []string
		if tt.from != "" {
			from = strings.Split(tt.from, ",")
		}
		changes, err := parseState(clusters, tt.shared, "").withdraw(strings.Split(tt.groups, ","), from)
		var got []string
		for _, c := range changes {
			got = append(got, outcome(c)+" for "+strings.Join(c.clusters, ","))
		}
		if err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && strings.Join(got, "; ") != tt.want {
			t.Errorf("%s: %v %v, want %s", tt.name, got, err, tt.want)
		}
	}
}
